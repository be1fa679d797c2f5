"""A run as execution traces of Chakra, which ASTRA-sim and other tools of MLCommons read."""
