"""Reductions: one table for the compiler and the runtime."""

import enum


class Reduction(enum.Enum):
    """How values of several ranks are combined; the value is the XLA op of the region."""

    ADD = "add"
    MULTIPLY = "multiply"
    MINIMUM = "minimum"
    MAXIMUM = "maximum"
    AND = "and"
    OR = "or"
