"""Algorithms as pure functions to transfer plans."""
