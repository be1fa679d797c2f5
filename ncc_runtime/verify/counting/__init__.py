"""Counters only grow, and a value of one names one increment."""
