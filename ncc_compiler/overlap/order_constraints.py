"""How many layers ahead weights are gathered, and how many late gradients are scattered.

A layer is known by its collectives (`layers.py`): of one computation and stream, layer k begins
where a result of its all-gathers is first read, and is over where one is last read; its gradients
are there where the operands of its reduce-scatters are. AWS calls the distances
NEURON_FSDP_NUM_LAYER_EARLY_AG_SHIFT and NEURON_FSDP_NUM_LAYER_LATE_RS_SHIFT.

Which collectives belong to one layer: a layer is what repeats.

A sharded model gathers several arrays for each layer, with the same types from layer to layer:

    embedding │ q k v o up down │ q k v o up down │ head

Of a list of types, the stretch that repeats the farthest is taken for layers, from left to right;
a collective that repeats nothing is a layer by itself.

Orders that are worth keeping, though no value depends on them.

A step that may write where it reads does so only if nobody reads the old value after it: an update
of a slice, or what makes the next state of a loop. Where that holds in program order, it stays so;
else the array would be copied. And a barrier stays among the collectives of its stream.

Whose turn it is among updates, which read collectives and lead to none.

How long a collective takes is not known, but those that started earlier are there earlier. So no
update is given to a queue before all that wait for less are: there it would hold them up.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Hashable, Mapping, Sequence

from ncc_compiler.ir.collectives import written_stream
from ncc_compiler.ir.graph import Computation
from ncc_compiler.ir.ops import OPS
from ncc_compiler.overlap.analyses import LiveRanges, ancestors_among

_MOST = 64
"""Collectives of a layer; longer stretches are not looked for."""


def layers_of(kinds: Sequence[Hashable]) -> list[range]:
    """The places of each layer in a list of kinds, in order."""
    alike = [_run_lengths(kinds, length) for length in range(1, min(_MOST, len(kinds) // 2) + 1)]
    found, first = [], 0
    while first < len(kinds):
        length, times = _best([run[first] if first < len(run) else 0 for run in alike])
        found += [
            range(start, start + length) for start in range(first, first + length * times, length)
        ]
        first += length * times
    return found


def _run_lengths(kinds: Sequence[Hashable], distance: int) -> list[int]:
    """How many kinds from each place on are those at a distance behind them."""
    found = [0] * (len(kinds) - distance + 1)
    for place in range(len(kinds) - distance - 1, -1, -1):
        if kinds[place] == kinds[place + distance]:
            found[place] = found[place + 1] + 1
    return found


def _best(runs: Sequence[int]) -> tuple[int, int]:
    """The length of a layer and how often it comes, given the run at each length."""
    best = 1, 1
    for length, run in enumerate(runs, start=1):
        times = run // length + 1
        if times > 1 and length * times > best[0] * best[1]:
            best = length, times
    return best


_GATHERS = frozenset({"all-gather"})
_SCATTERS = frozenset({"reduce-scatter", "ncc.avg_reduce_scatter"})

Layer = Sequence[int]
"""The collectives of a layer."""


def shifted_starts(
    body: Computation, lifetimes: LiveRanges, early: int | None, late: int | None
) -> Mapping[int, int]:
    """For collectives that start later than they could, the node that they wait for."""
    found: dict[int, int] = {}
    if early is not None:
        for layers in _by_stream(body, _GATHERS):
            found |= _gathers(lifetimes, layers, early)
    if late:
        for layers in _by_stream(body, _SCATTERS):
            found |= _scatters(body, lifetimes, layers, late)
    before = ancestors_among(body, found) if found else []
    bits = {one: 1 << k for k, one in enumerate(sorted(found))}
    return {one: until for one, until in found.items() if not before[until] & bits[one]}


def _gathers(lifetimes: LiveRanges, layers: Sequence[Layer], early: int) -> dict[int, int]:
    """All-gathers wait for the layer so much earlier to begin, or the one before to be over."""
    found: dict[int, int] = {}
    distance = max(1, early)
    for earlier, layer in zip(layers, layers[distance:], strict=False):
        readers = [reader for one in earlier for reader in lifetimes.readers[one]]
        if readers:
            found |= dict.fromkeys(layer, min(readers) if early else max(readers))
    return found


def _scatters(
    body: Computation, lifetimes: LiveRanges, layers: Sequence[Layer], late: int
) -> dict[int, int]:
    """Reduce-scatters wait for the gradients of the layer so much later, or of the last one."""
    made = [
        max(
            maker
            for one in layer
            for operand in body.nodes[one].operands
            for maker in lifetimes.made_in[operand]
        )
        for layer in layers
    ]
    last = len(layers) - 1
    return {one: made[min(k + late, last)] for k in range(last) for one in layers[k]}


def _by_stream(body: Computation, ops: Collection[str]) -> list[list[Layer]]:
    """The layers of the collectives of these ops, in order, for each stream."""
    found: dict[int, list[int]] = {}
    for position, node in enumerate(body.nodes):
        if node.op in ops:
            found.setdefault(written_stream(node) or 0, []).append(position)
    return [
        [
            [places[k] for k in layer]
            for layer in layers_of([body.nodes[place].type for place in places])
        ]
        for places in found.values()
    ]


_IN_PLACE = frozenset({"copy", "dynamic-update-slice"})
_BARRIER = "ncc.barrier"


def anti_dependences(body: Computation, lifetimes: LiveRanges) -> Mapping[int, Sequence[int]]:
    """For some nodes, others that stay before them."""
    found: dict[int, list[int]] = defaultdict(list)
    for position, node in enumerate(body.nodes):
        if node.op in _IN_PLACE:
            for maker in _makers(body, lifetimes, position):
                _keep(found, lifetimes.readers[maker], position)
    _keep_states(body, lifetimes, found)
    _keep_barriers(body, found)
    return found


def _makers(body: Computation, lifetimes: LiveRanges, position: int) -> Sequence[int]:
    """Where the first operand of a node that works in place was made."""
    return lifetimes.made_in[body.nodes[position].operands[0]]


def _keep(found: dict[int, list[int]], readers: Sequence[int], writer: int) -> None:
    """Keep readers before the writer, if it comes after all of them now."""
    others = [reader for reader in readers if reader != writer]
    if all(reader < writer for reader in others):
        found[writer] += others


def _keep_states(body: Computation, lifetimes: LiveRanges, found: dict[int, list[int]]) -> None:
    """Of a body of a loop, new elements of the state behind what reads the old ones."""
    parameters, root = body.parameters(), body.nodes[body.root]
    is_body = len(parameters) == 1 and body.nodes[parameters[0]].type == root.type
    if not is_body or root.op != "tuple":
        return
    for position, node in enumerate(body.nodes):
        if node.op == "get-tuple-element" and node.operands == parameters:
            for maker in lifetimes.made_in[root.operands[node.integer("index")]]:
                _keep(found, lifetimes.readers[position], maker)


def _keep_barriers(body: Computation, found: dict[int, list[int]]) -> None:
    """Between the collectives that they stand between now."""
    barriers: dict[int, int] = {}  # by stream
    since: dict[int, list[int]] = defaultdict(list)
    if not any(node.op == _BARRIER for node in body.nodes):
        return
    for position, node in enumerate(body.nodes):
        if not OPS[node.op].collective:
            continue
        stream = written_stream(node) or 0
        if node.op == _BARRIER:
            found[position] += since.pop(stream, [])
            barriers[stream] = position
        elif stream in barriers:
            found[position].append(barriers[stream])
        since[stream].append(position)


class UpdateOrder:
    """The order of updates once all collectives are on their way."""

    def __init__(
        self, after: Sequence[Sequence[int]], started: Sequence[int], updates: Collection[int]
    ) -> None:
        """By tasks in program order: what each waits for, collectives, updates that are left."""
        own = {number: turn for turn, number in enumerate(started, 1)}
        self._turn: list[int] = []  # of a task: the last collective that it is or reads
        for number, others in enumerate(after):
            reads = max((self._turn[other] for other in others), default=0)
            self._turn.append(max(reads, own.get(number, 0)))
        self._left = Counter(self._turn[number] for number in updates)
        self._updates = frozenset(updates)
        self._now = min(self._left, default=0)

    def has_come(self, number: int) -> bool:
        """Whether this update may be taken."""
        return self._turn[number] <= self._now

    def take(self, number: int) -> bool:
        """Note that a task is taken; whether the turn passes on by it."""
        if number not in self._updates:
            return False
        turn = self._turn[number]
        self._left[turn] -= 1
        if self._left[turn]:
            return False
        del self._left[turn]
        before, self._now = self._now, min(self._left, default=len(self._turn))
        return self._now > before
