"""What passes do, for who writes them: the graph behind each as a file, and a table of times.

`nccc compile --print-after-all DIR` and `--time-passes`, as LLVM and MLIR call them.
"""

import time
from pathlib import Path
from typing import Any

import attrs

from ncc_compiler.ir.graph import Module
from ncc_compiler.ir.text.printer import print_module
from ncc_runtime.errors import InputError
from ncc_runtime.neff.whole_file import write_whole

GENERATE = "code generation"
"""What stands in the table behind the last pass."""


@attrs.frozen
class PassRow:
    """One pass, or what comes before and behind them all."""

    name: str
    nodes_before: int | None  # of all computations; None: there was no graph yet
    nodes_after: int | None  # None: it became a program
    seconds: float
    file: str | None = None  # the graph behind it; None: it was not written

    def as_json(self) -> dict[str, Any]:
        return attrs.asdict(self)


class PassReport:
    """Watches a compilation: call it with the name and result of each pass, then `finish`.

    Times are those between calls, without what the report itself takes.
    """

    def __init__(self, folder: Path | None = None, *, changed_only: bool = False) -> None:
        self.rows: list[PassRow] = []
        self._folder = folder
        self._changed_only = changed_only
        self._text = ""
        self._since = time.perf_counter()

    def __call__(self, name: str, module: Module) -> None:
        seconds = time.perf_counter() - self._since
        nodes = sum(len(computation.nodes) for computation in module.computations.values())
        before = self.rows[-1].nodes_after if self.rows else None
        file = None if self._folder is None else self._written(self._folder, name, module)
        self.rows.append(PassRow(name, before, nodes, seconds, file))
        self._since = time.perf_counter()

    def _written(self, folder: Path, name: str, module: Module) -> str | None:
        """The file of a graph, of which a broken later pass leaves those before it."""
        text = print_module(module)
        is_same, self._text = text == self._text, text
        if is_same and self._changed_only:
            return None
        path = folder / f"{len(self.rows):02}-{name}.hlo"
        write_whole(path, text.encode())
        return str(path)

    def finish(self) -> None:
        """Adds the row of code generation."""
        seconds = time.perf_counter() - self._since
        self.rows.append(PassRow(GENERATE, self.rows[-1].nodes_after, None, seconds))

    def table(self) -> str:
        """A line for each row, and the sum."""
        head = ("pass", "nodes before", "nodes after", "seconds", "%")
        total = sum(row.seconds for row in self.rows)
        lines: list[tuple[str, ...]] = [head]
        for row in self.rows:
            counts = ("" if n is None else str(n) for n in (row.nodes_before, row.nodes_after))
            share = 100 * row.seconds / total if total else 0.0
            lines.append((row.name, *counts, f"{row.seconds:.4f}", f"{share:.1f}"))
        lines.append(("in all", "", "", f"{total:.4f}", ""))
        widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
        return "\n".join(
            "  ".join(
                [line[0].ljust(widths[0])]
                + [cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True)]
            ).rstrip()
            for line in lines
        )

    def summary(self) -> str:
        """How many files there are, and where."""
        files = sum(row.file is not None for row in self.rows)
        return f"{self._folder}: {files} graphs of {len(self.rows) - 1} stages"


def new_folder(path: str) -> Path:
    """An empty folder of that name, made if it is not there.

    InputError if it holds anything, OSError where it cannot be made.
    """
    folder = Path(path)
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{path}: is a file; give the name of a folder")
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise InputError(f"{path}: is not empty; give another folder, or empty this one")
    return folder
