"""A verdict: what one rule says of a group, as data and as one line."""

from collections.abc import Iterable, Sequence

import attrs

from ncc_runtime.errors import PlacementError
from ncc_runtime.topology.graph import Topology
from ncc_runtime.topology.pictures import spans

Ranks = tuple[int, ...]

Places = tuple[tuple[int, int], ...]
"""Cores as (instance, logical core), sorted."""

MOST_SPANS = 8
"""A message lists no more runs of numbers than this."""


@attrs.frozen
class Verdict:
    """What one rule says of one group of a placeholder, or of several judged alike."""

    placeholder: int
    ranks: Ranks  # the first of the groups; empty where the rule is not about groups
    rule: str
    allowed: bool
    fact: str
    source: str
    nearest: Places = ()  # the nearest allowed group, if this one is refused and there is one
    advice: str = ""  # the same as a text

    def __str__(self) -> str:
        """One line: what, by which rule and source, and what would be allowed."""
        line = f"{self.fact} ({self.rule}: {self.source})"
        return f"{line}; {self.advice}" if self.advice else line


def refusals(judged: Iterable[Verdict]) -> tuple[tuple[Verdict, int], ...]:
    """The first verdict of every rule that is broken, and how many placeholders break it."""
    first: dict[str, Verdict] = {}
    broken: dict[str, set[int]] = {}
    for verdict in judged:
        if not verdict.allowed:
            first.setdefault(verdict.rule, verdict)
            broken.setdefault(verdict.rule, set()).add(verdict.placeholder)
    return tuple((verdict, len(broken[rule])) for rule, verdict in first.items())


def refuse(judged: Iterable[Verdict]) -> None:
    """PlacementError if the hardware would refuse any of it."""
    refused = refusals(judged)
    if refused:
        (verdict, _), *others = refused
        more = f"; also broken: {', '.join(other.rule for other, _ in others)}" if others else ""
        raise PlacementError(f"refused as by the hardware: {verdict}{more}")


def warnings(judged: Iterable[Verdict]) -> tuple[str, ...]:
    """One line for every rule that is broken."""
    return tuple(
        f"{verdict}" + (f"; {count} collectives in all" if count > 1 else "")
        for verdict, count in refusals(judged)
    )


def cores_text(topology: Topology, places: Places) -> str:
    """Cores as messages name them: `cores 0-3,12-15`, `cores 0-3 of instances 0-1`."""
    by_node: dict[int, list[int]] = {}
    for node, core in places:
        by_node.setdefault(node, []).append(core)
    by_cores: dict[Ranks, list[int]] = {}
    for node, its_cores in by_node.items():
        by_cores.setdefault(tuple(its_cores), []).append(node)
    texts = []
    for cores, nodes in by_cores.items():
        word = "instance" if len(nodes) == 1 else "instances"
        where = f" of {word} {_short(nodes)}" if topology.nodes > 1 else ""
        texts.append(f"{'cores' if len(cores) > 1 else 'core'} {_short(cores)}{where}")
    return ", ".join(texts[:MOST_SPANS]) + (", …" if len(texts) > MOST_SPANS else "")


def _short(numbers: Sequence[int]) -> str:
    runs = spans(numbers).split(",")
    if len(runs) <= MOST_SPANS:
        return ",".join(runs)
    return f"{','.join(runs[:MOST_SPANS])},… ({len(numbers)} in all)"
