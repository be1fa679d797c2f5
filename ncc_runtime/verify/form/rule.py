"""What a rule of form is: an id and a function that yields one sentence per breach."""

from collections.abc import Callable, Iterator

import attrs

from ncc_runtime.verify.form.subject import Subject

Finder = Callable[[Subject], Iterator[str]]


@attrs.frozen
class Rule:
    """A numbered rule; the id is the same in messages, docs/proofs.md and tests."""

    id: str
    find: Finder

    def breaches(self, subject: Subject) -> Iterator[str]:
        """Every breach, queue by queue, each with the rule's id before it."""
        return (f"{self.id} {breach}" for breach in self.find(subject))


def rule(identifier: str) -> Callable[[Finder], Rule]:
    """Turn a function into the rule of that id."""
    return lambda find: Rule(identifier, find)
