"""From HLO text to a syntax tree with spans."""
