"""The price of a placeholder's plans: latency and bandwidth, all groups together, in picoseconds.

A round of a strand takes what its slowest first byte takes, and what its busiest part takes for the
bytes of all groups (`steps.py`); what goes into one DMA ring goes one after the other. A strand's
rounds follow one another. Where everybody passes on what came, the way of a piece leads over all
members: its flights count as average ones. Strands run in step, so their bytes add up where they
share a part; but k strands that share a link take turns there, so that a k-th of them is under way
at a time, and the last begins k-1 turns late. No more is saved than the busiest part allows, in
each stretch of rounds that go the same ways and in all (`chain.py`):

    time = signals + max(the longest chain, first byte + the busiest part over all rounds)

Every instruction of a CC-core counts: signals that it has come here, a row per transfer, a wait per
channel that something came in by, per owner and reader of operands (`meetings.py`). What others
tell is under way meanwhile, and so is what comes last.

Teams, which have plans of their own, meet in the last term only.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import attrs
import numpy as np

from ncc_runtime.collectives.chain import Chain
from ncc_runtime.collectives.machine import Groups, Machine
from ncc_runtime.collectives.plan import Plan
from ncc_runtime.collectives.reach import Reach, last_of
from ncc_runtime.parts import Kind


@attrs.frozen(eq=False)
class Price:
    """What it takes to run the plans of all groups of a placeholder, nothing else running."""

    latency_ps: int
    bandwidth_ps: int
    bound_ps_by_kind: Mapping[Kind, int]  # of bandwidth_ps: which parts were the busiest
    is_chain: bool  # rounds in turn decide, not the busiest part
    bytes_by_part: np.ndarray = attrs.field(repr=False)  # (parts,) int64, of all rounds

    @property
    def time_ps(self) -> int:
        return self.latency_ps + self.bandwidth_ps

    @property
    def decided_by(self) -> str:
        """The larger term in words: latency, or the kind of part whose bytes took longest."""
        return "latency" if self.latency_ps >= self.bandwidth_ps else self.busiest

    @property
    def busiest(self) -> str:
        """The kind of part whose bytes took longest, in words; latency where there are none."""
        if not self.bound_ps_by_kind:
            return "latency"
        return max(self.bound_ps_by_kind, key=lambda kind: self.bound_ps_by_kind[kind]).value


def priced(machine: Machine, teams: Sequence[tuple[Plan, Groups]], width: int) -> Price:
    """The price of plans that run at the same time; `width` is the size of an element."""
    seen = None if machine.fold is None else machine.fold.teams(teams)
    if seen is None:
        machine = attrs.evolve(machine, fold=None)
    chains = [Chain(machine, *one, width) for one in (teams if seen is None else seen)]
    total: np.ndarray = np.zeros(machine.vector.count, np.int64)
    for chain in chains:
        total += chain.total
    first = max((chain.first_ps for chain in chains), default=0)
    start = max((chain.start_ps + chain.end_ps for chain in chains), default=0)
    reach = last_of(*(chain.reach for chain in chains))
    busy_ps, kind = machine.busiest(total)
    is_chain = reach.end_ps >= first + busy_ps
    if not is_chain:
        reach = Reach(first, ((kind, busy_ps),))
    shares = {kind: time for kind, time in reach.busy if time}
    return Price(
        latency_ps=machine.parts.model.cc_start_ps + start + reach.latency_ps,
        bandwidth_ps=sum(shares.values()),
        bound_ps_by_kind=MappingProxyType(shares),
        is_chain=is_chain,
        bytes_by_part=total,
    )


def least_ps(machine: Machine, teams: Sequence[tuple[Plan, Groups]]) -> int:
    """No more than the price: what the rounds of a strand take if all of them go the best way."""
    parts, model = machine.parts, machine.parts.model
    efa = parts.routes.topology.efa
    start = model.dma_start_ps if efa is None else min(model.dma_start_ps, efa.latency_ps)
    told = min(model.semaphore_local_ps, model.semaphore_remote_ps)
    step = machine.row_ps + model.semaphore_local_ps + start + told
    most = 0
    for plan, _ in teams:
        rounds: Counter[int | None] = Counter()
        for one_round in plan.rounds:
            rounds.update({move.strand for move in one_round.transfers})
        most = max(most, *rounds.values(), 0)
    return model.cc_start_ps + most * step
