"""What ranks were doing when a run stalled, as flight recorders of communication libraries keep it.

`flight_record(graph)` makes it of a graph of waits. What a rank itself could know stands apart from
what the view of all ranks adds: the culprits, and the chain of waits from a victim to each.
"""

from typing import Any

import attrs

from ncc_runtime.faults.waits import WaitGraph


@attrs.frozen(eq=False)
class FlightRecord:
    """The report of a stall."""

    graph: WaitGraph

    def as_text(self) -> str:
        """As printed: ranks alike in one line, then the culprits."""
        raise NotImplementedError

    def as_json(self) -> dict[str, Any]:
        """All ranks, then the culprits."""
        raise NotImplementedError


def flight_record(graph: WaitGraph) -> FlightRecord:
    """The report of a stalled run."""
    return FlightRecord(graph)
