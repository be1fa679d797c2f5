"""Random faults × programs × places: clock and values agree, values by comparison and by oracle.

    python -m tests.faults.agreement [faults [first seed]]

Each seed draws a program of the property tests, a place, inputs and some faults. Every fault is
classified; then, whatever was proved of it, its values are played. It is an error

- if clock and values disagree on what may start or on who is stuck (`DisagreementError`),
- if a fault is said to be harmless and some output has other bits, or wrong and none has,
- if bits that flip in transfers give other outputs than whole rows performed in any order,
- if a stall has no culprit, or anything raises.
"""

import multiprocessing
import random
import sys
import time
import traceback
from collections import Counter

import numpy as np

import ncc_compiler
import ncc_runtime
from ncc_runtime.errors import LoweringError, NccError
from ncc_runtime.execution.disturbance import (
    FULL_SPEED,
    Disturbance,
    MemoryFault,
    PartSpeed,
    QueueSpeed,
    TransferFault,
)
from ncc_runtime.faults.outcome import Effect, Laboratory, differences_of
from ncc_runtime.faults.play import EndlessError
from ncc_runtime.lowering.executable import DmaQueue
from ncc_runtime.machine_model.parts import Parts
from ncc_runtime.machine_model.timing import TimingModel
from ncc_runtime.options import LoadOptions
from ncc_runtime.placement import PlaceOptions
from ncc_runtime.runtime import Model, load_on
from tests.draws_collectives import PLACES
from tests.faults.flips import flipped_in_any_order
from tests.programs import collective_program
from tests.small_executables import LOOPED

FAULTS = 10
"""Of one program on its place."""


def program_of(draw: random.Random) -> Model:
    """One or two collectives by any algorithm, or a loop of them, on a place."""
    from ncc_runtime.collectives.choose import ALGORITHMS
    from ncc_runtime.neff.placeholder import CollectiveOp

    if draw.random() < 0.15:
        ranks = draw.choice([2, 4, 8])
        text = LOOPED.replace("replica_count=4", f"replica_count={ranks}")
        text = text.replace("constant(3)", f"constant({draw.randint(0, 4)})")
        return ncc_runtime.load(ncc_compiler.compile_text(text), "trn2")
    while True:
        name, nodes, strategy, lnc = draw.choice(PLACES)
        op = draw.choice([op for op in CollectiveOp if op is not CollectiveOp.BARRIER])
        ranks = draw.randint(1, 6) * nodes
        if ranks < 2:
            continue
        algorithm = draw.choice(list(ALGORITHMS[op]))
        pairs = [(a, (a + draw.randint(1, ranks - 1)) % ranks) for a in range(ranks)]
        targets: set[int] = set()
        permuted = [(a, b) for a, b in pairs if not (b in targets or targets.add(b))]  # type: ignore[func-returns-value]
        size = draw.choice([1, 7, 100, 1025]) * ranks
        try:
            program = collective_program(
                op,
                ranks,
                [size],
                pairs=tuple(permuted) if op is CollectiveOp.PERMUTE else (),
                repeat=draw.randint(1, 2),
            )
            place = PlaceOptions(name, nodes, strategy, lnc)
            return load_on(program, place, LoadOptions({op.value: algorithm}))
        except LoweringError:
            continue


def disturbance_of(draw: random.Random, lab: Laboratory) -> tuple[str, Disturbance]:
    """A fault of any kind, and its kind; at times two together."""
    executable, trace = lab.executable, lab.trace
    rank, at_ps = draw.randrange(executable.ranks), draw.randint(0, trace.time_ps)
    rings = [n for n, queue in enumerate(executable.queues) if isinstance(queue, DmaQueue)]
    kinds = ["dead", "ring", "part", "slow part", "late rank", "memory"]
    where = None
    events = np.flatnonzero(np.isin(trace.queue, rings))
    if len(events):
        event = int(events[draw.randrange(len(events))])
        ring, sender = int(trace.queue[event]), int(trace.rank[event])
        many = int(((trace.queue == ring) & (trace.rank == sender)).sum())
        where = ring, sender, draw.randrange(many)
        kinds += ["lost", "lost", "doubled", "doubled", "late", "flip", "flip", "lost and doubled"]
    kind = draw.choice(kinds)
    model = TimingModel.from_topology(executable.topology)
    parts = Parts(executable.routes, model, executable.ranks)
    end_ps = draw.choice([2**62, at_ps + draw.randint(1, 10**8)])
    if kind == "dead":
        queues = tuple(QueueSpeed(n, rank, 0, at_ps) for n in range(len(executable.queues)))
        return kind, Disturbance(queues=queues)
    if kind == "ring":
        queue = draw.choice(rings or list(range(len(executable.queues))))
        return kind, Disturbance(queues=(QueueSpeed(queue, rank, 0, at_ps, end_ps),))
    if kind in ("part", "slow part"):
        speed = 0 if kind == "part" else FULL_SPEED // draw.randint(2, 20)
        # any parts: links, DMA engines, memory stacks, adapters
        some = [PartSpeed(draw.randrange(parts.count), speed, at_ps, end_ps) for _ in range(3)]
        return kind, Disturbance(parts=tuple(some))
    if kind == "late rank":
        return kind, Disturbance(late_start_ps={rank: draw.randint(1, 10**9)})
    if kind == "memory":
        fault = MemoryFault(
            rank, draw.randrange(executable.hbm_bytes + 8), draw.randrange(8), at_ps
        )
        return kind, Disturbance(memory=(fault,))
    assert where is not None
    if kind == "late":
        late = TransferFault(
            *where, late_ps=draw.randint(1, 10**8), longer_ps=draw.randint(0, 10**7)
        )
        return kind, Disturbance(transfers=(late,))
    if kind == "flip":
        return kind, Disturbance(
            transfers=(TransferFault(*where, flipped_bits=(draw.randrange(512),)),)
        )
    completions = 0 if kind == "lost" else 2
    faults = [TransferFault(*where, completions=completions)]
    if kind == "lost and doubled" and where[2] > 0:
        faults.append(TransferFault(*where[:2], where[2] - 1, completions=0))
    return kind, Disturbance(transfers=tuple(faults))


def tried(seed: int) -> tuple[Counter[tuple[str, str, str]], list[str]]:
    """The outcomes of the faults of one seed, and what is wrong with them."""
    draw = random.Random(seed)
    found: Counter[tuple[str, str, str]] = Counter()
    complaints: list[str] = []
    try:
        lab = program_of(draw).laboratory({}, seed=seed)
    except NccError as error:
        return Counter(), [f"seed {seed}: {error}"]
    for number in range(FAULTS):
        kind, disturbance = disturbance_of(draw, lab)
        try:
            found[judged(lab, kind, disturbance)] += 1
        except Exception:  # noqa: BLE001 — it is told, and the others go on
            complaints.append(
                f"seed {seed}, fault {number}: {disturbance}\n{traceback.format_exc()}"
            )
    return found, complaints


def judged(lab: Laboratory, kind: str, disturbance: Disturbance) -> tuple[str, str, str]:
    """Kind, effect and by what; AssertionError where outcome, clock and values disagree."""
    outcome = lab.outcome(disturbance)
    by = "proof" if outcome.is_proved else "comparison"
    key = kind, outcome.effect.value, by
    try:
        timed, played = lab.played(disturbance)
    except EndlessError:
        assert outcome.effect is Effect.ENDLESS
        return key
    except NccError:
        assert outcome.effect is Effect.ERROR
        return key
    stalls = bool(played.stuck or timed.halted)
    assert stalls == (outcome.effect is Effect.STALL), (stalls, outcome)
    if stalls:
        graph = lab.waits(outcome)
        assert graph.culprits, "a stall without a culprit"
        return key
    differs = differences_of(lab.executable, played.outputs, lab.undisturbed.outputs)
    assert (outcome.effect is Effect.WRONG) == bool(differs), (outcome, differs)
    if kind == "flip":
        inputs = lab._arrays
        assert inputs is not None
        expected = flipped_in_any_order(lab.executable, disturbance.transfers[0], inputs)
        oracle = differences_of(lab.executable, expected, lab.undisturbed.outputs)
        assert differs == oracle, (differs, oracle)
    return key


def main() -> None:
    """Try them on all processors; exit code 1 if anything is wrong."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    first = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    began = time.perf_counter()
    found: Counter[tuple[str, str, str]] = Counter()
    complaints: list[str] = []
    seeds = range(first, first + -(-count // FAULTS))
    with multiprocessing.Pool() as pool:
        for some, wrong in pool.imap_unordered(tried, seeds):
            found.update(some)
            complaints += wrong
            for line in wrong:
                print(line, file=sys.stderr, flush=True)
    for (kind, effect, by), faults in sorted(found.items()):
        print(f"{kind:<18} {effect:<14} {by:<12} {faults:>7}")
    seconds = time.perf_counter() - began
    print(f"{sum(found.values())} faults, {len(complaints)} wrong, {seconds:.0f} s")
    sys.exit(bool(complaints))


if __name__ == "__main__":
    main()
