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
    is_of_all: bool  # asked of all stages together, else of each by itself

    def breaches(self, subject: Subject) -> Iterator[str]:
        """Every breach, queue by queue, each with the rule's id before it."""
        for one in (subject,) if self.is_of_all else subject.parts:
            yield from (f"{self.id} {one.title}{breach}" for breach in self.find(one))


def rule(identifier: str, *, is_of_all: bool = False) -> Callable[[Finder], Rule]:
    """Turn a function into the rule of that id."""
    return lambda find: Rule(identifier, find, is_of_all)
