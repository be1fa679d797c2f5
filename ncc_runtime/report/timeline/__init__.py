"""The trace of a run as a file that timeline viewers open."""
