"""What goes wrong during a run, what it does, and how it is noticed."""
