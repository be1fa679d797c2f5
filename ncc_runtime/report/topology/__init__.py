"""A topology as text and as SVG."""
