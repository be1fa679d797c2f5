"""From a verified graph to the engine instructions and placeholders of a program."""
