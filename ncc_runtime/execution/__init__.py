"""Virtual devices: what they would hold and when."""
