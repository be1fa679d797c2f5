"""Which of many address ranges meet, in one sweep."""

from collections.abc import Iterable, Iterator

import attrs


@attrs.frozen
class Interval:
    """Addresses [start, end) of somebody; `alone` ones may meet nobody, others each other."""

    start: int
    end: int
    alone: bool
    name: str


def meetings(intervals: Iterable[Interval]) -> Iterator[tuple[Interval, Interval]]:
    """Forbidden meetings, by address; at least one for each interval that has any."""
    reach: Interval | None = None  # of those so far, the one that ends last
    alone_reach: Interval | None = None
    used = (interval for interval in intervals if interval.start < interval.end)
    for interval in sorted(used, key=lambda interval: (interval.start, interval.name)):
        other = reach if interval.alone else alone_reach
        if other and interval.start < other.end:
            yield other, interval
        if reach is None or interval.end > reach.end:
            reach = interval
        if interval.alone and (alone_reach is None or interval.end > alone_reach.end):
            alone_reach = interval
