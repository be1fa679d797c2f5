"""The rows of the table of ops, by kind: operands, attributes, sentences of their rules."""
