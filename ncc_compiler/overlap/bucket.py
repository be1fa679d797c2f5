"""Buckets of collectives (XLA: combiners): large ones are split by operand, small ones joined.

`SplitVariadicCollectives` first. Frameworks and XLA join the gradients of a step into one
collective at its end, which starts when the last of them is there: nothing of it runs beside
compute. Which operands start together, `Bucket` decides anew, by when they are ready.

    a, b, c ─▶ all-reduce ─▶ (A, B, C)        a ─▶ all-reduce ─▶ A    b ─▶ all-reduce ─▶ B   …

`Bucket` then joins small collectives into one of several operands, in program order. A collective
costs much before it moves its first byte, so many small ones are slow. But what waits in a bucket
starts later than it could, and so do the users of its results. So a collective joins the one before
it (of the same operator, groups, element type, reduction and stream) where that delays hardly more
than it saves. A bucket that could not start before the new member is ready, since its stream is
busy, loses nothing; neither does a small one, whose bytes take no time.

No member of a bucket depends on another, not even through other buckets: those joined nodes would
form a cycle. Nothing is concatenated: operands and results stay where they are.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

import attrs

from ncc_compiler.codegen.leaves import leaves
from ncc_compiler.ir.collectives import rank_groups, reduction_by_name, reduction_of, written_stream
from ncc_compiler.ir.graph import Attribute, Computation, Module, Node, NodeId
from ncc_compiler.ir.types import TupleType
from ncc_compiler.options import (
    BUCKET_LATER_PERCENT,
    BUCKET_LIMIT_BYTES,
    BUCKET_SMALL_BYTES,
    MEMORY_PERCENT,
    SCHEDULE_LIMIT_PERCENT,
)
from ncc_compiler.overlap.analyses import (
    Bits,
    ComputeTimes,
    ancestors_among,
    compute_times,
    feeds_compute,
)
from ncc_compiler.overlap.cost_model import (
    CONTROL_FLOW,
    PER_COLLECTIVE_BYTE,
    SPEEDS,
    START,
    OpWork,
    larger_side,
    works_of,
)
from ncc_compiler.overlap.erase_tokens import has_token
from ncc_compiler.overlap.memory_limit import first_within
from ncc_compiler.overlap.schedule import Orders, Schedule, ends_of, reordered
from ncc_compiler.passes.manager import Pass
from ncc_compiler.passes.rebuild import (
    Rebuild,
    array_types,
    provenance,
    rewrite_module,
    stable_order,
    with_computations,
)

BUCKETED = frozenset(
    {
        "all-gather",
        "all-reduce",
        "ncc.avg_all_reduce",
        "ncc.avg_reduce_scatter",
        "reduce-scatter",
    }
)
_DIVIDING = CONTROL_FLOW | {"ncc.barrier"}
"""Ops that nothing joins over."""

_NOT_COMPARED = frozenset(
    {
        "channel_id",  # its presence decides how groups are read, and these are compared
        "constrain_layout",
        "frontend_attributes",
        "metadata",
        "replica_groups",
        "sharding",
        "to_apply",
        "use_global_device_ids",
    }
)


_FINE = 16
"""Buckets that delay by a share of what is allowed are tried first."""


@attrs.frozen
class Bucket(Pass):
    """A bucket holds at most `limit_bytes`, and delays by what `small_bytes` take at most.

    So collectives of that many bytes together are joined whatever lies between them. If the program
    then takes more than `memory_percent` of what it took, fewer are, or none; as if, by estimate,
    it ends at more than `later_percent` of the time without buckets, at any speed of collectives.
    """

    name: ClassVar[str] = "bucket"

    limit_bytes: int = BUCKET_LIMIT_BYTES
    small_bytes: int = BUCKET_SMALL_BYTES
    limit_percent: int = SCHEDULE_LIMIT_PERCENT  # of memory, for the order they are joined in
    memory_percent: int = MEMORY_PERCENT
    later_percent: int = BUCKET_LATER_PERCENT

    def run(self, module: Module) -> Module:
        schedule = Schedule(limit_percent=self.limit_percent)
        fewer = attrs.evolve(self, small_bytes=0)
        works: dict[str, Sequence[OpWork]] = {}
        orders: dict[str, Orders] = {}
        for name, feeds in feeds_compute(module).items():
            body = module.computations[name]
            if sum(node.op in BUCKETED for node in body.nodes) > 1:
                works[name] = works_of(module, body)
                orders[name] = schedule.orders(module, body, works[name], feeds)
        forms = (
            functools.partial(one._bucketed, module, works, order)
            for one, order in (
                (self, lambda name: schedule.order(orders[name])),
                (fewer, lambda name: schedule.strict().order(orders[name])),
            )
        )
        return first_within(module, forms, self.memory_percent)

    def _bucketed(
        self,
        module: Module,
        works_by_name: Mapping[str, Sequence[OpWork]],
        order_of: Callable[[str], Sequence[int]],
    ) -> Module:
        """The module with buckets of collectives, its computations in these orders."""
        computations = dict(module.computations)
        for name, works in works_by_name.items():
            order = order_of(name)
            ordered = [works[position] for position in order]
            scheduled = reordered(module.computations[name], order)
            computations[name] = self._least(module, scheduled, ordered)
        return with_computations(module, computations)

    def _least(
        self, module: Module, scheduled: Computation, works: Sequence[OpWork]
    ) -> Computation:
        """The computation with the fewest collectives that ends little later for it, if at all.

        Buckets may delay by what `small_bytes` take, or by less if that is too late.
        """
        candidates = [k for k, node in enumerate(scheduled.nodes) if node.op in BUCKETED]
        before = ancestors_among(scheduled, candidates)
        times = compute_times(scheduled, works, before)
        best, ends = scheduled, ends_of(scheduled, works)
        tried: list[tuple[int, ...]] = []
        for small_bytes in (self.small_bytes // _FINE, self.small_bytes):
            options = attrs.evolve(self, small_bytes=small_bytes)
            buckets = _Bucketing(options, scheduled, before, times).run(module)
            if buckets != tried:
                joined = _joined(scheduled, [sorted(members) for members in buckets])
                if not self._is_later(ends_of(joined, works_of(module, joined)), ends):
                    best = joined
            tried = buckets
        return best

    def _is_later(self, ends: Sequence[int], others: Sequence[int]) -> bool:
        """Whether a computation ends later at some speed of collectives, by more than a little."""
        pairs = zip(ends, others, strict=True)
        return any(100 * end > self.later_percent * other for end, other in pairs)


@attrs.define
class _OpenBucket:
    """A bucket that others may still join."""

    members: list[int]
    stream: int
    size_bytes: int
    ready: int  # when all operands are there
    first_ready: int  # when those of the first member are
    behind: int  # the work that waits for the results
    bits: Bits
    before: Bits  # candidates that it depends on, also through buckets


class _Bucketing:
    """The buckets of one computation, made in one walk in program order."""

    def __init__(
        self, options: Bucket, body: Computation, before: Sequence[Bits], times: ComputeTimes
    ) -> None:
        self._options = options
        self._body = body
        self._before = before
        self._times = times
        self._stream_free: dict[int, int] = {}  # when the buckets before the open ones are done
        # Of buckets of two and more: the bucket of each candidate, by its number, and all members.
        self._bucket_of: dict[int, _OpenBucket] = {}
        self._in_buckets: Bits = 0
        self._changed: dict[int, int] = {}  # by first member: the candidate when it last changed

    def run(self, module: Module) -> list[tuple[int, ...]]:
        """The members of each bucket of two or more."""
        latest: dict[object, _OpenBucket] = {}  # by what its members have in common
        region, number = 0, 0  # regions lie between dividing ops; candidates are numbered
        for position, node in enumerate(self._body.nodes):
            region += node.op in _DIVIDING
            if node.op not in BUCKETED:
                continue
            single = self._bucket_of_one(position, number)
            number += 1
            key = (region, _compatibility(module, self._body, node))
            bucket = latest.get(key)
            if bucket is not None and self._may_join(bucket, single):
                self._join(bucket, single)
                continue
            latest[key] = single
            if bucket is not None:  # nothing joins it any more
                latency = START + PER_COLLECTIVE_BYTE * bucket.size_bytes
                self._stream_free[bucket.stream] = self._start(bucket) + latency
        return [  # each bucket once, although all its members are keys
            tuple(bucket.members)
            for number, bucket in self._bucket_of.items()
            if number == _first(bucket)
        ]

    def _bucket_of_one(self, position: int, number: int) -> _OpenBucket:
        node, behind = self._body.nodes[position], self._times.behind
        return _OpenBucket(
            members=[position],
            stream=written_stream(node) or 0,
            size_bytes=larger_side(node, list(self._body.operands_of(node))),
            ready=self._times.ready[position],
            first_ready=self._times.ready[position],
            behind=behind[number] if number < len(behind) else 0,
            bits=1 << number,
            before=self._through_buckets(self._before[position]),
        )

    def _through_buckets(self, before: Bits) -> Bits:
        """These candidates, all members of their buckets, and what those depend on."""
        left = before & self._in_buckets
        while left:
            bucket = self._bucket_of[left.bit_length() - 1]
            before |= bucket.bits | bucket.before
            left &= ~(bucket.bits | bucket.before)
        return before

    def _may_join(self, bucket: _OpenBucket, other: _OpenBucket) -> bool:
        """Whether the two may be joined, and that delays little."""
        size = bucket.size_bytes + other.size_bytes
        if size > self._options.limit_bytes or other.before & bucket.bits:
            return False
        return self._delay(bucket, other) <= PER_COLLECTIVE_BYTE * self._options.small_bytes

    def _delay(self, bucket: _OpenBucket, other: _OpenBucket) -> int:
        """How much later the stream is done, and how much longer work waits for the bucket.

        Alone, the bucket would use the time until the new one is ready, if that is longer than the
        start that is saved, by the quickest collectives; and the work behind it would begin when
        its first member's results are there.
        """
        unused = other.ready - self._start(bucket) - SPEEDS[0].start
        begins = max(bucket.first_ready, self._stream_free.get(bucket.stream, 0))
        waits = max(0, other.ready - begins) + PER_COLLECTIVE_BYTE * other.size_bytes
        return min(unused, PER_COLLECTIVE_BYTE * bucket.size_bytes) + min(bucket.behind, waits)

    def _start(self, bucket: _OpenBucket) -> int:
        """When its operands are there and the stream is free."""
        return max(bucket.ready, self._stream_free.get(bucket.stream, 0))

    def _join(self, bucket: _OpenBucket, other: _OpenBucket) -> None:
        first, number = _first(bucket), _first(other)
        if len(bucket.members) == 1:
            bucket.before = self._through_buckets(bucket.before)
            self._bucket_of[first] = bucket
            self._in_buckets |= bucket.bits
        self._bucket_of[number] = bucket
        self._in_buckets |= other.bits
        bucket.members += other.members
        bucket.size_bytes += other.size_bytes
        bucket.ready = max(bucket.ready, other.ready)
        bucket.behind += other.behind
        bucket.bits |= other.bits
        bucket.before |= other.before
        dependents = self._dependents(bucket)
        for dependent in dependents:
            dependent.before |= bucket.bits | bucket.before
        for changed in (bucket, *dependents):  # these are the last to have changed now
            self._changed.pop(_first(changed), None)
            self._changed[_first(changed)] = number

    def _dependents(self, bucket: _OpenBucket) -> list[_OpenBucket]:
        """The buckets that depend on this one: of those that changed since it was opened."""
        dependents = []
        for first, number in reversed(self._changed.items()):
            if number < _first(bucket):
                break  # this and all before it last changed before the bucket had a member
            if self._bucket_of[first].before & bucket.bits:
                dependents.append(self._bucket_of[first])
        return dependents


def _first(bucket: _OpenBucket) -> int:
    """The number of the first member among the candidates."""
    return (bucket.bits & -bucket.bits).bit_length() - 1


def _compatibility(module: Module, body: Computation, node: Node) -> object:
    """What collectives of one bucket have in common; of a mix of element types its own name."""
    dtypes = {
        array.dtype for operand in body.operands_of(node) for array in array_types(operand.type)
    }
    compared = sorted(
        (key, value) for key, value in node.attributes.items() if key not in _NOT_COMPARED
    )
    if len(dtypes) != 1:
        return node.name
    (dtype,) = dtypes
    if "to_apply" in node.attributes:
        reduction = reduction_of(module.computations[node.callee()])
    else:
        reduction = reduction_by_name(node, dtype)
    groups = rank_groups(module, node)
    return node.op, dtype, reduction, groups, written_stream(node), tuple(compared)


def _joined(body: Computation, buckets: Sequence[Sequence[int]]) -> Computation:
    """The computation with each bucket where its last member was, what uses it behind that."""
    if not buckets:
        return body
    last = {position: max(members) for members in buckets for position in members}
    uses: list[list[int]] = [list(node.operands) for node in body.nodes]
    for members in buckets:  # the last member stands for all: it needs what they need
        uses[max(members)] = [use for position in members for use in body.nodes[position].operands]
    uses = [[last.get(use, use) for use in operands] for operands in uses]
    rebuild, bucket_at = Rebuild(body), {max(members): members for members in buckets}
    rebuild.new_ids = [NodeId(-1)] * len(body.nodes)
    for position in stable_order(uses):
        if position in bucket_at:
            _add_bucket(rebuild, body, bucket_at[position])
        elif position not in last:
            rebuild.new_ids[position] = rebuild.add(rebuild.rewired(body.nodes[position]))
    return rebuild.finish()


def _add_bucket(rebuild: Rebuild, body: Computation, members: Sequence[int]) -> None:
    """The collective of all operands, and under the members' names their results."""
    nodes = [body.nodes[position] for position in members]
    kinds = [array for node in nodes for array in array_types(node.type)]
    operands = [rebuild.new_ids[operand] for node in nodes for operand in node.operands]
    known = next(filter(None, map(provenance, nodes)), {})  # the first place that is known
    bucket = attrs.evolve(
        nodes[0],
        name=rebuild.fresh(f"{nodes[0].name}.bucket"),
        type=TupleType(tuple(kinds)),
        operands=tuple(operands),
        attributes={**nodes[0].attributes, **known},
    )
    joined, first = rebuild.add(bucket), 0
    for position, node in zip(members, nodes, strict=True):
        count = len(node.operands)
        rebuild.new_ids[position] = _result(rebuild, node, joined, range(first, first + count))
        first += count


def _result(rebuild: Rebuild, node: Node, joined: NodeId, elements: range) -> NodeId:
    """The value of a member, taken from the bucket."""
    if not isinstance(node.type, TupleType):
        element: Mapping[str, Attribute] = {"index": elements[0], **provenance(node)}
        return rebuild.add(
            Node(node.name, "get-tuple-element", node.type, (joined,), element, node.span)
        )
    parts = [
        rebuild.derived(node, "get-tuple-element", kind, [joined], index=k)
        for k, kind in zip(elements, node.type.elements, strict=True)
    ]
    return rebuild.add(Node(node.name, "tuple", node.type, tuple(parts), provenance(node)))


@attrs.frozen
class SplitVariadicCollectives(Pass):
    """Of the collectives that `bucket` joins; 0 in `enabled` leaves them as they were written."""

    name: ClassVar[str] = "take-apart"

    enabled: int = 1

    def run(self, module: Module) -> Module:
        return rewrite_module(module, _split, _is_splittable) if self.enabled else module


def _is_splittable(node: Node) -> bool:
    """Whether it has several operands that could be joined again, none of them a token."""
    if node.op not in BUCKETED or not isinstance(node.type, TupleType) or has_token(node):
        return False
    return len({array.dtype for array in leaves(node.type)}) == 1


def _split(rebuild: Rebuild, node: Node) -> NodeId:
    """A collective for each operand, and under the name of all the tuple of their results."""
    if not _is_splittable(node):
        return rebuild.add(node)
    assert isinstance(node.type, TupleType), node.name
    parts = tuple(
        rebuild.add(
            attrs.evolve(
                node, name=rebuild.fresh(f"{node.name}.part"), type=kind, operands=(operand,)
            )
        )
        for operand, kind in zip(node.operands, node.type.elements, strict=True)
    )
    return rebuild.add(Node(node.name, "tuple", node.type, parts, provenance(node), node.span))
