"""The listing of a placed program as an object, as `nccrt list` prints it."""

from typing import Any

import attrs

from ncc_runtime.errors import InputError
from ncc_runtime.lowering.executable import Executable
from ncc_runtime.lowering.listing import list_executable, queue_names
from ncc_runtime.report import html


@attrs.frozen(repr=False)
class Listing:
    """The queues of one rank, placeholders filled; `str` of it is the text.

    - `rank`: whose queues they are
    - `queue`: the only one it has; None for all of the rank
    - `text`: a line for each instruction and run of DMA descriptors
    """

    rank: int
    queue: str | None
    text: str

    def __repr__(self) -> str:
        queue = "" if self.queue is None else f", queue {self.queue}"
        return f"<Listing: rank {self.rank}{queue}, {len(self.text.splitlines())} lines>"

    def __str__(self) -> str:
        return self.text

    def as_dict(self) -> dict[str, Any]:
        """The object that `nccrt list --json` prints."""
        return {"listing": self.text.splitlines()}

    def _repr_html_(self) -> str:
        return html.preformatted(self.text)


def listing_of(executable: Executable, rank: int, queue: str | None = None) -> Listing:
    """The listing of a rank; InputError if there is no such rank or queue."""
    if not 0 <= rank < executable.ranks:
        raise InputError(f"rank {rank} is not below the program's {executable.ranks} ranks")
    names = queue_names(executable)
    if queue is not None and queue not in names:
        raise InputError(f"no queue {queue!r}; there are {', '.join(names)}")
    return Listing(rank, queue, list_executable(executable, rank, queue))
