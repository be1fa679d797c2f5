"""Graph to graph: each pass takes a verified module and returns one."""
