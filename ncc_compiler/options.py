"""The options of a compilation, with their defaults."""

import enum
from collections.abc import Mapping

import attrs

FOLD_LIMIT_BYTES = 64 * 1024
"""Constants larger than this are not folded; they would make the file large."""

INLINE_LIMIT_NODES = 2_000_000
"""Calls that would expand to more nodes than this are refused."""

FUSE_LIMIT_NODES = 512
"""Operations of one fused instruction, at most."""

BUCKET_LIMIT_BYTES = 25 * 1024 * 1024
"""Buckets of collectives hold at most this; a larger collective stays alone."""

BUCKET_SMALL_BYTES = 4 * 1024 * 1024
"""Joining two buckets may delay collectives by the time that this many bytes take."""

BUCKET_LATER_PERCENT = 105
"""When a computation with buckets ends, at most, at any speed of collectives, as a share of when it
ends without."""

SCHEDULE_LIMIT_PERCENT = 100
"""The peak memory of a computation after scheduling, at most, as a share of the peak before. The
peak counts values that are live at the same time in program order. The memory of the file can grow
by up to a tenth all the same: where collectives run beside compute, queues are ordered less among
each other, and buffers are reused later."""

SCHEDULE_FREE_BYTES = 128 * 1024 * 1024
"""A peak up to this is always allowed: half a percent of the HBM of a trn2 rank."""

MEMORY_PERCENT = 110
"""What the file takes once collectives are joined and the order is made for them, at most, as a
share of what it would take in program order."""

SCHEDULE_WINDOW = 160
"""Where memory is short, a node is hoisted past at most this many others, about half a layer of a
large model: values made earlier would take the memory that nearer nodes need."""

LEVELS = (0, 1, 2)

RELEASES = ("2.18",)
"""Releases of the SDK whose compiler may be meant (releases.py)."""


class LateGradients(enum.Enum):
    """What becomes of the contributions that a partial all-reduce does not wait for."""

    DROP = "drop"  # as with backup workers
    NEXT = "next"  # added in the next step


@attrs.frozen
class CompileOptions:
    """How to compile. ValueError for values that there are not.

    - `level`: 0 only what is needed, 1 as usual, 2 thorough: collectives run beside compute
    - `ranks`: their number, for programs that do not say it themselves
    - `pass_options`: "pass.option" to its value as text, as `--pass-option` takes them (docs/ir.md)
    - `partial_all_reduce`: gradients are all-reduced without those of late ranks
      (`passes/partial_all_reduce.py`), which are dropped or added in the next step
    - `sdk`: a release of AWS's SDK: a prefill is joined no more than its compiler did, as far as
      published times tell (docs/fidelity.md)
    - `verify_each_pass`: check the graph after every pass, not only at the borders of the pipeline

    >>> CompileOptions(level=2, pass_options={"fold-constants.limit_bytes": "1024"}).level
    2
    """

    level: int = attrs.field(default=1, validator=attrs.validators.in_(LEVELS))
    ranks: int | None = attrs.field(
        default=None, validator=attrs.validators.optional(attrs.validators.gt(0))
    )
    pass_options: Mapping[str, str] = attrs.field(factory=dict)
    partial_all_reduce: LateGradients | None = attrs.field(
        default=None, converter=attrs.converters.optional(LateGradients)
    )
    sdk: str | None = attrs.field(
        default=None, validator=attrs.validators.optional(attrs.validators.in_(RELEASES))
    )
    verify_each_pass: bool = False
