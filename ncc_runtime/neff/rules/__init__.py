"""The numbered rules of a program, one file per subject; docs/neff.md lists them."""
