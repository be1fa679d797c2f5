"""Collectives over irregular wiring: what is sent over which link when, and who forwards it."""
