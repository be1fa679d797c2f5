"""The HLO texts of ranks as one text: what differs between them becomes a look-up by rank.

PyTorch numbers instructions as it meets them, so each text is first put into an order that follows
from the graph alone. Then the texts may differ in where slices begin: a rank takes its own part of
something that all of them have. Such a slice becomes a dynamic-slice with a table of beginnings.
"""

import re
from collections.abc import Sequence

from ncc_compiler.frontends.users_code import refusal

_INSTRUCTION = re.compile(r"^\s*(?P<root>ROOT )?%(?P<name>[\w.\-]+) = (?P<rest>.*)$")
_NAME = re.compile(r"%([\w.\-]+)")
_SLICE = re.compile(
    r"^(?P<head>  (?:ROOT )?%(?P<name>\S+) = (?P<type>\S+) )slice\((?P<operand>.*)\), "
    r"slice=\{(?P<ranges>[^}]*)\}$"
)
_ENTRY = "ENTRY "


def joined(texts: Sequence[str]) -> str:
    """One text for all ranks. Raises CompileError where they run different programs."""
    programs = [_ordered(text).splitlines() for text in texts]
    first, lines = programs[0], []
    for rank, program in enumerate(programs):
        if len(program) != len(first):
            counts = f"{len(first)} lines of HLO and rank {rank} {len(program)}"
            raise _different(f"rank 0 runs {counts}")
    has_tables = False
    for versions in zip(*programs, strict=True):
        if len(set(versions)) == 1:
            lines.append(versions[0])
            continue
        lines += _looked_up(versions)
        has_tables = True
    if has_tables:
        entry = next(k for k, line in enumerate(lines) if line.startswith(_ENTRY))
        lines[entry + 1 : entry + 1] = [
            "  %ncc.partition = u32[] partition-id()",
            "  %ncc.rank = s32[] convert(u32[] %ncc.partition)",
        ]
    return "\n".join(lines) + "\n"


def _ordered(text: str) -> str:
    """The text with its instructions in post-order from the root, numbered in that order."""
    head, entry, body = text.partition(f"\n{_ENTRY}")
    signature, *lines = body.split("\n")
    instructions: dict[str, str] = {}
    root = ""
    rest: list[str] = []
    for line in lines:
        match = _INSTRUCTION.match(line)
        if match is None:
            rest.append(line)
            continue
        instructions[match["name"]] = match["rest"]
        root = match["name"] if match["root"] else root
    operands = {
        name: [one for one in _NAME.findall(rest_of) if one in instructions]
        for name, rest_of in instructions.items()
    }
    order: dict[str, str] = {}
    # parameters first, in their order, then what the root needs
    starts = sorted(
        (name for name, rest_of in instructions.items() if " parameter(" in rest_of),
        key=lambda name: int(instructions[name].partition(" parameter(")[2].partition(")")[0]),
    )
    for start in (*starts, root):
        pending = [start]
        while pending:
            name = pending[-1]
            missing = [one for one in operands[name] if one not in order]
            if missing and name not in order:
                pending.extend(reversed(missing))
                continue
            pending.pop()
            order.setdefault(name, f"{_base(name)}.{len(order)}")
    computations = dict.fromkeys(
        one for name in order for one in _NAME.findall(instructions[name]) if one not in order
    )
    for number, name in enumerate(computations):
        order[name] = f"{_base(name)}.c{number}"

    def renamed(line: str) -> str:
        return _NAME.sub(lambda match: f"%{order.get(match[1], match[1])}", line)

    body = "\n".join(
        f"  {'ROOT ' if name == root else ''}%{order[name]} = {renamed(instructions[name])}"
        for name in order
        if name in instructions
    )
    signature = re.sub(r"\b(p\d+)\.\d+:", r"\1:", re.sub(r"^(%?[\w\-]+)\.\d+", r"\1", signature))
    called = _ordered_computations(renamed(head), list(order.values()))
    return f"{called}\n{entry.strip()} {signature}\n{body}\n" + "\n".join(rest)


def _base(name: str) -> str:
    return re.sub(r"[.\d]+$", "", name) or "x"


def _ordered_computations(head: str, order: Sequence[str]) -> str:
    """The header, without numbers of its own, and the computations in the order of their use."""
    header, *blocks = head.split("\n\n")
    header = re.sub(r"^(HloModule [\w\-]+)\.\d+", r"\1", header)
    place = {name: number for number, name in enumerate(order)}

    def first_use(block: str) -> int:
        return place.get(_NAME.findall(block)[0], len(place)) if "%" in block else len(place)

    kept = [_without_numbers(block.strip("\n")) for block in sorted(blocks, key=first_use)]
    return "\n\n".join([header.strip("\n"), *(block for block in kept if block)]) + "\n"


def _without_numbers(block: str) -> str:
    """A computation whose instructions are numbered from 0."""
    names: dict[str, str] = {}
    title, *body = block.split("\n")
    for line in body:
        if (match := _INSTRUCTION.match(line)) is not None:
            names[match["name"]] = f"{_base(match['name'])}.{len(names)}"
    text = _NAME.sub(lambda match: f"%{names.get(match[1], match[1])}", "\n".join(body))
    for old, new in names.items():
        title = re.sub(rf"(?<![\w.]){re.escape(old)}(?=:)", new, title)
    return f"{title}\n{text}" if body else title


def _looked_up(versions: Sequence[str]) -> list[str]:
    """The lines for a slice that begins elsewhere on each rank."""
    slices = [_SLICE.match(line) for line in versions]
    different = next(k for k, line in enumerate(versions) if line != versions[0])
    problem = _different(
        f"rank 0 and rank {different} run different programs: {_short(versions[0])} and "
        f"{_short(versions[different])}"
    )
    ranges, heads = [], set()
    for match in slices:
        if match is None:
            raise problem
        heads.add((match["head"], match["operand"]))
        ranges.append(
            [
                tuple(map(int, part.strip("[]").split(":")))
                for part in re.findall(r"\[[\d:]+\]", match["ranges"])
            ]
        )
    sizes = {tuple(end - start for start, end, *_ in one) for one in ranges}
    strides = {stride for one in ranges for _, _, *rest in one for stride in rest}
    if len(heads) != 1 or len(sizes) != 1 or strides - {1} or slices[0] is None:
        raise problem
    name, lines, starts = slices[0]["name"], [], []
    count = len(versions)
    for dimension, parts in enumerate(zip(*ranges, strict=True)):
        begins = [start for start, *_ in parts]
        label = f"ncc.{name}.{dimension}"
        starts.append(f"s32[] %{label}")
        if len(set(begins)) == 1:
            lines.append(f"  %{label} = s32[] constant({begins[0]})")
            continue
        lines += [
            f"  %{label}.all = s32[{count}]{{0}} constant({{{', '.join(map(str, begins))}}})",
            f"  %{label}.one = s32[1]{{0}} dynamic-slice(s32[{count}]{{0}} %{label}.all, "
            "s32[] %ncc.rank), dynamic_slice_sizes={1}",
            f"  %{label} = s32[] reshape(s32[1]{{0}} %{label}.one)",
        ]
    shape = ",".join(map(str, next(iter(sizes))))
    operands = ", ".join([slices[0]["operand"], *starts])
    text = f"{slices[0]['head']}dynamic-slice({operands}), dynamic_slice_sizes={{{shape}}}"
    return [*lines, text]


def _different(fact: str) -> Exception:
    return refusal(
        fact,
        advice="all ranks run one program: let what differs between them be data, as in "
        "torch.tensor(rank), and shapes be the same on all",
    )


def _short(line: str) -> str:
    text = re.sub(r"\{[\d,]*\}|%", "", line).strip()
    return f"`{text[:120]}…`" if len(text) > 120 else f"`{text}`"
