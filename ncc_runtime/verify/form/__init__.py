"""The numbered rules of a well-formed executable, by subject."""
