"""The verdict of the model checker without its graph, for programs whose graph is too large.

Counters only grow, so of all states in which two chains have not passed two given rows there is one
that all others lead to: where nothing but these two rows can be done. The rows can be enabled
together if and only if they are there. That decides each pair of rows exactly, also where several
chains increment one semaphore; the exhaustive search is what it is tested against.
"""

from collections.abc import Mapping

from ncc_runtime.lowering.executable import Executable
from tests.model_checker import NEVER, Graph, State, TooManyStatesError, Verdict
from tests.model_checker_counts import overflows
from tests.model_checker_routes import broken_routes
from tests.model_checker_rows import chains_of
from tests.model_checker_ways import ways_by_rank

Stops = Mapping[int, int]
"""By chain, the row that it must not pass."""


def furthest(graph: Graph, stops: Stops) -> State:
    """How far all chains get."""
    state = [0] * len(graph.chains)
    waiting = set(range(len(state)))
    while waiting:
        chain = waiting.pop()
        before, stop = state[chain], stops.get(chain, NEVER)
        while state[chain] < stop and graph.is_enabled(state, chain):
            state[chain] += 1
        if state[chain] > before:
            waiting |= graph.followers[chain]
    return tuple(state)


def check_pairs(graph: Graph) -> Verdict:
    """The same verdict as Graph.explore, with every race rather than those on the way."""
    end = furthest(graph, {})
    deadlocks = tuple(graph.stuck(end))
    alone: dict[tuple[int, int], State] = {}
    races, wrong = [], list(graph.strays())
    for one, other in graph.rivalries():
        for row in (one, other):
            if row not in alone:
                alone[row] = furthest(graph, dict([row]))
        if alone[one][other[0]] < other[1] or alone[other][one[0]] < one[1]:
            continue
        state = furthest(graph, dict([one, other]))
        at = one[0], other[0]
        if (state[at[0]], state[at[1]]) != (one[1], other[1]):
            continue
        if all(graph.is_enabled(state, chain) for chain in at):
            (wrong if graph.is_barrier(state, at) else races).append(graph.about(state, at))
    if not races and not deadlocks:
        wrong += graph.values()
    return Verdict(deadlocks, tuple(races), tuple(wrong), states=len(alone))


def decide(executable: Executable, most_states: int = 3000) -> Verdict:
    """The verdict on all ways: by all interleavings where they are few, else by pairs."""
    found = Verdict(routes=tuple(broken_routes(executable)), counts=tuple(overflows(executable)))
    for way in ways_by_rank(executable.program):
        graph = Graph(executable, chains_of(executable, way))
        try:
            found |= graph.explore(True, most_states)
        except TooManyStatesError:
            found |= check_pairs(graph)
    return found
