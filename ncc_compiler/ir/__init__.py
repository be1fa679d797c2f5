"""The typed graph: its ops, shape rules, verifier and text form."""
