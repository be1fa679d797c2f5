"""Measured rows against the model: residuals, and the few constants that are fitted to them."""
