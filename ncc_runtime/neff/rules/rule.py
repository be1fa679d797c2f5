"""What a rule is: an id and a function that yields one sentence per breach."""

from collections.abc import Callable, Iterator

import attrs

from ncc_runtime.neff.program import Program

Finder = Callable[[Program], Iterator[str]]


@attrs.frozen
class Rule:
    """A numbered rule; the id is the same in messages, docs/neff.md and tests."""

    id: str
    find: Finder

    def complaints(self, program: Program) -> Iterator[str]:
        """Every breach in program order, each with the rule's id before it."""
        return (f"{self.id} {breach}" for breach in self.find(program))


def rule(identifier: str) -> Callable[[Finder], Rule]:
    """Turn a function into the rule of that id."""
    return lambda find: Rule(identifier, find)
