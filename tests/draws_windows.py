"""Random windows and convolution labels, and ops that slide a window, each added to a drawing."""

import numpy as np
from hypothesis import strategies as st

from ncc_compiler.ir.graph import Callee, Computation, Node, NodeId
from ncc_compiler.ir.types import ArrayType
from ncc_runtime.neff.shared.dtypes import DType
from ncc_runtime.neff.shared.windows import ConvolutionLabels, Window, WindowDimension
from tests.drawing import (
    FLOATS,
    INTEGERS,
    LARGEST,
    MOST_ELEMENTS,
    Drawing,
    Value,
    elements_of,
    rounding,
)
from tests.draws_folding_ops import REDUCTIONS, WIDER, folded

window_dimensions = st.builds(
    WindowDimension,
    size=st.integers(0, 9),
    stride=st.integers(1, 3),
    low=st.integers(-9, 9),
    high=st.integers(-9, 9),
    base_dilation=st.integers(1, 3),
    window_dilation=st.integers(1, 3),
    is_reversed=st.booleans(),
)
windows = st.lists(window_dimensions, max_size=4).map(lambda found: Window(tuple(found)))


@st.composite
def labels(draw: st.DrawFn, spatial: int | None = None) -> ConvolutionLabels:
    count = draw(st.integers(0, 3)) if spatial is None else spatial
    numbers = [str(number) for number in range(count)]
    orders = [draw(st.permutations([*named, *numbers])) for named in ("bf", "io", "bf")]
    return ConvolutionLabels(*map("".join, orders))


def _dimension(drawing: Drawing, size: int, dilates: bool, may_cut: bool) -> WindowDimension:
    draw, least = drawing.draw, -1 if may_cut else 0
    return WindowDimension(
        size,
        draw(st.integers(1, 3)),
        draw(st.integers(least, 2)),
        draw(st.integers(least, 2)),
        draw(st.integers(1, 2)) if dilates else 1,
        draw(st.integers(1, 2)) if dilates else 1,
    )


def _window(drawing: Drawing, shape, sizes=None, *, dilates=True, may_cut=True) -> Window:
    """A window over an array of this shape; it may have no position at all."""
    if sizes is None:
        sizes = [drawing.draw(st.integers(1, 3)) for _ in shape]
    return Window(tuple(_dimension(drawing, size, dilates, may_cut) for size in sizes))


def _kept(drawing: Drawing, value: Value) -> None:
    """Take back a value without elements: other ops want some."""
    if not value.type.elements:
        drawing.values.remove(value)


def reduce_window(drawing: Drawing) -> None:
    x = drawing.pick(lambda value: value.dtype in REDUCTIONS and value.type.elements <= 256)
    if x is None:
        return
    op = drawing.draw(st.sampled_from(REDUCTIONS[x.dtype]))
    window = _window(drawing, x.type.shape)
    count = elements_of([one.size for one in window.dimensions])
    initial = drawing.scalar(x.dtype, drawing.draw(st.integers(0, 1)))
    bound, error = folded(op, x, count + 1)
    bound = max(bound, 1.0) if x.dtype in FLOATS else 0.0
    kind = ArrayType(x.dtype, window.positions(x.type.shape))
    if bound <= LARGEST and kind.elements <= MOST_ELEMENTS:
        region = drawing.region(op, x.dtype)
        facts = {"bound": bound, "error": error, "window": window, "to_apply": region}
        _kept(drawing, drawing.add("reduce-window", kind, [x, initial], **facts))


def ordered_reduce_window(drawing: Drawing) -> None:
    """A region that tells the elements of a window apart: (a, b) to 2a + b, wrapping."""
    x = drawing.pick(lambda value: value.dtype in INTEGERS and value.type.elements <= 256)
    if x is None:
        return
    window = _window(drawing, x.type.shape)
    kind = ArrayType(x.dtype, window.positions(x.type.shape))
    if kind.elements <= MOST_ELEMENTS:
        initial = drawing.scalar(x.dtype, 1)
        region = _twice_plus(drawing, x.dtype)
        operands, facts = [x, initial], {"window": window, "to_apply": region}
        _kept(drawing, drawing.add("reduce-window", kind, operands, **facts))


def _twice_plus(drawing: Drawing, dtype: DType) -> Callee:
    scalar, name = ArrayType(dtype), f"twice_plus_{dtype.value}"
    nodes = (
        Node("a", "parameter", scalar, (), {"parameter_number": 0}),
        Node("b", "parameter", scalar, (), {"parameter_number": 1}),
        Node("c", "add", scalar, (NodeId(0), NodeId(0))),
        Node("r", "add", scalar, (NodeId(2), NodeId(1))),
    )
    drawing.computations[name] = Computation(name, nodes, NodeId(3))
    return Callee(name)


def select_and_scatter(drawing: Drawing) -> None:
    """On values with one right answer, since it selects by comparing them."""
    dtypes = (*FLOATS, *INTEGERS)
    x = drawing.pick(
        lambda value: value.is_exact and value.dtype in dtypes and value.type.elements <= 128
    )
    if x is None:
        return
    window = _window(drawing, x.type.shape, dilates=False)
    source = drawing.parameter(ArrayType(x.dtype, window.positions(x.type.shape)))
    initial = drawing.scalar(x.dtype, 1)
    count = elements_of([one.size for one in window.dimensions])
    bound, error = folded("add", source, count + 1)
    drawing.add(
        "select-and-scatter",
        x.type,
        [x, source, initial],
        bound=bound,
        error=error,
        window=window,
        select=_compares(drawing, x.dtype),
        scatter=drawing.region("add", x.dtype),
    )
    _kept(drawing, source)


def _compares(drawing: Drawing, dtype: DType) -> Callee:
    direction = drawing.draw(st.sampled_from(["GE", "GT", "LE"]))
    scalar, truth = ArrayType(dtype), ArrayType(DType.PRED)
    name = f"{direction.lower()}_{dtype.value}"
    nodes = (
        Node("a", "parameter", scalar, (), {"parameter_number": 0}),
        Node("b", "parameter", scalar, (), {"parameter_number": 1}),
        Node("r", "compare", truth, (NodeId(0), NodeId(1)), {"direction": direction}),
    )
    drawing.computations[name] = Computation(name, nodes, NodeId(2))
    return Callee(name)


def convolution(drawing: Drawing) -> None:
    """A value of two or more dimensions with a new kernel, in groups where they divide."""
    x = _image(drawing)
    named = drawing.draw(labels(x.type.rank - 2))
    batch, features, *spatial = (x.type.shape[d] for d in named.input_dimensions)
    groups = _groups(drawing, batch, features)
    made = drawing.draw(st.integers(1, 2)) * max(groups)
    sizes = [drawing.draw(st.integers(1, 3)) for _ in spatial]
    kernel = _placed(named.kernel_dimensions, [features // groups[0], made, *sizes])
    y = drawing.parameter(ArrayType(x.dtype, kernel))
    window = _window(drawing, spatial, sizes)
    result = [batch // groups[1], made, *window.positions(spatial)]
    count = elements_of([features // groups[0], *sizes])
    bound = x.bound * y.bound * count
    error = x.error * y.bound * count + rounding(x.dtype, bound) * (count + 1)
    if x.dtype in INTEGERS:
        bound = error = 0.0
    dtype = drawing.draw(st.sampled_from([x.dtype, WIDER.get(x.dtype, x.dtype)]))
    kind = ArrayType(dtype, _placed(named.result_dimensions, result))
    if bound <= LARGEST and kind.elements <= MOST_ELEMENTS:
        facts = {"bound": bound, "error": error, "window": window, "dim_labels": named}
        counts = {"feature_group_count": groups[0], "batch_group_count": groups[1]}
        _kept(drawing, drawing.add("convolution", kind, [x, y], **facts, **counts))


def _image(drawing: Drawing) -> Value:
    found = drawing.pick(
        lambda value: (
            value.type.rank >= 2
            and value.dtype in (*FLOATS, *INTEGERS)
            and value.type.elements <= 256
            and value.bound <= 50
        )
    )
    if found is not None and not drawing.chance(2):
        return found
    shape = drawing.draw(st.lists(st.integers(1, 4), min_size=2, max_size=4))
    dtype = drawing.draw(st.sampled_from((*FLOATS, *INTEGERS)))
    return drawing.parameter(ArrayType(dtype, tuple(shape)))


def _groups(drawing: Drawing, batch: int, features: int) -> tuple[int, int]:
    """How many groups of features and of the batch; one of them is 1."""
    of_features = drawing.draw(st.sampled_from([k for k in (1, 2, 3, 4) if features % k == 0]))
    of_batch = drawing.draw(st.sampled_from([k for k in (1, 2, 3, 4) if batch % k == 0]))
    return (of_features, 1) if of_features > 1 else (1, of_batch)


def _placed(dimensions, sizes) -> tuple[int, ...]:
    """Sizes put where they belong."""
    return tuple(np.array(sizes, int)[np.argsort(dimensions)].tolist())


WINDOW_OPS = (reduce_window, ordered_reduce_window, select_and_scatter, convolution)
