"""The rows of the table of ops, by subject: operands, attributes, sentences of their rules."""
