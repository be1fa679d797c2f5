"""What a shell may complete: names of topologies, placements, algorithms, operators.

The shells' scripts are click's: `_NCCRT_COMPLETE=bash_source nccrt` prints one. Where nothing of
ours begins with what was typed, the shell completes the names of files.
"""

from collections.abc import Iterable

import click
from click.shell_completion import CompletionItem

from ncc_runtime.options import Policy


def begun(names: Iterable[str], incomplete: str) -> list[CompletionItem]:
    """The names that begin so, or files if there are none."""
    found = [CompletionItem(name) for name in names if name.startswith(incomplete)]
    return found or [CompletionItem(incomplete, type="file")]


def topology_names() -> list[str]:
    """Aliases first: they are what is typed most."""
    from ncc_runtime.topology.format.spec import ALIASES, example_names, preset_names

    return [*ALIASES, *preset_names(), *example_names()]


def topology(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """For --topology."""
    return begun(topology_names(), incomplete)


def placement(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """For --placement."""
    from ncc_runtime.placement import STRATEGIES

    return begun(STRATEGIES, incomplete)


def place(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """For --on: a topology, then settings behind commas."""
    before, comma, _last = incomplete.rpartition(",")
    if not comma:
        return begun(topology_names(), incomplete)
    given = {setting.partition("=")[0] for setting in before.split(",")[1:]}
    settings = (
        *("nodes=", "placement=linear", "placement=spread", "lnc=1", "lnc=2"),
        *(f"policy={policy}" for policy in Policy),
        *("algorithm=", "deterministic"),
    )
    left = (f"{before},{word}" for word in settings if word.partition("=")[0] not in given)
    return begun(left, incomplete)


def algorithm(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """For --algorithm: the operator, then what can fill it."""
    from ncc_runtime.collectives.choose import ALGORITHMS

    if "=" not in incomplete:
        return begun((f"{op.value}=" for op in ALGORITHMS), incomplete)
    every = (f"{op.value}={name}" for op, names in ALGORITHMS.items() for name in names)
    return begun(every, incomplete)


def operator(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """For the operator of bench."""
    from ncc_runtime.report.bench import OPERATORS

    return begun(dict.fromkeys(operator.name for operator in OPERATORS.values()), incomplete)


def datatype(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """For the type of bench."""
    from ncc_runtime.report.bench import DTYPES

    return begun(DTYPES, incomplete)
