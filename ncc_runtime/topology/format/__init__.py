"""A topology's TOML: its keys, its rows, its JSON Schema, and reading it."""
