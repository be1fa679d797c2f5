"""Orders of reduction: read, compared, held."""
