"""An MSCCL file as a plan for any sizes: checked once, made for each placeholder that it runs."""

import attrs
import numpy as np

from ncc_runtime.collectives.chunks import Scratch
from ncc_runtime.collectives.plan import Job, Plan, Space, divisor
from ncc_runtime.errors import PlanError
from ncc_runtime.neff.placeholder import CollectiveOp, Placeholder
from ncc_runtime.neff.stages import ranks_text
from ncc_runtime.plans import msccl_file
from ncc_runtime.plans.chunk_places import BufferOffset, ChunkCounts, LoopInputs, loops
from ncc_runtime.plans.msccl_checks import CheckedResult, Ordered, ordered, performed
from ncc_runtime.plans.msccl_file import INPUT, SCRATCH, Algo
from ncc_runtime.plans.msccl_graph import Graph, graph_of, places_of
from ncc_runtime.plans.msccl_transfers import MemberTransfers, MscclFacts, TransferMaker, rounds_of


class MscclPlan:
    """A file's algorithm, checked for one operator."""

    def __init__(self, algo: Algo, op: CollectiveOp) -> None:
        self._op = op
        self._readings = [algo]
        self.warnings: dict[str, None] = {}
        """A line for each difference to what a GPU would do, in any reading that was used."""
        if algo.is_either:  # made for both: tried with two buffers first, then in place
            self._readings.append(attrs.evolve(algo, in_place=True))
        self._checked: dict[tuple[object, ...], tuple[Ordered, CheckedResult]] = {}
        self._ordered: dict[int, Ordered | PlanError] = {}  # by reading
        self.algo = algo

    @property
    def members(self) -> int:
        """Ranks of a group that it is for."""
        return self.algo.gpus

    def check(self, placeholder: Placeholder) -> tuple[Ordered, CheckedResult]:
        """PlanError if it deadlocks, races or does something else than the placeholder asks."""
        key = placeholder.root, placeholder.pairs
        if key not in self._checked:
            self._checked[key] = self._as_read(placeholder)
        return self._checked[key]

    def _as_read(self, placeholder: Placeholder) -> tuple[Ordered, CheckedResult]:
        """As MSCCL runs it; if that is wrong, as msccl-tools means it, if that is right."""
        refusals = []
        count = len(self._readings)
        for number in range(2 * count):
            written = self._readings[number % count]
            algo = written if number < count else msccl_file.adding_to_targets(written)
            if algo is written and number >= count:
                continue
            try:
                schedule = self._in_order(number, algo)
                result = performed(schedule.graph, placeholder)
            except PlanError as reason:
                refusals.append(reason)
                continue
            if number >= count:
                self.warnings[_changed_text(written, algo)] = None
            if schedule.graph.jam:
                self.warnings[schedule.graph.jam] = None
            return schedule, result
        raise refusals[0]

    def _in_order(self, number: int, algo: Algo) -> Ordered:
        """A reading without deadlock or race; PlanError if it has one."""
        if number not in self._ordered:
            try:
                self._ordered[number] = ordered(graph_of(algo, ChunkCounts.of(algo, self._op)))
            except PlanError as reason:
                self._ordered[number] = reason
        result = self._ordered[number]
        if isinstance(result, PlanError):
            raise result
        return result

    def build(self, job: Job) -> Plan:
        """The plan for the placeholder's sizes."""
        schedule, result = self.check(job.placeholder)
        graph = schedule.graph
        facts = MscclFacts(
            graph=graph,
            straight=schedule.straight,
            first=schedule.first,
            complete=result.complete,
            cleared=frozenset(
                gpu
                for gpu in range(graph.shape.gpus)
                if graph.shape.is_cleared(job.placeholder, gpu)
            ),
            divisor=divisor(job, self.members),
        )
        return _plan(facts, job)


def _changed_text(written: Algo, read: Algo) -> str:
    """A warning that names the steps that `adding_to_targets` changed; equal gpus together."""
    ours, theirs = written.steps, read.steps
    is_changed = (ours.source_buffer != theirs.source_buffer) | (
        ours.source_index != theirs.source_index
    )
    changed: dict[int, dict[int, list[int]]] = {}  # by gpu and tb: steps
    for step in np.flatnonzero(is_changed).tolist():
        block = written.blocks[ours.block[step]]
        blocks = changed.setdefault(block.gpu, {})
        blocks.setdefault(block.number, []).append(int(ours.place[step]))
    gpus: dict[tuple[tuple[int, tuple[int, ...]], ...], list[int]] = {}
    for gpu, steps_of in changed.items():
        key = tuple((block, tuple(steps)) for block, steps in steps_of.items())
        gpus.setdefault(key, []).append(gpu)
    named = [
        f"gpu{'s' if len(same) > 1 else ''} {ranks_text(same)}, "
        + ", ".join(
            f"tb {block} step{'s' * (len(at) > 1)} {ranks_text(at)}" for block, at in by_block
        )
        for by_block, same in gpus.items()
    ]
    return (
        f"{'; '.join(named)}: rrc, rrs and rrcs join what comes to their targets, as msccl-tools "
        "means them; MSCCL's executors would join it to the sources that they name, which is wrong"
    )


def _plan(facts: MscclFacts, job: Job) -> Plan:
    graph, scratch = facts.graph, Scratch()
    _, written, _ = places_of(graph.target[graph.steps.which("writes")])
    chunks = _scratch_chunks(graph, max(graph.algo.scratch_chunks))
    writes_input = bool((written == INPUT).any())
    every_loop = list(loops(LoopInputs(job, graph.shape, scratch, chunks, writes_input)))
    # the slots of each gpu lie behind the scratch that all have alike
    gpu_scratch = {gpu: Scratch() for gpu in range(graph.shape.gpus)}
    for slots in gpu_scratch.values():
        slots.take(scratch.bytes)
    transfers = MemberTransfers()
    makers = [TransferMaker(facts, loop, gpu_scratch, transfers) for loop in every_loop]
    for maker in makers:
        maker.make()
    # zeros over the results of those who get nothing
    for gpu in sorted(facts.cleared):
        known = transfers.latest([maker.ends[gpu] for maker in makers])
        for tensor, elements in enumerate(job.buffers.result_elements):
            size = elements * job.buffers.element_bytes
            transfers.add(gpu, (), BufferOffset(Space.RESULT, tensor, 0), size, 0, known)
    return Plan(
        algorithm=f"msccl:{graph.algo.name}",
        members=graph.shape.gpus,
        rounds=rounds_of(transfers, graph.shape.gpus),
        scratch_bytes=max(slots.bytes for slots in gpu_scratch.values()),
    )


def _scratch_chunks(graph: Graph, declared: int) -> int:
    """Chunks of scratch that steps use."""
    steps, used = graph.steps, 0
    for does, buffer, index in (
        (steps.which("reads"), steps.source_buffer, steps.source_index),
        (steps.which("writes"), steps.target_buffer, steps.target_index),
    ):
        ends = (index + steps.count)[does & (buffer == SCRATCH)]
        used = max(used, int(ends.max(initial=0)))
    return min(declared, used)
