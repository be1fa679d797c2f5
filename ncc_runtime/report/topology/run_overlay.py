"""What the picture of a machine shows of a program or a run on it."""

import numpy as np

from ncc_runtime.execution.disturbance import Disturbance
from ncc_runtime.lowering.choices import groups_of
from ncc_runtime.lowering.executable import Executable
from ncc_runtime.machine_model.parts import PartKind
from ncc_runtime.neff.stages import ranks_text
from ncc_runtime.report.row_texts import placeholder_text
from ncc_runtime.report.topology.overlay import FaultMark, Load, RankGroups
from ncc_runtime.report.utilisation import Utilisation, parts_of_machine


def loads_of(executable: Executable, use: Utilisation) -> dict[str, Load]:
    """What passed every link and adapter, by name, of all instances.

    Of an executable that one instance stands for, the parts of the others are those of the first.
    """
    known = {
        part.name: Load(part.bytes, part.share)
        for kind in (PartKind.LINK, PartKind.EFA)
        for part in use.parts[kind]
    }
    if executable.representatives == executable.ranks:
        return known
    parts = parts_of_machine(executable)
    loads: dict[str, Load] = {}
    for kind in (PartKind.LINK, PartKind.EFA):
        span = parts.span(kind)
        directions = 2 if kind is PartKind.EFA else 1
        both = np.arange(span.start, span.stop).reshape(directions, executable.topology.nodes, -1)
        for direction in both:
            for first, *others in direction.T.tolist():
                if load := known.get(parts.name(first)):
                    loads |= dict.fromkeys(map(parts.name, (first, *others)), load)
    return loads


def divisions_of(executable: Executable) -> list[RankGroups]:
    """Every way in which collectives divide the ranks, those of most collectives first.

    Collectives of all ranks, or of groups of one, divide nothing.
    """
    program = executable.program
    alike: dict[tuple[tuple[int, ...], ...], list[int]] = {}
    for number, placeholder in enumerate(program.placeholders):
        groups = tuple(sorted(tuple(group) for group in groups_of(program, placeholder)))
        if len(groups) > 1 and not placeholder.pairs and max(map(len, groups)) > 1:
            alike.setdefault(groups, []).append(number)
    found = []
    for groups, ids in alike.items():
        group = np.full(program.ranks, -1, np.int64)
        for number, ranks in enumerate(groups):
            group[list(ranks)] = number
        more = f" and {len(ids) - 1} more" if len(ids) > 1 else ""
        sizes = " or ".join(map(str, sorted({len(ranks) for ranks in groups})))
        name = f"{placeholder_text(executable, ids[0])}{more}: {len(groups)} groups of {sizes}"
        found.append(RankGroups(tuple(ids), name, group, tuple(map(ranks_text, groups))))
    return sorted(found, key=lambda each: -len(each.ids))


def fault_mark(executable: Executable, name: str, disturbance: Disturbance) -> FaultMark:
    """What a fault during the run touches."""
    parts, topology = parts_of_machine(executable), executable.topology
    spans = {kind: parts.span(kind) for kind in PartKind}
    links, adapters, ranks = set[int](), set[tuple[int, int]](), set[int]()
    for one in disturbance.parts:
        kind = parts.kind(one.part)
        at = one.part - spans[kind].start
        if kind is PartKind.LINK:
            links.add(at)
        elif kind is PartKind.EFA and topology.efa is not None:
            within = at % (topology.efa.adapters * topology.nodes)
            adapters.add(divmod(within, topology.efa.adapters))
        elif kind is PartKind.DMA:
            ranks.add(at // parts.groups)
        elif kind is not PartKind.HBM:
            ranks.add(at % parts.ranks)
    ranks |= {one.rank for one in disturbance.queues}
    ranks |= {one.rank for one in disturbance.transfers}
    ranks |= {one.rank for one in disturbance.memory} | set(disturbance.late_start_ps)
    return FaultMark(name, links, adapters, ranks)
