"""Options of the runtime: every default is here."""

from collections.abc import Mapping, Sequence

import attrs


@attrs.frozen
class RunOptions:
    """How to run: what to compute, how widely, how carefully."""

    values: bool = True
    clock: bool = True
    threads: int = attrs.field(default=1, validator=attrs.validators.ge(1))
    checked: bool = False  # trap reads of unwritten memory and stray addresses
    memory_bytes: int | None = None  # None: FREE_SHARE of what the host has free
    shuffle_seed: int | None = attrs.field(
        default=None, validator=attrs.validators.optional(attrs.validators.ge(0))
    )  # take ready instructions in a random order
    trip_counts: Mapping[str, int] = attrs.field(factory=dict)  # of loops, for runs without values
    verify: bool = True  # prove the program before it runs the first time


FREE_SHARE = 0.8
"""Share of the host's free memory that a run may take by default."""


@attrs.frozen
class LoadOptions:
    """How to fill placeholders."""

    algorithms: Mapping[str, str] = attrs.field(factory=dict)  # operator → algorithm
    strict: bool = False  # refuse groups that the hardware would refuse
    plans: Sequence[str] = ()  # [OP=|pN=|NAME=]FILE: plans that users wrote
    ignore_memory: bool = False  # also place what does not fit, for runs without values
    times_only: bool = False  # for runs without values and proofs: lower one symmetric instance
