"""What is wired to what, at which rate."""
