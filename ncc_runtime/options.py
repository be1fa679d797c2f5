"""Options of the runtime: every default is here."""

import enum
from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from ncc_runtime.errors import InputError
from ncc_runtime.host_limits import processors


class Policy(enum.StrEnum):
    """Which algorithms may be chosen, where none is forced."""

    NEURON = "neuron"  # those that AWS publishes of Neuron's runtime, where it would take them
    BEST = "best"  # all

    @classmethod
    def _missing_(cls, value: object) -> "Policy":
        raise InputError(f"no policy {value!r}; there are {', '.join(cls)}")


class Alternatives(enum.StrEnum):
    """What a run is timed beside."""

    NONE = "none"
    PLACEMENT = "placement"  # the other way to place, by the same policy
    ALL = "all"  # and both by the other policy

    @classmethod
    def _missing_(cls, value: object) -> "Alternatives":
        raise InputError(f"no alternatives {value!r}; there are {', '.join(cls)}")


@attrs.frozen
class RunOptions:
    """How to run: what to compute, how widely, how carefully. ValueError for impossible values.

    - `values`: compute what every rank holds; without, only times
    - `clock`: predict times; without, only values
    - `threads`: of this host, for values; as many as may run at a time by default. Their number
      changes no bit of the results
    - `checked`: trap reads of unwritten memory and stray addresses
    - `memory_bytes`: of this host that values may take; None is 80 % of what is free
    - `shuffle_seed`: take ready instructions in a random order
    - `trip_counts`: how often loops run, by name, or which branch, for runs without values
    - `verify`: prove the program before it runs the first time
    - `faults`: what goes wrong during the run, as docs/faults.md writes it: texts, `Fault`, paths
      of TOML files, or one of these
    - `fault_seed`: of what faults draw
    - `exec_timeout_s`: after how long hosts give up; None is NEURON_RT_EXEC_TIMEOUT, or 30 s
    - `alternatives`: what else to predict the time of: "none", "placement" (linear instead of
      spread, or the reverse), or "all", by the other policy, too, which may take minutes
    """

    values: bool = True
    clock: bool = True
    threads: int = attrs.field(factory=processors, validator=attrs.validators.ge(1))
    checked: bool = False
    memory_bytes: int | None = None
    shuffle_seed: int | None = attrs.field(
        default=None, validator=attrs.validators.optional(attrs.validators.ge(0))
    )
    trip_counts: Mapping[str, int] = attrs.field(factory=dict)
    verify: bool = True
    faults: Any = ()
    fault_seed: int = attrs.field(default=0, validator=attrs.validators.ge(0))
    exec_timeout_s: float | None = None
    alternatives: Alternatives = attrs.field(default=Alternatives.NONE, converter=Alternatives)


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
    policy: Policy = attrs.field(default=Policy.NEURON, converter=Policy)  # where none is forced
    deterministic: bool = False  # one order of reduction, whatever the place and the policy


PLAN_PREFIX = "plan:"
"""How an algorithm's name begins that is a file: `plan:ring.xml`."""


def plans_apart(
    algorithms: Mapping[str, str], plans: Sequence[str]
) -> tuple[Mapping[str, str], Sequence[str]]:
    """Algorithms without those that are files, and plans with these behind: `OP=FILE`."""
    of_files = {op: name for op, name in algorithms.items() if name.startswith(PLAN_PREFIX)}
    named = [f"{op}={name.removeprefix(PLAN_PREFIX)}" for op, name in of_files.items()]
    rest = {op: name for op, name in algorithms.items() if op not in of_files}
    return rest, (*plans, *named)
