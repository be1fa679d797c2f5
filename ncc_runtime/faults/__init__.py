"""Faults while a program runs: as data, in time and values, noticed, and gone on after."""
