"""Attention as one instruction: two products with a softmax between them, forward and backward.

    q, k ─▶ dot ─▶ scale, mask ─▶ exponential ─▶ divide ─▶ dot ◀─ v
             scores       └─▶ maximum ─┘   └─▶ sum ─┘ └▶ probabilities

Scores and probabilities have an element for each query and key, so they are by far the largest
arrays of a long sequence. One instruction holds a few rows of them in SBUF and never writes any.

The pattern is found by what is computed, whatever its names, dimensions and layouts are. It starts
from an exponential whose sum over some dimensions (the *keys*) is computed. The products that lead
there through elementwise operations are those of the scores; a product that contracts the keys of
something made of the scores alone is the forward result. All on the paths between is one cluster.

**Backward** are the other products of what is made of the scores: those that contract the queries
(gradients of keys and values), and those that also depend on another product of the scores' size
(the gradient of the probabilities). They are one cluster with the paths between them. What the
forward cluster would have to write for them with an element for each query and key, they compute
again: by the same operations on the same values, so to the same bits. What has no keys, such as
maxima and sums of rows, is a result of the forward cluster.

A pattern stays as it is where its rows do not fit SBUF (`tiles.py`), where a path leaves a cluster
and comes back, or where computing again would read more than it saves. FlashAttention (Dao et al.,
NeurIPS 2022) divides the work in the same way, but rescales rows as they come.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import ClassVar

import attrs

from ncc_compiler.ir.collectives import reduction_of
from ncc_compiler.ir.graph import Computation, Module, Node, NodeId
from ncc_compiler.ir.types import ArrayType
from ncc_compiler.overlap.analyses import live_ranges_of
from ncc_compiler.overlap.clusters import NodeRole, clustering_of, roles_of
from ncc_compiler.overlap.fuse import fused, rewrite_running
from ncc_compiler.overlap.order_constraints import anti_dependences
from ncc_compiler.overlap.schedule import region_ids_of
from ncc_compiler.overlap.tiles import fits, tiling
from ncc_compiler.passes.manager import Pass
from ncc_compiler.passes.rebuild import Rebuild, users_of, with_computations
from ncc_runtime.neff.shared.reductions import Reduction

_MOST_NODES = 400
"""Nodes that one pattern may have; a search that meets more gives up."""

_MOST_COPIED = 16
"""Nodes that are computed once more rather than read, for one operand."""

_NEGLIGIBLE_RATIO = 8
"""What is made of arrays that are so many times smaller is computed rather than read."""

_PASSES = 4
"""Times that scores go to HBM or come from it where they are apart, before and after softmax."""

_COMPUTED = (NodeRole.FUSED, NodeRole.COPIED, NodeRole.VIEW)
_LAYOUTS = frozenset({"convert", "reshape", "bitcast", "transpose"})


@attrs.frozen
class FuseAttention(Pass):
    """Patterns become fusions of kind kCustom, one forward and one backward.

    Those that would wait for themselves, directly or through others, stay as they are. A
    computation that has fusions has been through and stays, too.
    """

    name: ClassVar[str] = "fuse-attention"

    enabled: int = 1

    def run(self, module: Module) -> Module:
        if not self.enabled:
            return module

        def with_fusions(body: Computation, computations: dict[str, Computation]) -> Computation:
            if any(node.op == "fusion" for node in body.nodes):
                return body
            return _with_attention_fused(module, body, computations)

        return with_computations(module, rewrite_running(module, with_fusions))


def _with_attention_fused(
    module: Module, body: Computation, computations: dict[str, Computation]
) -> Computation:
    """The computation with its patterns as fusions, whose computations are added."""
    if not any(node.op == "exponential" for node in body.nodes):
        return body
    attentions = list(_AttentionSearch(_Graph(module, body)).attentions())
    while attentions:
        new_body, cores = _Recomputing(body, attentions).run()
        sets = _Clusters(_Graph(module, new_body), cores).sets()
        anti = anti_dependences(new_body, live_ranges_of(new_body, region_ids_of(new_body)))
        stuck = _in_cycles(new_body, sets, anti)
        if not stuck:
            instructions = [(members, copies, max(members)) for members, copies in sets]
            copied = {position for _, copies in sets for position in copies}
            clustering = clustering_of(new_body, instructions, copied, anti, "kCustom")
            return fused(new_body, clustering, dict(module.computations), computations)
        numbers = [k // 2 for k, core in enumerate(cores) if core]  # of each cluster's pattern
        bad = {numbers[k] for k in stuck}
        attentions = [found for k, found in enumerate(attentions) if k not in bad]
    return body


@attrs.frozen
class Attention:
    """A pattern in a computation, by positions of nodes."""

    forward: frozenset[int]  # empty where only the gradient is computed from these scores
    backward: frozenset[int]  # without what it computes again; empty without gradients
    recomputed: frozenset[int]  # of the forward nodes: also computed by the backward cluster
    scores: frozenset[int]  # the products that the exponential is made of


class _Graph:
    """A computation, and what may be done with its nodes."""

    def __init__(self, module: Module, body: Computation) -> None:
        self.module = module
        self.body = body
        self.nodes = body.nodes
        self.users = users_of(body)
        self.roles = roles_of(module, body)

    def is_product(self, position: int) -> bool:
        return self.nodes[position].op == "dot"

    def is_inner(self, position: int) -> bool:
        """Whether a node may stand between two products of a pattern."""
        role = self.roles[position]
        return role in _COMPUTED or self.nodes[position].op == "transpose"

    def is_scalar(self, position: int) -> bool:
        """Whether a value is the same number in all elements, and known."""
        while self.nodes[position].op == "broadcast":
            (position,) = self.nodes[position].operands
        return self.roles[position] is NodeRole.CONSTANT

    def changes(self, position: int) -> bool:
        """Whether a node computes elements or moves them, one by one."""
        op = self.nodes[position].op
        is_elementwise = self.roles[position] is NodeRole.FUSED and op != "reduce"
        return is_elementwise or op in ("transpose", "convert")

    def copied(self, members: set[int], taken: Collection[int], heads: bool = True) -> set[int]:
        """What members read, but rather compute themselves.

        That is what costs next to nothing, and with `heads` what only changes an operand of a
        product. Nothing of `taken`, the members of all clusters, has copies.
        """
        copies: set[int] = set()
        if heads:
            copies |= self._heads(members, taken)
        pending = {operand for p in members | copies for operand in self.nodes[p].operands}
        pending -= members | copies
        while pending:
            chain = self._cheap(pending.pop(), taken)
            copies |= chain
            read = {operand for position in chain for operand in self.nodes[position].operands}
            pending |= read - copies - members
        return copies

    def _heads(self, cluster: set[int], taken: Collection[int]) -> set[int]:
        """What only changes an operand of a product: its type, layout or scale."""
        heads: set[int] = set()
        pending = [
            operand
            for position in cluster
            if self.is_product(position)
            for operand in self.nodes[position].operands
        ]
        while pending:
            position = pending.pop()
            if position not in cluster | heads and self._is_head(position, taken):
                heads.add(position)
                pending += self.nodes[position].operands
        return heads

    def _is_head(self, position: int, taken: Collection[int]) -> bool:
        """Whether a value is made of one array that is smaller, or of that size and else unread."""
        node = self.nodes[position]
        if position in taken or not self.changes(position):
            return False
        sources = [operand for operand in node.operands if not self.is_scalar(operand)]
        if len(sources) != 1:
            return False
        size = self.nodes[sources[0]].array.size_bytes
        is_ours = all(user in taken for user in self.users[position])
        is_unread = is_ours and position != self.body.root
        return size < node.array.size_bytes or (is_unread and size == node.array.size_bytes)

    def _cheap(self, position: int, taken: Collection[int]) -> set[int]:
        """The nodes that make a value of much smaller ones; none if it is made otherwise."""
        if not isinstance(self.nodes[position].type, ArrayType):
            return set()
        size = self.nodes[position].array.size_bytes
        chain, pending = {position}, [position]
        while pending:
            current = pending.pop()
            if self.roles[current] is NodeRole.CONSTANT:
                continue
            is_computed = self.roles[current] in _COMPUTED
            if not is_computed or self.nodes[current].op == "reduce" or current in taken:
                return set()
            for operand in set(self.nodes[current].operands) - chain:
                is_constant = self.roles[operand] is NodeRole.CONSTANT
                if is_constant or self.nodes[operand].array.size_bytes * _NEGLIGIBLE_RATIO > size:
                    chain.add(operand)
                    pending.append(operand)
            if len(chain) > _MOST_COPIED:
                return set()
        return chain


class _AttentionSearch:
    """The search for patterns in a computation."""

    def __init__(self, graph: _Graph) -> None:
        self._graph = graph
        self._body = graph.body
        self._nodes = graph.nodes
        self._users = graph.users
        self._regions = region_ids_of(graph.body)

    def attentions(self) -> Iterator[Attention]:
        """Every pattern that is worth a cluster; no two have a node in common."""
        taken: set[int] = set()
        for position, node in enumerate(self._nodes):
            if node.op != "exponential" or position in taken:
                continue
            found = self._at(position)
            if found is not None and not taken & (found.forward | found.backward):
                taken |= found.forward | found.backward
                yield found

    def _at(self, exponential: int) -> Attention | None:
        """The pattern around an exponential."""
        sums = self._sums(exponential)
        if not sums:
            return None
        elements = self._nodes[exponential].array.elements
        scores = self._products_of([exponential], elements)
        softmax = self._behind(scores)  # and whatever else is made of the scores
        if not scores or softmax is None:
            return None
        consumers = sorted(
            {user for p in softmax for user in self._users[p] if self._graph.is_product(user)}
        )
        classes = tiling(self._body, {*scores, *softmax, *consumers}).classes
        keys = {
            classes[self._inner_operand(total, softmax)][d]
            for total in sums
            for d in self._nodes[total].integers("dimensions")
        }
        results: list[int] = []  # products of probabilities and values
        gradients: list[int] = []  # all other products
        gradient_scores = set[int]()  # products of the scores' size that gradients depend on
        for consumer in consumers:
            read = [operand for operand in self._nodes[consumer].operands if operand in softmax]
            others = self._products_of(read, elements) - scores
            gradient_scores |= others
            is_one = len(read) == 1 and not others
            is_result = is_one and self._contracts(consumer, read[0], keys, classes)
            (results if is_result else gradients).append(consumer)
        forward = self._between(results, scores | softmax)
        if forward:
            forward |= scores
        behind_gradients = self._behind(gradient_scores)
        if behind_gradients is None or not (forward or gradient_scores):
            return None
        given = {p for p in forward if not self._has_any(p, keys, classes)}
        inside = (scores | softmax | gradient_scores | behind_gradients) - given
        needed = self._between(gradients, inside)
        found = Attention(
            frozenset(forward),
            frozenset(needed - forward),
            frozenset(needed & forward),
            frozenset(scores),
        )
        return found if self._pays(found) else None

    def _has_any(
        self, position: int, kinds: Collection[int], classes: Mapping[int, Sequence[int]]
    ) -> bool:
        """Whether a value has more than one element of any of these classes."""
        shape = self._nodes[position].array.shape
        return any(
            kind in kinds and size != 1 for kind, size in zip(classes[position], shape, strict=True)
        )

    # Walks through what is fused

    def _behind(self, starts: Iterable[int]) -> set[int] | None:
        """What is made of these nodes without products; None if it is too much."""
        found: set[int] = set()
        pending = list(starts)
        while pending:
            for user in self._users[pending.pop()]:
                if self._graph.is_inner(user) and user not in found:
                    found.add(user)
                    pending.append(user)
            if len(found) > _MOST_NODES:
                return None
        return found

    def _between(self, ends: Iterable[int], inside: Collection[int]) -> set[int]:
        """These nodes, and those of `inside` that lead to them through others of it."""
        found = set(ends)
        pending = list(found)
        while pending:
            for operand in self._nodes[pending.pop()].operands:
                if operand in inside and operand not in found:
                    found.add(operand)
                    pending.append(operand)
        return found

    def _products_of(self, starts: Iterable[int], elements: int) -> set[int]:
        """Products with so many elements that lead to these nodes without other products."""
        seen = set(starts)
        pending = list(seen)
        found: set[int] = set()
        while pending and len(seen) <= _MOST_NODES:
            position = pending.pop()
            if self._graph.is_product(position):
                if self._nodes[position].array.elements == elements:
                    found.add(position)
            elif self._graph.is_inner(position):
                new = set(self._nodes[position].operands) - seen
                seen |= new
                pending += new
        return found

    def _sums(self, exponential: int) -> list[int]:
        """Reductions by addition of an exponential, perhaps in another type or layout."""
        found, pending = [], [exponential]
        while pending:
            for user in self._users[pending.pop()]:
                node = self._nodes[user]
                if node.op in _LAYOUTS and self._graph.is_inner(user):
                    pending.append(user)
                elif node.op == "reduce" and self._graph.is_inner(user):
                    reduction = reduction_of(self._graph.module.computations[node.callee()])
                    if reduction is Reduction.ADD:
                        found.append(user)
        return found

    def _inner_operand(self, reduction: int, made: Collection[int]) -> int:
        return next(operand for operand in self._nodes[reduction].operands if operand in made)

    def _contracts(
        self,
        product: int,
        operand: int,
        keys: Collection[int],
        classes: Mapping[int, Sequence[int]],
    ) -> bool:
        """Whether a product contracts keys, and nothing else, of an operand."""
        node = self._nodes[product]
        side = ("lhs", "rhs")[node.operands.index(NodeId(operand))]
        shape = self._nodes[operand].array.shape
        contracted = [
            classes[operand][d] for d in node.integers(f"{side}_contracting_dims") if shape[d] != 1
        ]
        return bool(contracted) and all(kind in keys for kind in contracted)

    # What pays

    def _pays(self, found: Attention) -> bool:
        """Whether the clusters fit, stay in one region, and read less than they save.

        Of few queries and many keys, as in decoding, scores are small beside keys and values, which
        are read in any case.
        """
        clusters = [found.forward, found.backward | found.recomputed]
        both = found.forward | found.backward
        for cluster in filter(None, clusters):
            if len({self._regions[position] for position in cluster}) > 1:
                return False
            versions = (self._graph.copied(set(cluster), both, heads) for heads in (True, False))
            if not any(fits(self._body, cluster | copies) for copies in versions):
                return False
        if _PASSES * self._bytes(found.scores) < self._bytes(self._factors(found)):
            return False
        written = {
            operand
            for position in found.backward
            for operand in self._nodes[position].operands
            if operand in found.recomputed
        }
        read = {
            operand
            for position in found.recomputed
            if self._graph.is_product(position)
            for operand in self._nodes[position].operands
        }
        return self._bytes(read) <= 2 * self._bytes(written)

    def _factors(self, found: Attention) -> set[int]:
        """The operands of the forward products that are made outside: queries, keys and values."""
        inside = found.forward | found.scores
        return {
            operand
            for position in inside
            if self._graph.is_product(position)
            for operand in self._nodes[position].operands
            if operand not in inside
        }

    def _bytes(self, positions: Iterable[int]) -> int:
        return sum(self._nodes[position].array.size_bytes for position in positions)


class _Recomputing:
    """A computation with the nodes that backward clusters compute again as nodes of their own."""

    def __init__(self, body: Computation, attentions: Sequence[Attention]) -> None:
        self._body = body
        self._rebuild = Rebuild(body)
        self._of_backward = {p: k for k, each in enumerate(attentions) for p in each.backward}
        self._copies: list[dict[int, NodeId]] = [{} for _ in attentions]
        self._attentions = attentions

    def run(self) -> tuple[Computation, list[set[int]]]:
        """The new computation, and its clusters: forward and backward ones, in turn."""
        rebuild = self._rebuild
        for position, node in enumerate(self._body.nodes):
            number = self._of_backward.get(position)
            now = rebuild.rewired(node) if number is None else self._rewired(node, number)
            rebuild.new_ids.append(rebuild.add(now))
        clusters: list[set[int]] = []
        for found, copies in zip(self._attentions, self._copies, strict=True):
            clusters.append({int(rebuild.new_ids[position]) for position in found.forward})
            backward = {int(rebuild.new_ids[position]) for position in found.backward}
            clusters.append(backward.union(map(int, copies.values())))
        return rebuild.finish(), clusters

    def _rewired(self, node: Node, number: int) -> Node:
        """A node of a backward cluster, which reads copies of what is computed again.

        A copy stands right before its first reader, so it comes after what it reads.
        """
        recomputed = self._attentions[number].recomputed
        new_ids = self._rebuild.new_ids
        operands = tuple(
            self._copy(operand, number) if operand in recomputed else new_ids[operand]
            for operand in node.operands
        )
        return attrs.evolve(node, operands=operands)

    def _copy(self, position: int, number: int) -> NodeId:
        copies = self._copies[number]
        if position not in copies:
            node = self._body.nodes[position]
            copy = self._rewired(node, number)
            name = self._rebuild.fresh(f"{node.name}.again")
            copies[position] = self._rebuild.add(attrs.evolve(copy, name=name))
        return copies[position]


class _Clusters:
    """The clusters of a computation, with what is computed on the way into them and out."""

    def __init__(self, graph: _Graph, cores: Sequence[set[int]]) -> None:
        self._graph = graph
        self._nodes = graph.nodes
        self._users = graph.users
        self._root = graph.body.root
        self._taken = {position for core in cores for position in core}
        self._cores = cores

    def sets(self) -> list[tuple[set[int], set[int]]]:
        """Members and copies of every cluster."""
        return [self._extended(core) for core in self._cores if core]

    def _extended(self, core: set[int]) -> tuple[set[int], set[int]]:
        """A core with as much around it as fits."""
        tails = self._tails(core)
        for members, heads in ((core | tails, True), (core, True), (core | tails, False)):
            copies = self._graph.copied(members, self._taken, heads)
            if fits(self._graph.body, members | copies):
                self._taken |= members
                return members, copies
        return core, self._graph.copied(core, self._taken, heads=False)

    def _tails(self, core: set[int]) -> set[int]:
        """What only changes a result on its way out: its layout, scale, or type (not wider)."""
        tails: set[int] = set()
        for product in sorted(core):
            if self._nodes[product].op != "dot":
                continue
            chain, position = list[int](), product
            while len(self._users[position]) == 1 and position != self._root:
                (user,) = self._users[position]
                node = self._nodes[user]
                if user in self._taken or not self._graph.changes(user):
                    break
                if node.array.elements != self._nodes[position].array.elements:
                    break
                others = (operand for operand in node.operands if operand != position)
                if not all(self._graph.is_scalar(operand) for operand in others):
                    break
                chain.append(user)
                position = user
            size = self._nodes[product].array.size_bytes
            while chain and self._nodes[chain[-1]].array.size_bytes > size:
                chain.pop()
            tails.update(chain)
        return tails


def _in_cycles(
    body: Computation,
    sets: Sequence[tuple[set[int], set[int]]],
    anti: Mapping[int, Sequence[int]],
) -> set[int]:
    """The numbers of clusters that wait for themselves, directly or through others.

    What can run first is taken away, and then what nothing waits for, until nothing can (Kahn's
    algorithm from both ends): what is left is on cycles, or between two of them.
    """
    nodes = body.nodes
    # where a value is computed: at a node, or at a cluster, numbered behind the nodes
    computed_at = list(range(len(nodes)))
    for number, (members, _) in enumerate(sets, start=len(nodes)):
        for position in members:
            computed_at[position] = number
    places = {position: [place] for position, place in enumerate(computed_at)}
    before: list[set[int]] = [set() for _ in range(len(nodes) + len(sets))]
    for position, node in enumerate(nodes):
        if computed_at[position] == position:
            before[position] = {computed_at[operand] for operand in node.operands}
    for number, (members, copies) in enumerate(sets, start=len(nodes)):
        for position in members | copies:
            before[number] |= {computed_at[p] for p in nodes[position].operands if p not in copies}
        for position in copies:
            places[position].append(number)
    for position, others in anti.items():
        for place in places[position]:
            before[place].update(place for other in others for place in places[other])
    for place, waited_for in enumerate(before):
        waited_for.discard(place)
    after: list[set[int]] = [set() for _ in before]
    for place, waited_for in enumerate(before):
        for other in waited_for:
            after[other].add(place)
    left = set(range(len(before)))
    for edges, reverse in ((before, after), (after, before)):
        missing = {place: len(edges[place] & left) for place in left}
        ready = [place for place, count in missing.items() if not count]
        while ready:
            place = ready.pop()
            left.discard(place)
            for other in reverse[place] & left:
                missing[other] -= 1
                if not missing[other]:
                    ready.append(other)
    return {place - len(nodes) for place in left if place >= len(nodes)}
