"""The HLO text of one program from the traces of all ranks."""

import itertools
import math
import re
from collections.abc import Sequence
from typing import Any

import attrs
import numpy as np

from ncc_compiler.frontends.pytorch.alike import joined
from ncc_compiler.frontends.pytorch.mirror import MARK, Collective
from ncc_compiler.frontends.users_code import refusal
from ncc_compiler.ir.whole_array import WholeArray


@attrs.frozen
class RankPart:
    """A rank's part of an input or output, which is called by the same name on all ranks."""

    name: str
    local: tuple[int, ...] | None = None  # the shape of the part
    tiles: tuple[int, ...] = ()  # into which the whole is cut, if it is known to be cut
    tile: int = 0  # that the rank has, in row-major order
    shape: tuple[int, ...] | None = None  # of the whole, if it is known


@attrs.frozen(eq=False)
class StepTrace:
    """What one rank's step became."""

    text: str  # HLO, with custom calls in place of collectives
    collectives: tuple[Collective, ...]
    inputs: tuple[RankPart, ...]
    values: tuple[np.ndarray, ...]  # of the inputs, on this rank
    outputs: tuple[RankPart, ...]
    dtypes: tuple[Any, ...]  # torch's, of the outputs
    tree: Any  # of (args, kwargs)
    arguments: tuple[int | None, ...]  # of every leaf of the arguments, the input that it is
    returned: tuple[Any, Any]  # leaves and tree; a tensor's leaf is an `Output`


@attrs.frozen
class Output:
    """Stands for an output in what the step returns."""

    number: int


_MARKED = re.compile(
    r"%(?P<name>custom-call[.\w]*) = (?P<type>\S+) custom-call\((?P<operand>[^)]*)\), "
    rf'custom_call_target="{re.escape(MARK)}".*backend_config="(?P<number>\d+)".*$',
    re.MULTILINE,
)


def merged(name: str, traces: Sequence[StepTrace]) -> str:
    """The text of all ranks' program. Raises CompileError where they run different ones."""
    first = traces[0]
    for rank, trace in enumerate(traces):
        _compare_collectives(first, trace, rank)
    text = joined([trace.text for trace in traces])
    calls = [
        tuple(dict.fromkeys(trace.collectives[number].group for trace in traces))
        for number in range(len(first.collectives))
    ]
    reductions: dict[tuple[str, str], str] = {}

    def spelled_out(match: re.Match[str]) -> str:
        number = int(match["number"])
        collective, groups = first.collectives[number], calls[number]
        text = f"%{renamed[match['name']]} = {match['type']} {collective.op}({match['operand']})"
        text += f", channel_id={number + 1}"
        text += f", replica_groups={{{','.join(_braced(group) for group in groups)}}}"
        if collective.op in ("all-reduce", "all-gather", "reduce-scatter"):
            text += ", use_global_device_ids=true"
        if collective.op in ("all-gather", "reduce-scatter", "all-to-all"):
            text += ", dimensions={0}"
        if collective.reduction:
            kind = match["type"].partition("[")[0]
            name = f"ncc_{collective.reduction}_{kind}"
            reductions[collective.reduction, kind] = name
            text += f", to_apply=%{name}"
        file, _, line = collective.line.rpartition(":")
        return f'{text}, metadata={{source_file="{file}" source_line={line}}}' if file else text

    renamed = {
        match["name"]: match["name"].replace(
            "custom-call", first.collectives[int(match["number"])].op
        )
        for match in _MARKED.finditer(text)
    }
    text = _MARKED.sub(spelled_out, text)
    text = re.sub(r"%(custom-call[.\w]*)", lambda use: f"%{renamed.get(use[1], use[1])}", text)
    header, _, rest = text.partition("\n")
    computations = "".join(
        f"\n%{name} (a: {kind}[], b: {kind}[]) -> {kind}[] {{\n"
        f"  %a = {kind}[] parameter(0)\n  %b = {kind}[] parameter(1)\n"
        f"  ROOT %r = {kind}[] {reduction}({kind}[] %a, {kind}[] %b)\n}}\n"
        for (reduction, kind), name in reductions.items()
    )
    header = re.sub(r"^HloModule [^\s,]+", f"HloModule {name}", header)
    return f"{header}, num_partitions={len(traces)}\n{computations}{rest}"


def whole(parts: Sequence[RankPart]) -> WholeArray:
    """What is known of the array that the ranks have parts of."""
    first = parts[0]
    tiles = [part.tile for part in parts]
    count = math.prod(first.tiles)
    if len(parts) == 1:
        return WholeArray(first.name, "{replicated}", first.local)
    if first.shape is None or len({part.tiles for part in parts}) > 1:
        return WholeArray(first.name)
    if count == 1:
        return WholeArray(first.name, "{replicated}", first.shape)
    copies, rest = divmod(len(parts), count)
    if rest or sorted(tiles) != sorted([*range(count)] * copies):
        return WholeArray(first.name)  # some tiles are on more ranks than others
    sizes = [*first.tiles, copies] if copies > 1 else first.tiles
    devices = sorted(range(len(parts)), key=tiles.__getitem__)
    text = f"devices=[{','.join(map(str, sizes))}]{','.join(map(str, devices))}"
    text += " last_tile_dim_replicate" if copies > 1 else ""
    return WholeArray(first.name, f"{{{text}}}", first.shape)


def _braced(ranks: Sequence[int]) -> str:
    return f"{{{','.join(map(str, ranks))}}}"


def _compare_collectives(first: StepTrace, other: StepTrace, rank: int) -> None:
    """Raises CompileError if two ranks call different collectives."""
    for mine, yours in itertools.zip_longest(first.collectives, other.collectives):
        if mine is None or yours is None or not mine.matches(yours):
            call = mine or yours
            raise refusal(
                f"rank 0 calls {mine or 'nothing'} where rank {rank} calls {yours or 'nothing'}",
                line=call.line,
                advice="all ranks call the same collectives in the same order",
            )
