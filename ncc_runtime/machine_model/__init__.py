"""The machine as price and clock see it: time constants, shared parts, alike instances."""
