"""Random collectives that HLO lacks, or that have a root, each added to a drawing."""

from collections.abc import Sequence

from hypothesis import strategies as st

from ncc_compiler.ir.graph import Attribute
from ncc_compiler.ir.types import ArrayType
from ncc_runtime.neff.shared.groups import ExplicitGroups
from tests.drawing import FLOATS, LARGEST, MOST_ELEMENTS, Drawing, Value, rounding, summed
from tests.draws_collective_ops import Meeting, divisible, partners, partners_in_one_dimension
from tests.draws_folding_ops import REDUCTIONS, folded


def _with_root(drawing: Drawing) -> tuple[Meeting, dict[str, Attribute]]:
    """A meeting, and its attributes with a root."""
    found = partners(drawing)
    root = drawing.draw(st.integers(0, found.size - 1))
    return found, {**found.attributes, "root": root}


def averaged(x: Value, count: int) -> tuple[float, float]:
    """Bound and error of the average of `count` such values."""
    _, error = summed(x, count)
    return x.bound, error / count + rounding(x.dtype, x.bound)


def broadcast(drawing: Drawing) -> None:
    x = drawing.pick(lambda _: True)
    if x is None:
        return
    found = partners_in_one_dimension(drawing)
    attributes, groups = found.attributes, found.attributes["replica_groups"]
    if isinstance(groups, ExplicitGroups) and len(groups.groups) > 1 and drawing.chance(2):
        attributes = {**attributes, "replica_groups": ExplicitGroups(groups.groups[1:])}
    drawing.like("collective-broadcast", x, [x], **attributes)


def average(drawing: Drawing) -> None:
    x = drawing.pick(lambda value: value.dtype in FLOATS)
    if x is None:
        return
    found = partners(drawing)
    bound, error = averaged(x, found.size)
    drawing.add("ncc.avg_all_reduce", x.type, [x], bound=bound, error=error, **found.attributes)


def average_scattered(drawing: Drawing) -> None:
    found = partners(drawing)
    place = divisible(drawing, found.size)
    if place is None or place[0].dtype not in FLOATS:
        return
    x, dimension = place
    bound, error = averaged(x, found.size)
    drawing.add(
        "ncc.avg_reduce_scatter",
        _cut(x, dimension, found.size),
        [x],
        bound=bound,
        error=error,
        dimensions=(dimension,),
        **found.attributes,
    )


def _cut(x: Value, dimension: int, parts: int) -> ArrayType:
    shape = list(x.type.shape)
    shape[dimension] //= parts
    return ArrayType(x.dtype, tuple(shape))


def reduce(drawing: Drawing) -> None:
    x = drawing.pick(lambda value: value.dtype in REDUCTIONS)
    if x is None:
        return
    found, attributes = _with_root(drawing)
    names = [*REDUCTIONS[x.dtype], *(["average"] if x.dtype in FLOATS else [])]
    name = drawing.draw(st.sampled_from(names))
    facts = averaged(x, found.size) if name == "average" else folded(name, x, found.size)
    if facts[0] <= LARGEST:
        _coalesced(drawing, "ncc.reduce", x, facts, {**attributes, "reduction": name})


def _coalesced(
    drawing: Drawing,
    op: str,
    x: Value,
    facts: tuple[float, float],
    attributes: dict[str, Attribute],
) -> None:
    """The op on one value, or on it twice."""
    bound, error = facts
    if drawing.chance(3):
        drawing.elements(op, [x, x], [x.type] * 2, [facts] * 2, **attributes)
    else:
        drawing.add(op, x.type, [x], bound=bound, error=error, **attributes)


def gather(drawing: Drawing) -> None:
    found, attributes = _with_root(drawing)
    x = drawing.pick(
        lambda value: value.type.rank >= 1 and value.type.elements * found.size <= MOST_ELEMENTS
    )
    if x is None:
        return
    dimension = drawing.draw(st.integers(0, x.type.rank - 1))
    shape = list(x.type.shape)
    shape[dimension] *= found.size
    drawing.like("ncc.gather", x, [x], shape, dimensions=(dimension,), **attributes)


def scatter(drawing: Drawing) -> None:
    found, attributes = _with_root(drawing)
    place = divisible(drawing, found.size)
    if place is None:
        return
    x, dimension = place
    shape = _cut(x, dimension, found.size).shape
    drawing.like("ncc.scatter", x, [x], shape, dimensions=(dimension,), **attributes)


def barrier(drawing: Drawing) -> None:
    """Of one value or of two, which go on as they came."""
    x, y = drawing.pick(lambda _: True), drawing.pick(lambda _: True)
    if x is None or y is None:
        return
    attributes = partners(drawing).attributes
    if drawing.chance(2):
        drawing.like("ncc.barrier", x, [x], **attributes)
        return
    values: Sequence[Value] = [x, y]
    facts = [(value.bound, value.error) for value in values]
    drawing.elements("ncc.barrier", values, [v.type for v in values], facts, **attributes)


ROOTED_OPS = (broadcast, average, average_scattered, reduce, gather, scatter, barrier)
