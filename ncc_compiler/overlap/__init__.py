"""What lets collectives run beside compute; knows sizes and dependencies, and no topology."""
