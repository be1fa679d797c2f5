"""The HLO text of one program from the traces of all ranks."""

import re
from collections.abc import Sequence
from typing import Any

import attrs
import numpy as np

from ncc_compiler.frontends.pytorch.errors import refusal
from ncc_compiler.frontends.pytorch.mirror import MARK, Collective
from ncc_compiler.ir.whole_array import WholeArray


@attrs.frozen(eq=False)
class Trace:
    """What one rank's step became."""

    text: str  # HLO, with custom calls in place of collectives
    collectives: tuple[Collective, ...]
    inputs: tuple[WholeArray, ...]
    values: tuple[np.ndarray, ...]  # of the inputs, on this rank
    outputs: tuple[WholeArray, ...]
    dtypes: tuple[Any, ...]  # torch's, of the outputs
    tree: Any  # of (args, kwargs)
    arguments: tuple[int | None, ...]  # of every leaf of the arguments, the input that it is
    returned: tuple[Any, Any]  # leaves and tree; a tensor's leaf is an `Output`


@attrs.frozen
class Output:
    """Stands for an output in what the step returns."""

    number: int


_MARKED = re.compile(
    rf'%(?P<name>custom-call[.\w]*) = (?P<type>\S+) custom-call\((?P<operand>[^)]*)\), custom_call_target="{re.escape(MARK)}".*'
    r'backend_config="(?P<number>\d+)".*$',
    re.MULTILINE,
)


def merged(name: str, traces: Sequence[Trace]) -> str:
    """The text of all ranks' program. Raises CompileError where they run different ones."""
    first = traces[0]
    for rank, trace in enumerate(traces):
        _compare(first, trace, rank)
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
        for match in _MARKED.finditer(first.text)
    }
    text = _MARKED.sub(spelled_out, first.text)
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


def _braced(ranks: Sequence[int]) -> str:
    return f"{{{','.join(map(str, ranks))}}}"


def _compare(first: Trace, other: Trace, rank: int) -> None:
    """Raises CompileError if two ranks run different programs."""
    ours, others = first.text.splitlines(), other.text.splitlines()
    for our, their in zip(ours, others, strict=False):
        if our != their:
            raise refusal(
                f"rank 0 and rank {rank} run different programs: {_short(our)} and {_short(their)}",
                advice="all ranks run one program: let what differs between them be data, as in "
                "torch.tensor(rank), and shapes be the same on all",
            )
    if len(ours) != len(others):
        raise refusal(f"rank 0 runs {len(ours)} lines of HLO, rank {rank} runs {len(others)}")
    for our, their in zip(first.collectives, other.collectives, strict=True):
        if (our.op, our.reduction, len(our.group)) != (
            their.op,
            their.reduction,
            len(their.group),
        ):
            raise refusal(f"rank 0 calls {our.op} where rank {rank} calls {their.op}", our.line)


def _short(line: str) -> str:
    text = re.sub(r"\{[\d,]*\}|%", "", line).strip()
    return f"`{text[:120]}…`" if len(text) > 120 else f"`{text}`"
