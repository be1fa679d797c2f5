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

SCHEDULE_LIMIT_PERCENT = 105
"""A computation takes at most this much of the memory that it took before a pass put it into
another order. Two passes do so one after the other: overlap costs a tenth of the memory at most."""

SCHEDULE_FREE_BYTES = 128 * 1024 * 1024
"""So much more is taken in any case: half a percent of the HBM that a rank of trn2 has."""

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
