"""No races inside a collective."""
