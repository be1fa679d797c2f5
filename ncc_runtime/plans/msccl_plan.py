"""An MSCCL file as a plan for any sizes: checked once, made for each placeholder that it fills."""

from collections.abc import Mapping

import attrs

from ncc_runtime.collectives.extents import Scratch
from ncc_runtime.collectives.plan import Job, Plan, Space, divisor
from ncc_runtime.errors import PlanError
from ncc_runtime.neff.placeholder import CollectiveOp, Placeholder
from ncc_runtime.plans import msccl
from ncc_runtime.plans.claims import Performed, performed
from ncc_runtime.plans.clocks import Clocks, Uses, accesses, read_first
from ncc_runtime.plans.columns import rounds_of
from ncc_runtime.plans.loops import FROM_OPERAND, Stretch, loops
from ncc_runtime.plans.loops import Making as Wanted
from ncc_runtime.plans.making import Making
from ncc_runtime.plans.msccl import Algo, Buffer
from ncc_runtime.plans.shapes import Shape
from ncc_runtime.plans.singles import Single, latest, rounds_before
from ncc_runtime.plans.slots import Facts
from ncc_runtime.plans.steps import Graph, graph_of

Straight = Mapping[tuple[str, int], bool]
"""By how operands come to where steps read them (`Loop.start`), and the receive."""


class MscclPlan:
    """A file's algorithm, checked for one operator."""

    def __init__(self, algo: Algo, op: CollectiveOp) -> None:
        self._op = op
        self._readings = [algo]
        if algo.is_either:  # for both; what is right apart is copied apart
            self._readings.append(attrs.evolve(algo, in_place=True))
        meant = map(msccl.adding_to_targets, tuple(self._readings))
        self._readings += [one for one in meant if one not in self._readings]
        self._checked: dict[tuple[object, ...], tuple[Ordered, Performed]] = {}
        self._ordered: dict[int, Ordered] = {}  # by reading
        self.algo = algo

    @property
    def members(self) -> int:
        """Ranks of a group that it is for."""
        return len(self.algo.gpus)

    def check(self, placeholder: Placeholder) -> "tuple[Ordered, Performed]":
        """PlanError if it deadlocks, races or does something else than the placeholder asks."""
        key = placeholder.root, placeholder.pairs
        if key not in self._checked:
            self._checked[key] = self._as_read(placeholder)
        return self._checked[key]

    def _as_read(self, placeholder: Placeholder) -> "tuple[Ordered, Performed]":
        """As MSCCL runs it; if that is wrong, as msccl-tools means it, should that be right."""
        refusals = []
        for number, algo in enumerate(self._readings):
            try:
                if number not in self._ordered:
                    self._ordered[number] = _ordered(algo, self._op)
                return self._ordered[number], performed(self._ordered[number].graph, placeholder)
            except PlanError as reason:
                refusals.append(reason)
        raise refusals[0]

    def build(self, job: Job) -> Plan:
        """The plan for the placeholder's sizes."""
        ordered, found = self.check(job.placeholder)
        graph = ordered.graph
        facts = Facts(
            graph=graph,
            straight=ordered.straight,
            first=ordered.first,
            complete=found.complete,
            cleared=frozenset(
                gpu
                for gpu in range(graph.shape.gpus)
                if graph.shape.is_cleared(job.placeholder, gpu)
            ),
            divisor=divisor(job, self.members),
        )
        return _plan(facts, job)


@attrs.frozen(eq=False)
class Ordered:
    """A plan without deadlock or race."""

    graph: Graph
    straight: Straight  # which receives need no slot
    first: frozenset[tuple[int, int]]  # of `read_first`


def _ordered(algo: Algo, op: CollectiveOp) -> Ordered:
    """The graph of a plan; PlanError for a deadlock or a race."""
    graph = graph_of(algo, Shape.of(algo, op))
    used = accesses(graph)
    straight: dict[tuple[str, int], bool] = {}
    heard: dict[int, bool] = {}
    for gpus, known in Clocks(graph).by_gpus():
        own = {chunk: its for chunk, its in used.items() if chunk[0] in gpus}
        for receive, is_free, is_first in Uses(graph, own, known).straight():
            node = graph.nodes[receive]
            before = not node.step.kind.joins
            straight["", receive] = straight.get(("", receive), before) and is_free
            before = straight.get((FROM_OPERAND, receive), before)
            straight[FROM_OPERAND, receive] = before and (is_free or is_first)
            if receive not in heard:
                heard[receive] = known.is_heard_of(receive, graph.sent[receive])
            for buffer in (Buffer.INPUT, Buffer.OUTPUT):
                is_fetched = node.target.buffer is buffer
                free = straight["", receive] and (heard[receive] or not is_fetched)
                straight[buffer.value, receive] = free
    return Ordered(graph, straight, read_first(used))


def _plan(facts: Facts, job: Job) -> Plan:
    graph, scratch = facts.graph, Scratch()
    writes_input = any(
        node.step.kind.writes and node.target.buffer is Buffer.INPUT for node in graph.nodes
    )
    chunks = max(gpu.scratch_chunks for gpu in graph.algo.gpus)
    wanted = Wanted(job, graph.shape, scratch, _scratch_chunks(graph, chunks), writes_input)
    its_loops = list(loops(wanted))
    own = {gpu: Scratch() for gpu in range(graph.shape.gpus)}
    for one in own.values():
        one.take(scratch.bytes)
    makings = [Making(facts, loop, own) for loop in its_loops]
    singles = [single for making in makings for single in making.make()]
    singles += _cleared(facts, job, makings)
    return Plan(
        algorithm=f"msccl:{graph.algo.name}",
        members=graph.shape.gpus,
        rounds=rounds_of(singles, graph.shape.gpus),
        scratch_bytes=max(one.bytes for one in own.values()),
    )


def _scratch_chunks(graph: Graph, declared: int) -> int:
    """Chunks of scratch that steps use."""
    used = [
        ref.index + node.step.count
        for node in graph.nodes
        for does, ref in (
            (node.step.kind.reads, node.source),
            (node.step.kind.writes, node.target),
        )
        if does and ref.buffer is Buffer.SCRATCH
    ]
    return min(declared, max(used, default=0))


def _cleared(facts: Facts, job: Job, makings: list[Making]) -> list[Single]:
    """Zeros over the results of those who get nothing."""
    found = []
    for gpu in sorted(facts.cleared):
        known = latest(making.ends[gpu] for making in makings)
        for tensor, elements in enumerate(job.buffers.result_elements):
            size = elements * job.buffers.element_bytes
            single = Single(gpu, gpu, (), Stretch(Space.RESULT, tensor, 0), size, 0, known)
            single.round = rounds_before(single)
            single.needs = {way: one for way, one in known.items() if way != single.completion}
            found.append(single)
    return found
