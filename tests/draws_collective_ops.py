"""Random collectives over random groups, in every group mode, each added to a drawing."""

import attrs
from hypothesis import strategies as st

from ncc_compiler.ir.graph import Attribute, SourceTargetPairs
from ncc_compiler.ir.types import ArrayType
from ncc_runtime.neff.shared.groups import ExplicitGroups, IotaGroups, ReplicaGroups
from tests.drawing import LARGEST, MOST_ELEMENTS, Drawing, Value
from tests.draws_folding_ops import REDUCTIONS, folded


@attrs.frozen
class Meeting:
    """Who meets: the attributes that say so, and how many ranks a group has."""

    size: int
    attributes: dict[str, Attribute]


def _channel(drawing: Drawing) -> int:
    return len(drawing.nodes) + 1


def _groups(drawing: Drawing, ids: int, *, uneven: bool = False) -> tuple[ReplicaGroups, int]:
    """All ids in groups, spelled in braces or as an iota, and the size of the largest group."""
    if uneven:
        order = drawing.draw(st.permutations(range(ids)))
        cut = drawing.draw(st.integers(0, ids - 1))
        parts = [tuple(part) for part in (order[:cut], order[cut:]) if part]
        return ExplicitGroups(tuple(parts)), max(map(len, parts))
    size = drawing.draw(st.sampled_from([k for k in range(1, ids + 1) if ids % k == 0]))
    count = ids // size
    spelling = drawing.draw(st.sampled_from(["all", "iota", "transposed iota", "braces"]))
    if spelling == "all":
        return ExplicitGroups(()), ids
    if spelling == "iota":
        return IotaGroups((count, size), (ids,)), size
    if spelling == "transposed iota":
        return IotaGroups((count, size), (size, count), (1, 0)), size
    order = drawing.draw(st.permutations(range(ids)))
    groups = tuple(tuple(order[k * size : (k + 1) * size]) for k in range(count))
    return ExplicitGroups(groups), size


def partners(drawing: Drawing, *, may_be_uneven: bool = False) -> Meeting:
    """For the operators that know `use_global_device_ids`; only an all-reduce may be uneven."""
    replicas, partitions = drawing.replica_count, drawing.num_partitions
    mode = drawing.draw(st.sampled_from(["flattened", "replicas", "both"]))
    ids = replicas * partitions if mode == "flattened" else replicas
    groups, size = _groups(drawing, ids, uneven=may_be_uneven and drawing.chance(4))
    attributes: dict[str, Attribute] = {"replica_groups": groups}
    if mode != "replicas":
        attributes["channel_id"] = _channel(drawing)
    if mode == "flattened":
        attributes["use_global_device_ids"] = True
    return Meeting(size * partitions if mode == "both" else size, attributes)


def partners_in_one_dimension(drawing: Drawing) -> Meeting:
    """For the operators whose groups are of replicas or, with a channel, of partitions."""
    if drawing.draw(st.booleans()):
        groups, size = _groups(drawing, drawing.num_partitions)
        return Meeting(size, {"replica_groups": groups, "channel_id": _channel(drawing)})
    groups, size = _groups(drawing, drawing.replica_count)
    return Meeting(size, {"replica_groups": groups})


def divisible(drawing: Drawing, by: int) -> tuple[Value, int] | None:
    """A value and a dimension of it that the group divides, made by a broadcast if need be."""
    x = drawing.pick(lambda value: value.type.elements * by <= MOST_ELEMENTS)
    if x is None:
        return None
    fitting = [k for k, size in enumerate(x.type.shape) if size % by == 0]
    if fitting:
        return x, drawing.draw(st.sampled_from(fitting))
    at = drawing.draw(st.integers(0, x.type.rank))
    shape = list(x.type.shape)
    shape.insert(at, by * drawing.draw(st.integers(1, 2)))
    dimensions = tuple(k + (k >= at) for k in range(x.type.rank))
    return drawing.like("broadcast", x, [x], shape, dimensions=dimensions), at


def all_reduce(drawing: Drawing) -> None:
    x = drawing.pick(lambda value: value.dtype in REDUCTIONS)
    if x is None:
        return
    meeting = partners(drawing, may_be_uneven=True)
    op = drawing.draw(st.sampled_from(REDUCTIONS[x.dtype]))
    y = drawing.pick(lambda value: value.dtype is x.dtype) if drawing.chance(3) else None
    members = [x] if y is None else [x, y]
    facts = [folded(op, member, meeting.size) for member in members]
    if max(bound for bound, _ in facts) > LARGEST:
        return
    attributes = {**meeting.attributes, "to_apply": drawing.region(op, x.dtype)}
    if y is None:
        [(bound, error)] = facts
        drawing.add("all-reduce", x.type, [x], bound=bound, error=error, **attributes)
    else:
        types = [member.type for member in members]
        drawing.elements("all-reduce", members, types, facts, **attributes)


def all_gather(drawing: Drawing) -> None:
    meeting = partners(drawing)
    x = drawing.pick(
        lambda value: value.type.rank >= 1 and value.type.elements * meeting.size <= MOST_ELEMENTS
    )
    if x is None:
        return
    dimension = drawing.draw(st.integers(0, x.type.rank - 1))
    shape = list(x.type.shape)
    shape[dimension] *= meeting.size
    drawing.like("all-gather", x, [x], shape, dimensions=(dimension,), **meeting.attributes)


def reduce_scatter(drawing: Drawing) -> None:
    meeting = partners(drawing)
    found = divisible(drawing, meeting.size)
    if found is None:
        return
    x, dimension = found
    if x.dtype not in REDUCTIONS:
        return
    op = drawing.draw(st.sampled_from(REDUCTIONS[x.dtype]))
    bound, error = folded(op, x, meeting.size)
    shape = list(x.type.shape)
    shape[dimension] //= meeting.size
    if bound <= LARGEST:
        drawing.add(
            "reduce-scatter",
            ArrayType(x.dtype, tuple(shape)),
            [x],
            bound=bound,
            error=error,
            dimensions=(dimension,),
            to_apply=drawing.region(op, x.dtype),
            **meeting.attributes,
        )


def all_to_all(drawing: Drawing) -> None:
    meeting = partners_in_one_dimension(drawing)
    found = divisible(drawing, meeting.size)
    if found is None:
        return
    x, dimension = found
    drawing.like("all-to-all", x, [x], dimensions=(dimension,), **meeting.attributes)


def all_to_all_of_a_tuple(drawing: Drawing) -> None:
    meeting = partners_in_one_dimension(drawing)
    x = drawing.pick(lambda _: True)
    if x is None:
        return
    alike = [value for value in drawing.values if value.type == x.type]
    members = [drawing.draw(st.sampled_from(alike)) for _ in range(meeting.size)]
    fact = (max(m.bound for m in members), max(m.error for m in members))
    drawing.elements(
        "all-to-all",
        members,
        [x.type] * meeting.size,
        [fact] * meeting.size,
        **meeting.attributes,
    )


def collective_permute(drawing: Drawing) -> None:
    x = drawing.pick(lambda _: True)
    if x is None:
        return
    across_partitions = drawing.draw(st.booleans())
    ids = drawing.num_partitions if across_partitions else drawing.replica_count
    sources = drawing.draw(st.permutations(range(ids)))
    targets = drawing.draw(st.permutations(range(ids)))
    count = drawing.draw(st.integers(1, ids))
    pairs = SourceTargetPairs(tuple(zip(sources[:count], targets[:count], strict=True)))
    attributes: dict[str, Attribute] = {"source_target_pairs": pairs}
    if across_partitions:
        attributes["channel_id"] = _channel(drawing)
    drawing.like("collective-permute", x, [x], **attributes)
