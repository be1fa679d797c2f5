"""Random training steps over exact integers: what the passes of `ncc_compiler/overlap` look for.

Layers with tensor-parallel sums, sharded weights, gradients of several sizes, own parts of sums,
tokens, and loops around some of it. All arrays are integers, so every order of a reduction gives
the same bits.
"""

import attrs
import numpy as np
from hypothesis import strategies as st

RANKS, SIZE = 4, 8
_HEADER = """HloModule step, replica_count=1, num_partitions=4

add32 {{
  a = s32[] parameter(0)
  b = s32[] parameter(1)
  ROOT c = s32[] add(a, b)
}}

max32 {{
  a = s32[] parameter(0)
  b = s32[] parameter(1)
  ROOT c = s32[] maximum(a, b)
}}
"""
_GROUPS = ("{{0,1,2,3}}", "{{0,2},{1,3}}", "{{0,1},{2,3}}")
_MEANING = "replica_groups={}, channel_id=1, use_global_device_ids=true"


@attrs.define
class _Lines:
    """A computation in the making, as text."""

    draw: st.DrawFn
    lines: list[str] = attrs.field(factory=list)
    arrays: list[str] = attrs.field(factory=list)  # s32[8,8]
    results: list[tuple[str, str]] = attrs.field(factory=list)  # name and type
    token: str = ""

    def add(self, kind: str, text: str) -> str:
        name = f"v{len(self.lines)}"
        self.lines.append(f"  {name} = {kind} {text}")
        return name

    def choose(self, *options: str) -> str:
        return self.draw(st.sampled_from(options))

    def array(self) -> str:
        return self.draw(st.sampled_from(self.arrays[-4:]))

    def computed(self) -> str:
        """A new array: a product, or something elementwise."""
        one, other, whole = self.array(), self.array(), "s32[8,8]"
        dot = f"dot({one}, {other}), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}"
        texts = (dot, dot, f"add({one}, {other})", f"subtract({one}, {other})")
        found = self.add(whole, self.choose(*texts))
        self.arrays.append(found)
        return found

    def collective(self, op: str, kind: str, operands: str, more: str) -> str:
        groups = _MEANING.format(more.partition(";")[2] or self.choose(*_GROUPS))
        stream = self.choose("", "", ', frontend_attributes={stream_id="2"}')
        return self.add(kind, f"{op}({operands}), {groups}{more.partition(';')[0]}{stream}")


def _tensor_parallel(body: _Lines) -> None:
    summed = body.collective("all-reduce", "s32[8,8]", body.computed(), ", to_apply=add32")
    body.arrays.append(summed)


def _gathered_weights(body: _Lines) -> None:
    """Rows of a weight that other ranks have, which are known before any compute."""
    own = body.add("s32[2,8]", "slice(w), slice={[0:2], [0:8]}")
    more = ", dimensions={0};{{0,1,2,3}}"
    weights = body.collective("all-gather", "s32[8,8]", own, more)
    dims = "lhs_contracting_dims={1}, rhs_contracting_dims={0}"
    body.arrays.append(body.add("s32[8,8]", f"dot({body.array()}, {weights}), {dims}"))


def _gradient(body: _Lines) -> None:
    """A sum of few elements or many, with an update behind it."""
    rows = body.choose("1", "3", "8")
    kind = f"s32[{rows},8]"
    part = body.add(kind, f"slice({body.computed()}), slice={{[0:{rows}], [0:8]}}")
    region = body.choose("add32", "add32", "max32")
    summed = body.collective("all-reduce", kind, part, f", to_apply={region}")
    old = body.add(kind, f"slice(w), slice={{[0:{rows}], [0:8]}}")
    body.results.append((body.add(kind, f"subtract({old}, {summed})"), kind))


def _joined_gradients(body: _Lines) -> None:
    """Gradients that were joined into one collective, as XLA does."""
    rows = [body.choose("1", "8") for _ in range(body.draw(st.integers(2, 3)))]
    kinds = [f"s32[{count},8]" for count in rows]
    parts = [
        body.add(kind, f"slice({body.computed()}), slice={{[0:{count}], [0:8]}}")
        for count, kind in zip(rows, kinds, strict=True)
    ]
    whole = f"({', '.join(kinds)})"
    summed = body.collective("all-reduce", whole, ", ".join(parts), ", to_apply=add32")
    for k, kind in enumerate(kinds):
        body.results.append((body.add(kind, f"get-tuple-element({summed}), index={k}"), kind))


def _own_part(body: _Lines) -> None:
    """A sum of which every rank goes on with its rows, or with other rows."""
    summed = body.collective(
        "all-reduce", "s32[8,8]", body.computed(), ", to_apply=add32;{{0,1,2,3}}"
    )
    other = body.choose("w", body.array())
    moved = body.choose(summed, body.add("s32[8,8]", f"multiply({summed}, {other})"))
    step = body.choose("2", "2", "2", "1")
    rank = body.add("s32[]", f"convert({body.add('u32[]', 'partition-id()')})")
    start = body.add("s32[]", f"multiply({rank}, {body.add('s32[]', f'constant({step})')})")
    zero = body.add("s32[]", "constant(0)")
    sizes = "dynamic_slice_sizes={2,8}"
    part = body.add("s32[2,8]", f"dynamic-slice({moved}, {start}, {zero}), {sizes}")
    body.results.append((part, "s32[2,8]"))


def _with_token(body: _Lines) -> None:
    """A sum that hands a token on; some programs give the token back as a result."""
    token = body.token or body.add("s32[]", "constant(0)")
    whole = body.add(
        "(s32[8,8], s32[])",
        f"all-reduce({body.computed()}, {token}), to_apply=add32, "
        f'{_MEANING.format(_GROUPS[0])}, frontend_attributes={{has_token="1",stream_id="0"}}',
    )
    body.arrays.append(body.add("s32[8,8]", f"get-tuple-element({whole}), index=0"))
    body.token = body.add("s32[]", f"get-tuple-element({whole}), index=1")
    if body.draw(st.integers(0, 5)) == 0:
        body.results.append((body.token, "s32[]"))


def _scattered(body: _Lines) -> None:
    more = ", dimensions={0}, to_apply=add32;{{0,1,2,3}}"
    part = body.collective("reduce-scatter", "s32[2,8]", body.computed(), more)
    body.results.append((part, "s32[2,8]"))


_PARTS = (_tensor_parallel, _gathered_weights, _gradient, _gradient, _own_part, _with_token)
_PARTS += (_scattered, _joined_gradients)


def _loop(draw: st.DrawFn) -> str:
    """A body that runs three times over a counter, an array, and a weight that stays."""
    body = _Lines(draw)
    body.lines += [
        "  state = (s32[], s32[8,8], s32[8,8]) parameter(0)",
        "  k = s32[] get-tuple-element(state), index=0",
        "  x = s32[8,8] get-tuple-element(state), index=1",
        "  w = s32[8,8] get-tuple-element(state), index=2",
        "  one = s32[] constant(1)",
        "  more = s32[] add(k, one)",
    ]
    body.arrays += ["x", "w"]
    for part in draw(st.lists(st.sampled_from(_PARTS), min_size=1, max_size=4)):
        part(body)
    for name, kind in body.results:
        if kind == "s32[8,8]":
            body.arrays.append(body.add("s32[8,8]", f"add({body.array()}, {name})"))
    body.lines.append(f"  ROOT new = (s32[], s32[8,8], s32[8,8]) tuple(more, {body.array()}, w)")
    condition = """going {
  state = (s32[], s32[8,8], s32[8,8]) parameter(0)
  k = s32[] get-tuple-element(state), index=0
  three = s32[] constant(3)
  ROOT on = pred[] compare(k, three), direction=LT
}
"""
    return condition + "round {\n" + "\n".join(body.lines) + "\n}\n"


@st.composite
def training_steps(draw: st.DrawFn) -> str:
    """The text of a step on four ranks with inputs x and w, s32[8,8]."""
    body, text = _Lines(draw), _HEADER.replace("{{", "{").replace("}}", "}")
    body.lines += ["  x = s32[8,8] parameter(0)", "  w = s32[8,8] parameter(1)"]
    body.arrays += ["x", "w"]
    parts = draw(st.lists(st.sampled_from(_PARTS), min_size=2, max_size=8))
    loop_at = draw(st.integers(0, 3 * len(parts)))
    for number, part in enumerate(parts):
        if number == loop_at:
            text += _loop(draw)
            zero = body.add("s32[]", "constant(0)")
            state = "(s32[], s32[8,8], s32[8,8])"
            first = body.add(state, f"tuple({zero}, {body.array()}, w)")
            ran = body.add(state, f"while({first}), condition=going, body=round")
            body.arrays.append(body.add("s32[8,8]", f"get-tuple-element({ran}), index=1"))
        part(body)
    body.results.append((body.arrays[-1], "s32[8,8]"))
    kinds = ", ".join(kind for _, kind in body.results)
    names = ", ".join(name for name, _ in body.results)
    body.lines.append(f"  ROOT results = ({kinds}) tuple({names})")
    return text + "ENTRY main {\n" + "\n".join(body.lines) + "\n}\n"


def inputs() -> list[np.ndarray]:
    """Small numbers, different on every rank, [ranks, 8, 8]."""
    draw = np.random.default_rng(0)
    return [draw.integers(-3, 4, (RANKS, SIZE, SIZE), np.int32) for _ in range(2)]
