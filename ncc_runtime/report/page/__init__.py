"""A run as one page that opens from disk in any browser."""
