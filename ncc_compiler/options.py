"""What a compilation can be told; every default is here."""

from collections.abc import Mapping

import attrs

FOLD_LIMIT_BYTES = 64 * 1024
"""No constant larger than this is made at compile time; it would swell the file."""

INLINE_LIMIT_NODES = 2_000_000
"""Calls that would expand to more nodes than this are refused."""

BUCKET_LIMIT_BYTES = 25 * 1024 * 1024
"""No bucket of collectives is larger than this; a collective that is stays alone."""

BUCKET_SMALL_BYTES = 256 * 1024
"""To have one collective less, others may be put off by what so many bytes take."""

SCHEDULE_LIMIT_PERCENT = 100
"""A computation takes at most this much of the memory that it took before a pass put it into
another order. Values count that live at the same time in that order; queues know less of each
other where collectives run beside compute, so their memory is used again later, and the file takes
up to a tenth more all the same."""

SCHEDULE_FREE_BYTES = 128 * 1024 * 1024
"""So much is taken in any case: half a percent of the HBM that a rank of trn2 has."""

SCHEDULE_WINDOW = 160
"""Where memory is short, no node goes ahead of so many others, about half a layer of a large model:
what is made farther ahead takes the memory that nearer nodes would need."""

LEVELS = (0, 1, 2)


@attrs.frozen
class CompileOptions:
    """How to compile: the pipeline, the number of ranks, and options of single passes."""

    level: int = attrs.field(default=1, validator=attrs.validators.in_(LEVELS))
    ranks: int | None = attrs.field(
        default=None, validator=attrs.validators.optional(attrs.validators.gt(0))
    )  # for programs that do not say it themselves
    pass_options: Mapping[str, str] = attrs.field(factory=dict)  # "pass.option" → value as text
    verify_each_pass: bool = False  # otherwise only at the borders of the pass pipeline
