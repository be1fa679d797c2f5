"""Sweeps: many settings of a bench or a program, computed by many processes, once each."""
