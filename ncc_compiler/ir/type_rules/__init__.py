"""The result type of each op, and the rules of its operands and attributes, by kind of op."""
