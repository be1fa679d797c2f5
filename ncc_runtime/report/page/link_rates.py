"""What links and adapters carry over time, as the page's timeline draws it."""

from typing import Any

import numpy as np

from ncc_runtime.execution.trace import Trace
from ncc_runtime.report.page.columns import ColumnStore
from ncc_runtime.report.timeline import link_use
from ncc_runtime.report.timeline.tracks import Samples

MOST_SAMPLES = 262_144
"""Changes of rates that are kept, of all links together."""

FEWEST_CELLS = 256
"""Of a link whose changes are too many, at least."""


def link_rates(trace: Trace, store: ColumnStore, chunk: str) -> list[dict[str, Any]]:
    """Name, full rate and columns of every link and adapter that carries something.

    The rate, in MB/s, holds from its time, in picoseconds, until the next one. Links that change
    more often than there is room for have their mean in equal cells of the time line.
    """
    executable = trace.executable
    ranks = np.ones(executable.representatives, bool)
    samples = [each for each in link_use.contents(trace, ranks) if isinstance(each, Samples)]
    if not samples:
        return []
    track = np.concatenate([each.track for each in samples])
    time_ps = np.concatenate([each.time_ps for each in samples]).astype(np.int64)
    rate = np.concatenate([each.value for each in samples])
    links, first = np.unique(track, return_index=True)  # by link, then in order of time
    cells = max(FEWEST_CELLS, MOST_SAMPLES // len(links))
    topology, found = executable.topology, []
    for number, (times, rates) in enumerate(
        zip(np.split(time_ps, first[1:]), np.split(rate, first[1:]), strict=True)
    ):
        link = int(links[number]) - link_use.COUNTERS
        if len(times) > cells:
            times, rates = _in_cells(times, rates, trace.time_ps, cells)
        if link < len(topology.links):
            full = int(topology.links.bandwidth_bytes_per_s[link])
        else:
            assert topology.efa is not None, "only adapters come behind the links"
            full = topology.efa.adapter_bandwidth_bytes_per_s
        found.append(
            {
                "name": link_use.link_name(executable, link),
                "full": full // 10**6,
                "time": store.add(chunk, times, is_delta=True),
                "rate": store.add(chunk, np.rint(rates * 1000).astype(np.int64)),
            }
        )
    return found


def _in_cells(
    times: np.ndarray, rates: np.ndarray, until_ps: int, cells: int
) -> tuple[np.ndarray, np.ndarray]:
    """The mean rate in each of equal cells: of the same total."""
    edges = np.linspace(0, until_ps, cells + 1).astype(np.int64)
    passed = np.append(0.0, np.cumsum(rates[:-1] * np.diff(times)))
    total = np.interp(edges, times, passed)
    return edges[:-1], np.diff(total) / np.maximum(np.diff(edges), 1)
