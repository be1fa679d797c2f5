"""Intervals beside the queues of a timeline: what was wrong during the run, what stood still."""

from collections.abc import Iterator, Sequence

import attrs
import numpy as np

from ncc_runtime.report.timeline.tracks import Slices, Texts, TimelineBatch, Track

MARKS = 1 << 58
"""The group of the tracks of marks."""


@attrs.frozen
class Mark:
    """An interval on a track of its own name; those of one track do not overlap."""

    track: str
    name: str
    start_ps: int
    end_ps: int


def contents(marks: Sequence[Mark], order: int) -> Iterator[TimelineBatch]:
    """The slices of all marks; nothing without any. `order` is that of their group."""
    if not marks:
        return
    names = list(dict.fromkeys(mark.track for mark in marks))
    numbers = {name: MARKS + 1 + number for number, name in enumerate(names)}
    ordered = sorted(marks, key=lambda mark: (numbers[mark.track], mark.start_ps))
    tracks = (
        Track(MARKS, 0, "faults", order),
        *(Track(numbers[name], MARKS, name, place) for place, name in enumerate(names)),
    )
    yield TimelineBatch(
        tracks,
        Slices(
            category="fault",
            track=np.array([numbers[mark.track] for mark in ordered]),
            start_ps=np.array([mark.start_ps for mark in ordered]),
            end_ps=np.array([mark.end_ps for mark in ordered]),
            name=Texts(np.arange(len(ordered)), [mark.name for mark in ordered]),
            arguments=(),
            arrives=np.zeros(len(ordered), np.int64),
            leaves=(),
        ),
    )
