"""How many examples a property test tries: all of them, or in `make test` a third."""

from hypothesis import settings

OF_ALL = 100
"""`max_examples` of the profiles that try all: of Hypothesis itself, `many` and `random`."""


def examples(every: int) -> int:
    """`max_examples` of a test that tries so many under the profile `many`."""
    return max(5, every * settings.default.max_examples // OF_ALL)
