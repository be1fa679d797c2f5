"""Drawn programs on drawn places, and what goes wrong in them: nothing of it for ever."""

import attrs
import numpy as np

import ncc_compiler
import ncc_runtime
from ncc_runtime.errors import LoweringError, PlacementError
from ncc_runtime.execution.disturbance import Disturbance, PartSpeed, QueueSpeed, TransferFault
from ncc_runtime.execution.trace import Trace
from ncc_runtime.lowering.executable import DmaQueue, Executable
from ncc_runtime.machine_model.parts import PartKind, Parts
from ncc_runtime.machine_model.timing import TimingModel

PLACES = (
    ("trn1", 8, 1),
    ("trn1", 32, 1),
    ("trn2", 4, 1),
    ("trn2", 8, 1),
    ("trn2", 16, 1),
    ("trn2", 64, 1),
    ("inf2.48xlarge", 8, 1),
    ("trn1", 16, 2),
    ("trn2", 8, 2),
)


@attrs.frozen
class Fault:
    name: str
    disturbance: Disturbance


def drawn_executable(rng: np.random.Generator, one_group: bool = False) -> Executable:
    """Some layers of a product, a collective, a function of each element."""
    while True:
        topology, ranks, nodes = PLACES[rng.integers(len(PLACES))]
        lines, value = [], "x"
        size = int(rng.choice([16, 64, 256, 1024]))
        for layer in range(int(rng.integers(1, 4))):
            lines.append(
                f" h{layer} = f32[{size},{size}] dot({value}, w), lhs_contracting_dims={{1}}, "
                "rhs_contracting_dims={0}"
            )
            group = ranks if one_group else int(rng.choice([ranks, ranks // 2, 2]))
            groups = np.arange(ranks).reshape(-1, group)
            if rng.integers(2):
                groups = np.arange(ranks).reshape(group, -1).T
            text = ",".join("{" + ",".join(map(str, row)) + "}" for row in groups.tolist())
            lines.append(
                f" r{layer} = f32[{size},{size}] all-reduce(h{layer}), "
                f"replica_groups={{{text}}}, to_apply=sum"
            )
            lines.append(f" y{layer} = f32[{size},{size}] tanh(r{layer})")
            value = f"y{layer}"
        body = "\n".join(lines)
        text = (
            "sum { a = f32[] parameter(0) b = f32[] parameter(1) ROOT c = f32[] add(a, b) }\n"
            f"ENTRY e {{ x = f32[{size},{size}] parameter(0) w = f32[{size},{size}] parameter(1)\n"
            f"{body}\n ROOT t = f32[{size},{size}] add({value}, x) }}\n"
        )
        placement = str(rng.choice(["linear", "spread"]))
        try:
            return ncc_runtime.load(
                ncc_compiler.compile_text(text), topology, nodes=nodes, placement=placement
            ).executable
        except (LoweringError, PlacementError):
            continue


def drawn_fault(rng: np.random.Generator, whole: Trace) -> Fault:
    """One fault that ends some time, or slows only."""
    executable = whole.executable
    parts = Parts(
        executable.routes, TimingModel.from_topology(executable.topology), executable.ranks
    )
    start = int(rng.integers(0, whole.time_ps))
    lasts = int(rng.choice([10**5, 10**6, 10**7, 10**8]))
    speed = int(rng.choice([0, 100, 2_500, 5_000, 9_000]))
    rank = int(rng.integers(executable.ranks))
    kind = str(rng.choice(["queue", "rank", "link", "part", "longer", "late", "launch"]))
    rings = [n for n, queue in enumerate(executable.queues) if isinstance(queue, DmaQueue)]
    ring = int(rng.choice(rings))
    longer, late = int(rng.integers(1, 10**7)), int(rng.integers(1, 10**7))
    if kind == "queue":
        queue = int(rng.integers(len(executable.queues)))
        made = Disturbance(queues=(QueueSpeed(queue, rank, speed, start, start + lasts),))
    elif kind == "rank":
        queues = range(len(executable.queues))
        made = Disturbance(
            queues=tuple(QueueSpeed(queue, rank, speed, start, start + lasts) for queue in queues)
        )
    elif kind in ("link", "part"):
        span = parts.span(PartKind.LINK)
        part = rng.integers(parts.count if kind == "part" else span.stop)
        made = Disturbance(parts=(PartSpeed(int(part), speed, start, start + lasts),))
    elif kind == "launch":
        made = Disturbance(late_start_ps={rank: lasts})
    else:
        nth = int(rng.integers(20))
        fault = TransferFault(
            ring,
            rank,
            nth,
            longer_ps=longer if kind == "longer" else 0,
            late_ps=late if kind == "late" else 0,
        )
        made = Disturbance(transfers=(fault,))
    return Fault(f"{kind} {made}", made)
