"""What a run has to say to a person or a script."""
