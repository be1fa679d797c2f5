"""Whether programs that run together agree on the collectives they share."""
