"""The commands of `nccrt`, one a file; each imports what is heavy when it is called."""
