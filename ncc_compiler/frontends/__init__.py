"""Other formats of a program, into HLO text."""
