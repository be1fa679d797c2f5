"""Verdicts on a program's groups and pairs by the rows of `rules.py`; nothing is enforced.

Each distinct group of a placeholder is judged. A verdict names the rule that allows the group, or
the one that it breaks, with its source and the nearest allowed group.
"""

from collections.abc import Iterator

import attrs
import numpy as np

from ncc_runtime.group_rules import rules, variable_size
from ncc_runtime.group_rules.limits import groups_verdicts, places_of
from ncc_runtime.group_rules.rules import GroupRule, rules_of
from ncc_runtime.group_rules.verdict import (
    Places,
    Ranks,
    Verdict,
    chains,
    cores_text,
    nearest_group,
)
from ncc_runtime.neff.placeholder import CollectiveOp, Placeholder
from ncc_runtime.neff.program import Program
from ncc_runtime.neff.shared.reductions import Reduction
from ncc_runtime.placement import Placement

_OPS_WITH_RULES = (
    CollectiveOp.ALL_TO_ALL,
    CollectiveOp.ALL_GATHER_V,
    CollectiveOp.ALL_TO_ALL_V,
    CollectiveOp.RAGGED_ALL_TO_ALL,
)
_REDUCTIONS = (Reduction.ADD, Reduction.MINIMUM, Reduction.MAXIMUM)


def verdicts(program: Program, placement: Placement) -> tuple[Verdict, ...]:
    """The verdicts of all rules that apply to the program's collectives, in program order."""
    if placement.topology.rules == "none":
        return ()
    judge = _GroupJudge.of(placement)
    cache: dict[object, tuple[Verdict, ...]] = {}
    judged: list[Verdict] = []
    for number, placeholder in enumerate(program.placeholders):
        key = placeholder.op, placeholder.reduction, placeholder.groups, placeholder.pairs
        if key not in cache:
            cache[key] = judge.verdicts(placeholder)
        judged += (attrs.evolve(verdict, placeholder=number) for verdict in cache[key])
    return (*judged, *groups_verdicts(program, placement))


@attrs.define
class _GroupJudge:
    """The rules of one placement, with a cache of its groups' verdicts."""

    placement: Placement
    rules: tuple[GroupRule, ...]
    allowed: dict[Ranks, GroupRule]  # by cores
    masks: np.ndarray  # (groups, cores) bool, what `allowed` lists
    links: frozenset[tuple[int, int]]  # chips that a link joins, and chips and switches
    switches: dict[int, list[int]]  # that have a port for a chip
    cache: dict[tuple[Ranks, CollectiveOp | None], Verdict | None] = attrs.field(factory=dict)

    @classmethod
    def of(cls, placement: Placement) -> "_GroupJudge":
        topology = placement.topology
        group_rules = rules_of(topology)
        allowed = {cores: rule for rule in group_rules for cores in rule.groups}
        masks = np.zeros((len(allowed), topology.ranks_per_node), bool)
        for mask, cores in zip(masks, allowed, strict=True):
            mask[list(cores)] = True
        links, is_up = topology.links, ~topology.links.is_down
        ends = frozenset(zip(links.src[is_up].tolist(), links.dst[is_up].tolist(), strict=True))
        switches: dict[int, list[int]] = {}
        for source, target in ends:
            if source >= links.chips:
                switches.setdefault(target, []).append(source)
        return cls(placement, group_rules, allowed, masks, ends, switches)

    def verdicts(self, placeholder: Placeholder) -> tuple[Verdict, ...]:
        """One verdict for every rule that allows or refuses a group or chain of the placeholder."""
        op, reduction = placeholder.op, placeholder.reduction
        by_rule: dict[tuple[str, bool], Verdict] = {}
        if reduction is not None and reduction not in _REDUCTIONS:
            verdict = _verdict(rules.REDUCTIONS, (), allowed=False)
            fact = f"{op.value} by {reduction.value}: {verdict.fact}"
            by_rule[verdict.rule, False] = attrs.evolve(verdict, fact=fact)
        if placeholder.pairs:
            judged = list(self._pairs(placeholder))
        else:  # a group of one does not communicate
            groups = (group for group in placeholder.groups if len(group) > 1)
            verdicts_of = ((group, self._group(group, op)) for group in groups)
            judged = [(group, verdict) for group, verdict in verdicts_of if verdict is not None]
        for ranks, verdict in judged:
            if (verdict.rule, verdict.allowed) not in by_rule:
                where = cores_text(self.placement.topology, places_of(self.placement, ranks))
                fact = f"{op.value} over {where}: {verdict.fact}"
                by_rule[verdict.rule, verdict.allowed] = attrs.evolve(verdict, fact=fact)
        return tuple(by_rule.values())

    def _pairs(self, placeholder: Placeholder) -> Iterator[tuple[Ranks, Verdict]]:
        """Every chain of the source-target pairs, or a pair of it between distant chips."""
        for chain in chains(placeholder.pairs):
            distant = next((pair for pair in chain.pairs() if not self._is_adjacent(*pair)), None)
            if not chain.is_ring and distant is None and self._is_adjacent(*chain.ends):
                yield chain.ranks, self._refused(rules.RING_OF_PAIRS, chain.ranks, closes=True)
            elif not chain.is_ring:
                yield chain.ranks, self._refused(rules.RING_OF_PAIRS, chain.ranks)
            elif distant is not None:
                yield distant, self._refused(rules.ADJACENT_PAIRS, chain.ranks)
            else:
                yield chain.ranks, _verdict(rules.RING_OF_PAIRS, chain.ranks, allowed=True)

    def _is_adjacent(self, source: int, target: int) -> bool:
        chip, node = self.placement.chip, self.placement.node
        ends = int(chip[source]), int(chip[target])
        if ends[0] == ends[1] or ends in self.links or node[source] != node[target]:
            return True
        return any((ends[0], switch) in self.links for switch in self.switches.get(ends[1], ()))

    def _group(self, group: Ranks, op: CollectiveOp) -> Verdict | None:
        """By the rules for its cores; None where no rule is known."""
        key = group, op if op in _OPS_WITH_RULES else None
        if key not in self.cache:
            by_operator = variable_size.judged(self.placement, group, op)
            parts = self._parts(group)
            if by_operator is not None:
                verdict = _verdict(by_operator.rule, group, allowed=by_operator.allowed)
                self.cache[key] = self._advised(verdict, by_operator.nearest)
            elif op is CollectiveOp.ALL_TO_ALL and len(parts) > 1:
                self.cache[key] = self._refused(rules.ALL_TO_ALL_INSIDE, group)
            else:
                self.cache[key] = self._judged(group, parts)
        return self.cache[key]

    def _judged(self, group: Ranks, parts: np.ndarray) -> Verdict | None:
        if not (parts == parts[0]).all():
            return self._refused(rules.SYMMETRIC, group)
        cores = tuple(np.flatnonzero(parts[0]).tolist())
        if len(parts) > 1 and len(cores) == 1:
            return _verdict(rules.ONE_AN_INSTANCE, group, allowed=True)
        if cores in self.allowed:
            return _verdict(self.allowed[cores], group, allowed=True)
        return self._refused(self._broken(parts[0]), group) if self.rules else None

    def _broken(self, cores: np.ndarray) -> GroupRule:
        """The rule of the nearest allowed group of that size; if none has it, the rule on sizes."""
        same_size = np.flatnonzero(self.masks.sum(1) == cores.sum())
        if not len(same_size):
            return next(rule for rule in self.rules if rule.is_size_rule)
        listed = list(self.allowed.values())
        nearest = listed[same_size[(self.masks[same_size] ^ cores).sum(1).argmin()]]
        listed_of_size = [listed[mask] for mask in same_size]
        others = {rule.id: rule for rule in listed_of_size if rule is not nearest}
        alternatives = [rule.fact.split(" take ")[-1] for rule in others.values()]
        return attrs.evolve(nearest, fact=", or ".join([nearest.fact, *alternatives]))

    def _refused(self, rule: GroupRule, group: Ranks, *, closes: bool = False) -> Verdict:
        """A refusal with the nearest allowed group: a ring for pairs, one instance for all-to-all.

        With `closes` the group itself is allowed once its pairs close to a ring.
        """
        if closes:
            places = places_of(self.placement, group)
        else:
            masks, parts = self.masks, self._parts(group)
            alone = rule is rules.ALL_TO_ALL_INSIDE
            instances, cores = np.nonzero(nearest_group(masks, parts, alone=alone))
            nodes = np.unique(self.placement.node[list(group)])[instances]
            places = tuple(zip(nodes.tolist(), cores.tolist(), strict=True))
        shape = "a ring through " if rule in (rules.RING_OF_PAIRS, rules.ADJACENT_PAIRS) else ""
        return self._advised(_verdict(rule, group, allowed=False), places, shape)

    def _advised(self, verdict: Verdict, places: Places, shape: str = "") -> Verdict:
        """The verdict with the nearest allowed group, if there is one."""
        text = cores_text(self.placement.topology, places)
        size = "" if len(places) == len(verdict.ranks) else ", of another size"
        advice = f"nearest allowed group{size}: {shape}{text}" if places else ""
        return attrs.evolve(verdict, nearest=places, advice=advice)

    def _parts(self, group: Ranks) -> np.ndarray:
        """The group's cores on each of its instances, (its instances, cores) bool."""
        members = list(group)
        _, row = np.unique(self.placement.node[members], return_inverse=True)
        parts = np.zeros((row.max() + 1, self.placement.topology.ranks_per_node), bool)
        parts[row, self.placement.logical_core[members]] = True
        return parts


def _verdict(rule: GroupRule, group: Ranks, *, allowed: bool) -> Verdict:
    return Verdict(-1, group, rule.id, allowed, rule.fact, rule.source)
