"""The plain numpy meaning of a graph over all ranks: the oracle of the tests."""

from ncc_compiler.reference.interpret import MEANINGS, run_module

__all__ = ["MEANINGS", "run_module"]
