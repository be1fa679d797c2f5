"""What `nccrt run --trace` asks for: the timeline as a file, with a progress bar on a terminal."""

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs
import click

if TYPE_CHECKING:
    import numpy as np

    from ncc_runtime.execution.trace import Trace
    from ncc_runtime.lowering.executable import Executable


@attrs.frozen
class WantedTimeline:
    """The file, and whose time it shows; None: everybody's."""

    path: str
    ranks: Sequence[int] | None

    def chosen(self, executable: "Executable") -> "np.ndarray | None":
        """The ranks as a mask; wrong usage where there are fewer."""
        if self.ranks is None:
            return None
        import numpy as np

        count, seen, last = executable.ranks, executable.seen, max(self.ranks)
        if last >= count:
            raise click.UsageError(
                f"--trace-ranks: rank {last} is not below the program's {count} ranks"
            )
        if last >= seen:
            raise click.UsageError(
                f"--trace-ranks: rank {last} does what rank {last % seen} does, whose instance "
                f"stands for all; name ranks below {seen}"
            )
        return np.isin(np.arange(seen), self.ranks)

    def write(self, trace: "Trace", chosen: "np.ndarray | None") -> None:
        """Write the file; a terminal sees how far it is."""
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

        from ncc_runtime.report.timeline.write import write_timeline

        columns = ("{task.description}", BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        silent = not sys.stderr.isatty()
        bar = Progress(*columns, console=Console(stderr=True), transient=True, disable=silent)
        with bar:
            task = bar.add_task(f"events to {self.path}", total=trace.count(chosen))
            write_timeline(self.path, trace, chosen, lambda events: bar.advance(task, events))


def wanted(words: Mapping[str, Any]) -> WantedTimeline | None:
    """What the options `trace` and `trace_ranks` say; None if nothing is to be written."""
    path, ranks = words["trace"], words["trace_ranks"]
    if path is None:
        if ranks is not None:
            raise click.UsageError("--trace-ranks goes with --trace FILE")
        return None
    if words["no_clock"]:
        raise click.UsageError("--trace needs the clock; leave out --no-clock")
    from ncc_runtime.neff.whole_file import check_target
    from ncc_runtime.report.timeline.write import SUFFIXES

    check_target(path, SUFFIXES)
    return WantedTimeline(path, ranks)
