"""An ordered trace as HLO text: a program for the ranks that do the same.

An instruction is `ncc.work`, which has sizes and no values; a collective moves an operand of its
size, which an `ncc.work` gives. What a node depends on are its operands.

Which ranks have one program is found by colour refinement (Paige and Tarjan, 1987): first those
whose items look alike, then of these those whose partners are at the same places of the same
programs, until nothing changes. Collectives at one place of a program then are one, over several
groups. They wait for one another in no other order than single ones do: if programs had to wait
in a circle, every rank of one would wait for some rank of the next, and going on so comes back to
a rank, against the order of all ranks.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence

import attrs

from ncc_compiler.frontends.chakra.files import TraceNode, read_trace, refusal, trace_name
from ncc_compiler.frontends.chakra.meetings import (
    Item,
    Meeting,
    Members,
    OrderedRanks,
    ordered,
)
from ncc_compiler.frontends.foreign import ModelText
from ncc_runtime.neff.shared.chakra import (
    DTYPE,
    ELEMENTS,
    ENGINE,
    REDUCTION,
    ROOT,
    WRITTEN,
    CommType,
    NodeType,
)
from ncc_runtime.neff.shared.dtypes import DType
from ncc_runtime.neff.shared.reductions import Reduction, is_defined
from ncc_runtime.progress import phase

MOST_STREAMS = 4
"""Of a rank; further ones of a trace share the last."""

_MOST_AMOUNT = 2**60
_ENGINES = ("Tensor", "Vector", "Scalar", "GpSimd", "Sync")
_HOST = "Sync"
"""The queue of what a host does, and of loads and stores: none of the others computes beside it."""


@attrs.frozen(eq=False)
class RankProgram:
    """The program of some ranks."""

    name: str
    model: ModelText
    ranks: tuple[int, ...]  # ascending


def read_programs(
    model: str, groups_file: str | None = None, *, durations: bool = True
) -> tuple[RankProgram, ...]:
    """The programs of a trace; their ranks are all, and each rank has one.

    `model` is as for `trace_name`. `durations` of instructions are taken as they are in the trace,
    where it has some; otherwise their sizes say how long they take. Raises CompileError (chakra-C1
    to -C7), OSError if a file cannot be read.
    """
    found = trace_name(model)
    if found is None:
        raise refusal(
            "chakra-C1",
            f"{model}: there is no trace of that name",
            "name a folder with NAME.0.et, NAME.1.et and so on, or one of these files",
        )
    with phase("reading the trace", ""):
        trace = read_trace(*found, groups_file)
        texts = _ProgramTexts(ordered(trace), len(trace.ranks), durations)
        programs = []
        for ranks in texts.ranks_alike():
            name = re.sub(r"[^\w.-]", "_", trace.name) or "trace"
            text = texts.of(name, ranks)
            programs.append(RankProgram(name, ModelText(text, is_partitioned=True), ranks))
    return tuple(programs)


class _ProgramTexts:
    """Programs of an ordered trace."""

    def __init__(self, trace: OrderedRanks, ranks: int, durations: bool) -> None:
        self._meetings, self._items, self._ranks = trace.meetings, trace.items, ranks
        self._durations = durations
        # by meeting, where it stands on each of its ranks
        self._places: list[dict[int, int]] = [{} for _ in trace.meetings]
        for rank, items in enumerate(trace.items):
            for at, item in enumerate(items):
                if item.meeting is not None:
                    self._places[item.meeting][rank] = at
        numbers = sorted({meeting.what.stream for meeting in trace.meetings})
        self._stream = {number: min(at, MOST_STREAMS - 1) for at, number in enumerate(numbers)}

    # ---- who does the same

    def ranks_alike(self) -> list[tuple[int, ...]]:
        """The ranks of each program, by their first."""
        colour = _numbered(tuple(map(self._look, items)) for items in self._items)
        while True:
            met = [self._partners(number, colour) for number in range(len(self._meetings))]
            refined = _numbered(
                (
                    colour[rank],
                    tuple(met[item.meeting][rank] for item in items if item.meeting is not None),
                )
                for rank, items in enumerate(self._items)
            )
            if max(refined, default=0) == max(colour, default=0):
                break
            colour = refined
        ranks_of: dict[int, list[int]] = {}
        for rank, number in enumerate(colour):
            ranks_of.setdefault(number, []).append(rank)
        return sorted(map(tuple, ranks_of.values()))

    def _look(self, item: Item) -> object:
        """What of an item is in the text of a program, but for names, groups and pairs."""
        if item.meeting is None:
            return item.deps, self._work(item.node)
        meeting = self._meetings[item.meeting]
        attributes = meeting.node.attributes
        only_ours = (attributes.get(name) for name in (DTYPE, REDUCTION, ROOT))
        return item.deps, meeting.what, tuple(only_ours)

    def _partners(self, number: int, colour: Sequence[int]) -> Mapping[int, object]:
        """By rank of a meeting, at which places of which programs the others are."""
        meeting, places = self._meetings[number], self._places[number]
        where = {rank: (colour[rank], at) for rank, at in places.items()}
        if meeting.what.kind is not None:
            return dict.fromkeys(places, tuple(sorted(where.values())))
        targets = dict(meeting.pairs)
        sources = {target: source for source, target in meeting.pairs}
        return {
            rank: (where.get(targets.get(rank, -1)), where.get(sources.get(rank, -1)))
            for rank in places
        }

    # ---- text

    def of(self, name: str, ranks: Sequence[int]) -> str:
        """The program of ranks that do the same."""
        items = self._items[ranks[0]]
        has_users = {dep for item in items for dep in item.deps}
        carried = self._carried(items)
        names = _Names()
        value: list[str] = []  # by item, the name of its value
        lines, regions = list[str](), dict[str, str]()
        for at, item in enumerate(items):
            operands = [value[dep] for dep in item.deps]
            value.append(names.of(item.node.name, at))
            if item.meeting is None:
                kind = "u8[1]"
                if (user := carried.get(at)) is not None:
                    kind = self._shape(items[user])
                lines.append(_work_line(value[at], kind, operands, self._work(item.node)))
                continue
            if carried.get(item.deps[0] if item.deps else None) != at:
                operand = f"{value[at]}.in"
                kind = self._shape(item)
                lines.append(_work_line(operand, kind, operands, {"engine": "GpSimd"}))
                operands = [operand]
            lines.append(self._exchange_line(value[at], operands[0], item, at, ranks, regions))
        last = [value[at] for at in range(len(items)) if at not in has_users]
        lines.append("ROOT " + _work_line(names.of("end", len(items)), "u8[1]", last, _NOTHING))
        head = f"HloModule {name}, replica_count={self._ranks}"
        entry = "\n".join(f"  {line}" for line in lines)
        return "\n\n".join([head, *regions.values(), f"ENTRY main {{\n{entry}\n}}"]) + "\n"

    def _carried(self, items: Sequence[Item]) -> Mapping[int | None, int]:
        """Instructions that give a collective its operand: the only thing that it waits for."""
        carried: dict[int | None, int] = {}
        for at, item in enumerate(items):
            if item.meeting is not None and len(item.deps) == 1:
                dep = item.deps[0]
                if items[dep].meeting is None:
                    carried.setdefault(dep, at)
        return carried

    def _shape(self, item: Item) -> str:
        assert item.meeting is not None, "of collectives"
        dtype, elements = _operand(self._meetings[item.meeting])
        return f"{dtype.value}[{elements}]"

    def _work(self, node: TraceNode) -> Mapping[str, str | int]:
        """The attributes of an instruction's ncc.work."""
        if node.kind is NodeType.COMM_COLL:  # of one rank, or of no bytes
            return _NOTHING
        engine = node.attributes.get(ENGINE)
        is_host = node.attributes.get("is_cpu_op") is True
        if engine not in _ENGINES:
            is_compute = node.kind is NodeType.COMP and not is_host
            engine = "Tensor" if is_compute else _HOST
        work: dict[str, str | int] = {"engine": str(engine)}
        if not is_host:
            work |= _sizes(node)
        dtype = node.attributes.get(DTYPE)
        if dtype in _DTYPES:
            work["dtype"] = str(dtype)
        if self._durations and node.duration_ps is not None:
            work["duration_ps"] = _amount(node, "a duration in ps", node.duration_ps)
        return work

    def _exchange_line(
        self,
        name: str,
        operand: str,
        item: Item,
        at: int,
        ranks: Sequence[int],
        regions: dict[str, str],
    ) -> str:
        assert item.meeting is not None, "of collectives"
        meeting = self._meetings[item.meeting]
        met = dict.fromkeys(self._items[rank][at].meeting for rank in ranks)
        together = [self._meetings[number] for number in met if number is not None]
        dtype, elements = _operand(meeting)
        stream = self._stream[meeting.what.stream]
        on_stream = f', frontend_attributes={{stream_id="{stream}"}}' if stream else ""
        if meeting.what.kind is None:
            pairs = sorted(pair for one in together for pair in one.pairs)
            listed = ",".join(f"{{{source},{target}}}" for source, target in pairs)
            return (
                f"{name} = {dtype.value}[{elements}] collective-permute({operand}), "
                f"source_target_pairs={{{listed}}}{on_stream}"
            )
        groups = self._whole(meeting, sorted(one.group for one in together))
        return _collective_line(name, operand, meeting, groups, regions) + on_stream

    def _whole(self, meeting: Meeting, groups: Sequence[Members]) -> list[Members]:
        """The groups, and others for ranks of other programs, which XLA wants to be named.

        Whoever has no rank in a group leaves it out when programs are joined.
        """
        named = {rank for group in groups for rank in group}
        others = [rank for rank in range(self._ranks) if rank not in named]
        if meeting.what.kind is CommType.BROADCAST or not others:
            return [*groups]
        size = 1 if meeting.what.kind in _ANY_SIZES else meeting.what.members
        if len(others) % size:
            assert meeting.what.kind is not None, "of collectives"
            raise refusal(
                "chakra-C7",
                f"{meeting.node.name}: {meeting.what.kind.name} over groups of {size} ranks; the "
                f"{len(others)} other ranks of the trace make no such groups, and those of an XLA "
                "program are of one size",
                "give the trace as many ranks as groups of that size need",
            )
        return [*groups, *(tuple(others[k : k + size]) for k in range(0, len(others), size))]


_ANY_SIZES = (CommType.ALL_REDUCE, CommType.REDUCE, CommType.BARRIER)
_NOTHING: Mapping[str, str | int] = {"engine": "GpSimd"}
_DTYPES = frozenset(dtype.value for dtype in DType)


def _numbered(keys: Iterable[object]) -> list[int]:
    """A number for each key, equal ones the same, in the order of first appearance."""
    numbers: dict[object, int] = {}
    return [numbers.setdefault(_hashable(key), len(numbers)) for key in keys]


def _hashable(key: object) -> object:
    if isinstance(key, Mapping):
        return tuple(sorted(key.items()))
    return tuple(map(_hashable, key)) if isinstance(key, tuple) else key


def _sizes(node: TraceNode) -> Mapping[str, int]:
    """Flops, elements and bytes of an instruction, those that there are."""
    operations, size, elements, written = (
        _amount(node, key, node.attributes.get(key, 0))
        for key in ("num_ops", "tensor_size", ELEMENTS, WRITTEN)
    )
    if node.kind is NodeType.MEM_STORE:
        written = size
    written = min(written, size)
    sizes = {
        "flops": max(0, operations - elements),
        "elements": elements,
        "bytes_read": size - written,
        "bytes_written": written,
    }
    return {name: amount for name, amount in sizes.items() if amount}


def _amount(node: TraceNode, key: str, value: object) -> int:
    if type(value) is not int or not 0 <= value <= _MOST_AMOUNT:
        fact = f"node {node.id} ({node.name}) has {value!r} as {key}"
        raise refusal("chakra-C2", fact, "a whole number of 0 to 2**60")
    return value


def _operand(meeting: Meeting) -> tuple[DType, int]:
    """The element type and the elements of what a rank gives; rounded up to a share for each."""
    size, written = meeting.what.size_bytes, meeting.node.attributes.get(DTYPE)
    likely = DType.U8 if size % 2 else DType.BF16
    dtype = DType(written) if written in _DTYPES else likely
    elements = max(1, -(-size // dtype.size_bytes))
    if meeting.what.kind in _IN_SHARES:
        elements = -(-elements // meeting.what.members) * meeting.what.members
    return dtype, elements


def _reduction(meeting: Meeting) -> Reduction:
    """How a collective joins operands: as we wrote it, otherwise it adds them up."""
    written = meeting.node.attributes.get(REDUCTION, Reduction.ADD.value)
    dtype, _ = _operand(meeting)
    known = [one.value for one in Reduction if is_defined(one, dtype)]
    if written not in known:
        node = meeting.node
        fact = f"node {node.id} ({node.name}) has {written!r} as {REDUCTION}"
        raise refusal("chakra-C4", fact, f"of {dtype.value} known are {', '.join(known)}")
    return Reduction(written)


def _root(meeting: Meeting) -> int:
    """The place of the root in each group: the first, if we have not written another one."""
    root, node = meeting.node.attributes.get(ROOT, 0), meeting.node
    if type(root) is not int or not 0 <= root < meeting.what.members:
        fact = f"node {node.id} ({node.name}) has {root!r} as {ROOT}"
        raise refusal("chakra-C4", fact, f"a place in a group of {meeting.what.members} ranks")
    return root


_IN_SHARES = (
    CommType.REDUCE_SCATTER,
    CommType.REDUCE_SCATTER_BLOCK,
    CommType.ALL_TO_ALL,
    CommType.SCATTER,
)
"""Collectives whose operand has a share for each member."""


class _Names:
    """Names of values: those of the trace as far as HLO takes them, each once."""

    def __init__(self) -> None:
        self._taken: set[str] = set()

    def of(self, name: str, at: int) -> str:
        """The name of item `at`."""
        base = re.sub(r"[^A-Za-z0-9_.-]", "_", name)[:64]
        if not re.match(r"[A-Za-z_]", base) or base in self._taken or base.endswith(".in"):
            base = f"{base or 'node'}.n{at}"
            base = base if re.match(r"[A-Za-z_]", base) else f"n{base}"
            while base in self._taken:
                base += "_"
        self._taken.add(base)
        return base


def _work_line(name: str, kind: str, operands: Sequence[str], work: Mapping[str, str | int]) -> str:
    config = json.dumps(work, separators=(",", ":"))
    return (
        f'{name} = {kind} custom-call({", ".join(operands)}), custom_call_target="ncc.work", '
        f"backend_config={config}"
    )


def _collective_line(
    name: str,
    operand: str,
    meeting: Meeting,
    groups: Sequence[Members],
    regions: dict[str, str],
) -> str:
    """The instruction of a collective; its reduction becomes a region."""
    kind, members = meeting.what.kind, meeting.what.members
    dtype, elements = _operand(meeting)
    listed = "{" + ",".join("{" + ",".join(map(str, group)) + "}" for group in groups) + "}"
    type_of = dtype.value
    in_json = json.dumps([list(group) for group in groups], separators=(",", ":"))
    root = _root(meeting)
    reduction = _reduction(meeting)

    def custom(target: str, size: int, **config: object) -> str:
        keys = "".join(f",{json.dumps(key)}:{json.dumps(value)}" for key, value in config.items())
        return (
            f'{name} = {type_of}[{size}] custom-call({operand}), custom_call_target="{target}", '
            f'backend_config={{"replica_groups":{in_json}{keys}}}'
        )

    def with_region(op: str, size: int, more: str = "") -> str:
        region = f"{reduction.value}_{type_of}"
        regions[region] = (
            f"{region} {{\n  a = {type_of}[] parameter(0)\n  b = {type_of}[] parameter(1)\n"
            f"  ROOT c = {type_of}[] {reduction.value}(a, b)\n}}"
        )
        return (
            f"{name} = {type_of}[{size}] {op}({operand}), replica_groups={listed}{more}, "
            f"to_apply={region}"
        )

    is_average = reduction is Reduction.AVERAGE
    match kind:
        case CommType.ALL_REDUCE if is_average:
            return custom("ncc.avg_all_reduce", elements)
        case CommType.ALL_REDUCE:
            return with_region("all-reduce", elements)
        case CommType.REDUCE_SCATTER | CommType.REDUCE_SCATTER_BLOCK if is_average:
            return custom("ncc.avg_reduce_scatter", elements // members, dimensions=[0])
        case CommType.REDUCE_SCATTER | CommType.REDUCE_SCATTER_BLOCK:
            return with_region("reduce-scatter", elements // members, ", dimensions={0}")
        case CommType.ALL_GATHER:
            return (
                f"{name} = {type_of}[{elements * members}] all-gather({operand}), "
                f"replica_groups={listed}, dimensions={{0}}"
            )
        case CommType.ALL_TO_ALL:
            return (
                f"{name} = {type_of}[{elements}] all-to-all({operand}), replica_groups={listed}, "
                "dimensions={0}"
            )
        case CommType.BROADCAST:
            # HLO broadcasts from the first of a group
            first = [(group[root], *group[:root], *group[root + 1 :]) for group in groups]
            listed = "{" + ",".join("{" + ",".join(map(str, one)) + "}" for one in first) + "}"
            return (
                f"{name} = {type_of}[{elements}] collective-broadcast({operand}), "
                f"replica_groups={listed}"
            )
        case CommType.REDUCE:
            return custom("ncc.reduce", elements, root=root, reduction=reduction.value)
        case CommType.GATHER:
            return custom("ncc.gather", elements * members, root=root, dimensions=[0])
        case CommType.SCATTER:
            return custom("ncc.scatter", elements // members, root=root, dimensions=[0])
        case CommType.BARRIER:
            return custom("ncc.barrier", elements)
        case _:
            raise AssertionError(kind)
