"""What a front end knows of the whole arrays that a partitioned program takes and gives."""

import attrs


@attrs.frozen
class WholeArray:
    """An input or output as the user has it, before it is cut over the ranks."""

    name: str = ""
    sharding: str = ""  # as HLO text has it, with its braces; empty if it is not known
    shape: tuple[int, ...] | None = None
    output: int | None = None  # of an input: the output that takes its memory
    is_donated: bool = False  # of an input: an output of its type may take its memory
