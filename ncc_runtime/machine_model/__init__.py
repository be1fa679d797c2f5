"""The machine as price and clock see it: time constants, shared parts, what a transfer uses."""
