"""Execution traces of Chakra, of all ranks, to HLO text: sized work and collectives.

`files.py` reads, `meetings.py` finds which nodes of different ranks are one collective and an order
of all, `programs.py` writes a program for the ranks that do the same.
"""
