"""Orders that the scheduler keeps though no value depends on them.

- `shifted_starts`: how many layers early weights are gathered, and how many layers late gradients
  are scattered. AWS calls the distances NEURON_FSDP_NUM_LAYER_EARLY_AG_SHIFT and
  NEURON_FSDP_NUM_LAYER_LATE_RS_SHIFT. Of one computation and stream, layer k begins where a result
  of its all-gathers is first read and is over where one is last read; its gradients are there where
  the operands of its reduce-scatters are.
- `anti_dependences`: reads of a value that stay before the operation that may overwrite it.
- `UpdateOrder`: updates run in the order in which the collectives that they read have started.

What belongs to one layer is not written in a program; a layer is what repeats. A sharded model
gathers several arrays for each layer, with the same types from layer to layer:

    embedding │ q k v o up down │ q k v o up down │ head

From left to right, `layers_of` takes the period that repeats over the longest run; a collective
that repeats nothing is a layer by itself.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Hashable, Mapping, Sequence

from ncc_compiler.ir.collectives import written_stream
from ncc_compiler.ir.graph import Computation
from ncc_compiler.ir.ops import OPS
from ncc_compiler.overlap.analyses import LiveRanges, ancestors_among

_MAX_PERIOD = 64
"""Collectives of a layer; longer periods are not looked for."""


def layers_of(kinds: Sequence[Hashable]) -> list[range]:
    """The places of each layer in a list of kinds, in order."""
    max_period = min(_MAX_PERIOD, len(kinds) // 2)
    matches = [_match_lengths(kinds, period) for period in range(1, max_period + 1)]
    layers, first = [], 0
    while first < len(kinds):
        period, repeats = 1, 1
        for candidate, lengths in enumerate(matches, start=1):
            # m kinds that equal those a period behind them: m // period repeats of the first ones
            count = (lengths[first] if first < len(lengths) else 0) // candidate + 1
            if count > 1 and candidate * count > period * repeats:
                period, repeats = candidate, count
        end = first + period * repeats
        layers += [range(start, start + period) for start in range(first, end, period)]
        first = end
    return layers


def _match_lengths(kinds: Sequence[Hashable], distance: int) -> list[int]:
    """From each place on, how many kinds in a row equal the one at a distance behind them."""
    lengths = [0] * (len(kinds) - distance + 1)
    for place in range(len(kinds) - distance - 1, -1, -1):
        if kinds[place] == kinds[place + distance]:
            lengths[place] = lengths[place + 1] + 1
    return lengths


_GATHERS = frozenset({"all-gather"})
_SCATTERS = frozenset({"reduce-scatter", "ncc.avg_reduce_scatter"})

Layer = Sequence[int]
"""The collectives of a layer."""


def shifted_starts(
    body: Computation, ranges: LiveRanges, early: int | None, late: int | None
) -> Mapping[int, int]:
    """For collectives that start later than they could, the node that they wait for."""
    shifted: dict[int, int] = {}
    if early is not None:
        for layers in _by_stream(body, _GATHERS):
            shifted |= _gathers(ranges, layers, early)
    if late:
        for layers in _by_stream(body, _SCATTERS):
            shifted |= _scatters(body, ranges, layers, late)
    # A node that itself depends on the collective cannot start before it.
    before = ancestors_among(body, shifted) if shifted else []
    bits = {collective: 1 << k for k, collective in enumerate(sorted(shifted))}
    return {
        collective: until
        for collective, until in shifted.items()
        if not before[until] & bits[collective]
    }


def _gathers(ranges: LiveRanges, layers: Sequence[Layer], early: int) -> dict[int, int]:
    """All-gathers wait until the layer `early` layers before theirs begins.

    With 0 until the layer before theirs is over.
    """
    shifted: dict[int, int] = {}
    distance = max(1, early)
    for earlier, layer in zip(layers, layers[distance:], strict=False):
        readers = [reader for gather in earlier for reader in ranges.readers[gather]]
        if readers:
            shifted |= dict.fromkeys(layer, min(readers) if early else max(readers))
    return shifted


def _scatters(
    body: Computation, ranges: LiveRanges, layers: Sequence[Layer], late: int
) -> dict[int, int]:
    """Reduce-scatters wait for the gradients of the layer `late` layers later, or of the last."""
    gradients_made = [
        max(
            maker
            for scatter in layer
            for operand in body.nodes[scatter].operands
            for maker in ranges.defined_by[operand]
        )
        for layer in layers
    ]
    last = len(layers) - 1
    return {
        scatter: gradients_made[min(k + late, last)] for k in range(last) for scatter in layers[k]
    }


def _by_stream(body: Computation, ops: Collection[str]) -> list[list[Layer]]:
    """The layers of the collectives of these ops, in order, for each stream."""
    streams: dict[int, list[int]] = {}
    for position, node in enumerate(body.nodes):
        if node.op in ops:
            streams.setdefault(written_stream(node) or 0, []).append(position)
    return [
        [
            [places[k] for k in layer]
            for layer in layers_of([body.nodes[place].type for place in places])
        ]
        for places in streams.values()
    ]


_IN_PLACE = frozenset({"copy", "dynamic-update-slice"})
_BARRIER = "ncc.barrier"


def anti_dependences(body: Computation, ranges: LiveRanges) -> Mapping[int, Sequence[int]]:
    """For some nodes, others that stay before them, as they are in program order.

    An operation that may work in place (a copy, an update of a slice, what makes the next state of
    a loop) overwrites its operand only where nobody reads it afterwards; else the array is copied.
    A barrier stays among the collectives of its stream.
    """
    before: dict[int, list[int]] = defaultdict(list)
    for position, node in enumerate(body.nodes):
        if node.op in _IN_PLACE:
            for maker in ranges.defined_by[node.operands[0]]:
                _keep_readers(before, ranges.readers[maker], position)
    _keep_states(body, ranges, before)
    _keep_barriers(body, before)
    return before


def _keep_readers(before: dict[int, list[int]], readers: Sequence[int], writer: int) -> None:
    """Keep readers before the writer, if it comes after all of them now."""
    others = [reader for reader in readers if reader != writer]
    if all(reader < writer for reader in others):
        before[writer] += others


def _keep_states(body: Computation, ranges: LiveRanges, before: dict[int, list[int]]) -> None:
    """In the body of a loop, keep new elements of the state behind the reads of the old ones."""
    parameters, root = body.parameters(), body.nodes[body.root]
    is_body = len(parameters) == 1 and body.nodes[parameters[0]].type == root.type
    if not is_body or root.op != "tuple":
        return
    for position, node in enumerate(body.nodes):
        if node.op == "get-tuple-element" and node.operands == parameters:
            for maker in ranges.defined_by[root.operands[node.integer("index")]]:
                _keep_readers(before, ranges.readers[position], maker)


def _keep_barriers(body: Computation, before: dict[int, list[int]]) -> None:
    """Keep barriers between the collectives of their stream that they stand between now."""
    barriers: dict[int, int] = {}  # by stream
    since_barrier: dict[int, list[int]] = defaultdict(list)  # by stream
    if not any(node.op == _BARRIER for node in body.nodes):
        return
    for position, node in enumerate(body.nodes):
        if not OPS[node.op].collective:
            continue
        stream = written_stream(node) or 0
        if node.op == _BARRIER:
            before[position] += since_barrier.pop(stream, [])
            barriers[stream] = position
        elif stream in barriers:
            before[position].append(barriers[stream])
        since_barrier[stream].append(position)


class UpdateOrder:
    """Which updates may run, once all collectives are on their way.

    How long a collective takes is not known, but those that started earlier are done earlier. So
    no update is given to a queue before all that wait for earlier collectives are: in an in-order
    queue its wait would hold them up.
    """

    def __init__(
        self, after: Sequence[Sequence[int]], started: Sequence[int], updates: Collection[int]
    ) -> None:
        """By tasks in program order: what each waits for, collectives, updates that are left."""
        starts = {number: start for start, number in enumerate(started, 1)}
        # Of each task: the last collective that it is or reads, by their order of starts; 0: none.
        self._awaited: list[int] = []
        for number, others in enumerate(after):
            reads = max((self._awaited[other] for other in others), default=0)
            self._awaited.append(max(reads, starts.get(number, 0)))
        self._left = Counter(self._awaited[number] for number in updates)
        self._updates = frozenset(updates)
        self._current = min(self._left, default=0)  # updates of this collective may run

    def may_run(self, number: int) -> bool:
        """Whether no update is left that waits for an earlier collective than this one."""
        return self._awaited[number] <= self._current

    def take(self, number: int) -> bool:
        """Note that a task is taken; gives whether more updates may run now."""
        if number not in self._updates:
            return False
        collective = self._awaited[number]
        self._left[collective] -= 1
        if self._left[collective]:
            return False
        del self._left[collective]
        before, self._current = self._current, min(self._left, default=len(self._awaited))
        return self._current > before
