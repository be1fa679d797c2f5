"""How far long work is: the work says it here, and whoever wants to know listens.

Work that may take seconds is a phase; what it has done is one attribute, cheap enough for loops:

    with phase("values", "instructions", total) as now:
        while ...:
            now.done += 1

    for group in steps(groups, "choosing algorithms", "groups"):
        ...

Phases may lie inside one another. Without a listener nothing happens; the commands have one that
shows bars or lines (`progress_bar.py`).
"""

import contextlib
import contextvars
import time
from collections.abc import Iterator, Sequence
from typing import Protocol, TypeVar

import attrs

Item = TypeVar("Item")


@attrs.define(eq=False)
class Phase:
    """Work under way. A listener reads `done` whenever it likes, from another thread too."""

    task: str
    unit: str  # of what is counted, plural
    total: int | None = None  # None: nobody knows
    done: int = 0
    began_s: float = attrs.field(factory=time.monotonic)


class Listener(Protocol):
    """Is told of every phase when it begins and when it ends, however that is."""

    def began(self, phase: Phase) -> None: ...

    def ended(self, phase: Phase) -> None: ...


_listener = contextvars.ContextVar[Listener | None]("listener", default=None)


@contextlib.contextmanager
def heard_by(listener: Listener) -> Iterator[None]:
    """A context whose phases a listener hears of."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


def unheard() -> None:
    """Nobody hears of phases from now on in this context, as in a process that was forked."""
    _listener.set(None)


@contextlib.contextmanager
def phase(task: str, unit: str, total: int | None = None) -> Iterator[Phase]:
    """A phase of work; the work sets `done`."""
    now, listener = Phase(task, unit, total), _listener.get()
    if listener is None:
        yield now
        return
    listener.began(now)
    try:
        yield now
    finally:
        listener.ended(now)


def steps(items: Sequence[Item], task: str, unit: str) -> Iterator[Item]:
    """The items, as a phase that has done those that came before."""
    with phase(task, unit, len(items)) as now:
        for now.done, item in enumerate(items):
            yield item
