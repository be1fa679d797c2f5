"""Which nodes of different ranks are one collective or one message, and an order of all.

As with MPI's communicators (MPI 3.1, section 5.13), order matches: the n-th collective of a process
group on one rank is the n-th on the others, and the n-th message from one rank to another with a
tag is the n-th that the other receives. All ranks then have one graph, whose nodes are instructions
of a rank and *meetings* of several. Its topological order (Kahn, 1962), which follows the files
where it may, is an order for every rank in which none waits for another for ever.

Messages of one size that could go at once, each rank sending and receiving one at most, are one
meeting, a permute: so what a ring of ranks does together is no chain.
"""

import heapq
import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import attrs

from ncc_compiler.frontends.chakra import files
from ncc_compiler.frontends.chakra.files import ChakraTrace, RankTrace, TraceNode, refusal
from ncc_runtime.neff.shared.chakra import COLLECTIVE, CommType, NodeType

Members = tuple[int, ...]
"""Ranks of a process group, in its order."""


@attrs.frozen
class ExchangeKind:
    """What a meeting moves: equal on all of its ranks."""

    kind: CommType | None  # None: messages
    size_bytes: int  # of a rank's operand
    members: int = 0  # of the group
    stream: int = 0  # as the trace numbers them
    label: str = ""  # messages with different ones are different permutes


@attrs.frozen(eq=False)
class Meeting:
    """A collective of a group, or messages that go at once."""

    what: ExchangeKind
    group: Members  # empty for messages
    pairs: tuple[tuple[int, int], ...]  # of messages
    node: TraceNode  # of its first rank: name and details


@attrs.frozen(eq=False)
class Item:
    """What a rank does next: an instruction, or its part of a meeting."""

    node: TraceNode
    meeting: int | None  # number of the meeting
    deps: tuple[int, ...]  # items of this rank that come before it, ascending


@attrs.frozen(eq=False)
class OrderedRanks:
    """A trace of all ranks in an order that all can keep."""

    meetings: tuple[Meeting, ...]
    items: tuple[tuple[Item, ...], ...]  # by rank


def ordered(trace: ChakraTrace) -> OrderedRanks:
    """Match what belongs together and order it; CompileError (chakra-C2 to -C6) where it does not
    fit."""
    return _RankMatching(trace).ordered()


@attrs.frozen(eq=False)
class _LocalGraph:
    """The nodes of one rank without metadata, and which come before which."""

    nodes: tuple[TraceNode, ...]
    deps: tuple[tuple[int, ...], ...]
    users: tuple[tuple[int, ...], ...]
    followed: int  # dependencies, once for each node that is behind them


def _local_graph(trace: RankTrace, most: int) -> _LocalGraph:
    """The graph of a rank. Who depends on metadata depends on what that depends on.

    So does a receive that depends on a send: simulators let a send end before it is received, and
    two ranks that send first and then receive would wait for each other for ever if it did not.
    Control dependencies on nodes that are not there are left out, as converters drop nodes.

    At most so many dependencies are followed: metadata that joins many nodes for many others would
    have the product of both.
    """
    position = {node.id: at for at, node in enumerate(trace.nodes)}
    before: list[tuple[int, ...]] = []
    for node in trace.nodes:
        lacking = next((dep for dep in node.data_deps if dep not in position), None)
        if lacking is not None:
            raise refusal(
                "chakra-C2",
                f"{trace.place(node)} depends on the data of node {lacking}, which is not there",
                "write the trace whole",
            )
        there = (position[dep] for dep in (*node.data_deps, *node.ctrl_deps) if dep in position)
        before.append(tuple(dict.fromkeys(there)))
    kept = [at for at, node in enumerate(trace.nodes) if node.kind is not NodeType.METADATA]
    number = {at: new for new, at in enumerate(kept)}
    sends = {at for at, node in enumerate(trace.nodes) if node.kind is NodeType.COMM_SEND}
    deps_of, followed = [], 0
    for at in kept:
        passed = sends if trace.nodes[at].kind is NodeType.COMM_RECV else set[int]()
        found, steps = _kept_before(at, before, number, passed)
        deps_of.append(tuple(sorted(found)))
        followed += steps
        if followed > most:
            raise refusal(
                "chakra-C2",
                f"{trace.place(trace.nodes[at])}: with it there are more than "
                f"{files.MOST_DEPENDENCIES:,} dependencies, counted through metadata and sends",
                "leave out metadata on which many nodes depend and that depends on many",
            )
    users: list[list[int]] = [[] for _ in kept]
    for new, deps in enumerate(deps_of):
        for dep in deps:
            users[dep].append(new)
    nodes = tuple(trace.nodes[at] for at in kept)
    return _LocalGraph(nodes, tuple(deps_of), tuple(map(tuple, users)), followed)


def _kept_before(
    at: int, before: Sequence[Sequence[int]], number: Mapping[int, int], passed: set[int]
) -> tuple[list[int], int]:
    """What a node depends on, through what has no number and what is passed by, each once.

    And how many dependencies were followed.
    """
    found, seen, pending, steps = list[int](), set[int](), list(before[at]), 0
    while pending:
        dep = pending.pop()
        steps += 1
        if dep in seen:
            continue
        seen.add(dep)
        if dep in number and dep not in passed:
            found.append(number[dep])
        else:
            pending += before[dep]
    return found, steps


_Place = tuple[int, int]
"""A rank, and a node in its graph."""

_Entry = tuple[int, int, int]
"""What units are ordered by: the first of their places in files and its rank, then their number."""

_FreeMessages = dict[tuple[int, int], list[_Entry]]
"""Messages of one kind that may go: of each source and target a heap."""


class _RankMatching:
    """All ranks as one graph. Its units are instructions, collectives and messages."""

    def __init__(self, trace: ChakraTrace) -> None:
        self._trace = trace
        graphs: dict[int, _LocalGraph] = {}  # ranks alike share their nodes
        left = files.MOST_DEPENDENCIES
        for its in trace.ranks:
            if id(its.nodes) not in graphs:
                graphs[id(its.nodes)] = graph = _local_graph(its, left)
                left -= graph.followed
        self._graphs = [graphs[id(its.nodes)] for its in trace.ranks]
        self._unit_of = [[-1] * len(graph.nodes) for graph in self._graphs]
        self._places: list[tuple[_Place, ...]] = []  # of each unit
        self._meetings: list[Meeting | None] = []  # of each unit
        self._match_collectives()
        self._match_messages()
        for rank, units in enumerate(self._unit_of):
            for at, unit in enumerate(units):
                if unit == -1:
                    self._add_unit(((rank, at),), None)

    def _add_unit(self, places: tuple[_Place, ...], meeting: Meeting | None) -> None:
        for rank, at in places:
            self._unit_of[rank][at] = len(self._places)
        self._places.append(places)
        self._meetings.append(meeting)

    # ---- what belongs together

    def _match_collectives(self) -> None:
        calls: dict[Members, dict[int, list[int]]] = {}  # by group and rank, in order
        everybody = tuple(range(len(self._graphs)))
        for rank, graph in enumerate(self._graphs):
            for at, node in enumerate(graph.nodes):
                if node.kind is NodeType.COMM_COLL:
                    group = self._group_of(rank, node, everybody)
                    if len(group) > 1 and (
                        _size(self._place(rank, node), node) or _is_barrier(node)
                    ):
                        calls.setdefault(group, {}).setdefault(rank, []).append(at)
        for group, by_rank in calls.items():
            self._check_counts(group, by_rank)
            for at_of_ranks in zip(*(by_rank[rank] for rank in group), strict=True):
                places = tuple(zip(group, at_of_ranks, strict=True))
                self._add_unit(places, self._collective(group, places))

    def _check_counts(self, group: Members, by_rank: Mapping[int, Sequence[int]]) -> None:
        counts = {rank: len(by_rank.get(rank, ())) for rank in group}
        fewest, most = min(counts, key=counts.__getitem__), max(counts, key=counts.__getitem__)
        if counts[fewest] < counts[most]:
            extra = self._graphs[most].nodes[by_rank[most][counts[fewest]]]
            raise refusal(
                "chakra-C5",
                f"{self._place(most, extra)} is collective {counts[fewest]} of the group of ranks "
                f"{_listed(group)}, of which rank {fewest} has {counts[fewest]} only",
                "a collective is in the trace of every rank of its group",
            )

    def _collective(self, group: Members, places: Sequence[_Place]) -> Meeting:
        first: ExchangeKind | None = None
        for rank, at in places:
            node = self._graphs[rank].nodes[at]
            place = self._place(rank, node)
            what = ExchangeKind(_comm_type(place, node), _size(place, node), len(group))
            if first is not None and what != first:
                one = self._place(places[0][0], self._graphs[places[0][0]].nodes[places[0][1]])
                raise refusal(
                    "chakra-C5",
                    f"{one} is {_text(first)}, and {place} is {_text(what)}: they would be one "
                    f"collective of the group of ranks {_listed(group)}",
                    "ranks of a group have the same collectives in the same order",
                )
            first = first or what
        assert first is not None, group
        node = self._graphs[places[0][0]].nodes[places[0][1]]
        return Meeting(attrs.evolve(first, stream=stream_of(node)), group, (), node)

    def _match_messages(self) -> None:
        sides: tuple[dict[Any, list[_Place]], ...] = ({}, {})  # sends and receives, by envelope
        for rank, graph in enumerate(self._graphs):
            for at, node in enumerate(graph.nodes):
                if node.kind is NodeType.COMP and COLLECTIVE in node.attributes:
                    size = _size(self._place(rank, node), node)  # a rank's share of a permute
                    what = _message_of(size, node)
                    self._add_unit(((rank, at),), Meeting(what, (), ((rank, rank),), node))
                if node.kind in (NodeType.COMM_SEND, NodeType.COMM_RECV):
                    envelope = self._envelope(rank, node)
                    is_receive = node.kind is NodeType.COMM_RECV
                    sides[is_receive].setdefault(envelope, []).append((rank, at))
        for envelope in dict.fromkeys((*sides[0], *sides[1])):
            sends, receives = (side.get(envelope, []) for side in sides)
            for pair in zip(sends, receives, strict=False):
                self._add_unit(pair, self._message(envelope, pair))
            fewest = min(len(sends), len(receives))
            if len(sends) != len(receives):
                source, target, tag = envelope
                is_send = len(sends) > fewest
                rank, at = (sends if is_send else receives)[fewest]
                other = f"rank {target} receives" if is_send else f"rank {source} sends"
                raise refusal(
                    "chakra-C6",
                    f"{self._place(rank, self._graphs[rank].nodes[at])} is message {fewest} from "
                    f"rank {source} to rank {target} with tag {tag}, and {other} {fewest} only",
                    "every send has its receive on the other rank, with the same comm_tag",
                )

    def _message(self, envelope: tuple[int, int, int], places: Sequence[_Place]) -> Meeting:
        nodes = [self._graphs[rank].nodes[at] for rank, at in places]
        texts = [self._place(rank, node) for (rank, _), node in zip(places, nodes, strict=True)]
        sizes = [_size(text, node) for text, node in zip(texts, nodes, strict=True)]
        if sizes[0] != sizes[1]:
            raise refusal(
                "chakra-C6",
                f"{texts[0]} sends {sizes[0]} bytes, and {texts[1]} receives {sizes[1]}",
                "both sides of a message have one size",
            )
        return Meeting(_message_of(sizes[0], nodes[0]), (), (envelope[:2],), nodes[0])

    def _envelope(self, rank: int, node: TraceNode) -> tuple[int, int, int]:
        """Source, target and tag of a message; the trace's rank is one of both."""
        is_send = node.kind is NodeType.COMM_SEND
        key = "comm_dst" if is_send else "comm_src"
        peer, tag = node.attributes.get(key), node.attributes.get("comm_tag", 0)
        if type(peer) is not int or not 0 <= peer < len(self._graphs) or peer == rank:
            given = "has no" if peer is None else f"has {peer!r} as its"
            raise refusal(
                "chakra-C6",
                f"{self._place(rank, node)} {given} {key}; it must be another of "
                f"{len(self._graphs)} ranks",
                f"say with the attribute {key} who {'receives' if is_send else 'sends'} it",
            )
        number = tag if type(tag) is int else 0
        return (rank, peer, number) if is_send else (peer, rank, number)

    def _group_of(self, rank: int, node: TraceNode, everybody: Members) -> Members:
        name = node.attributes.get("pg_name", "")
        if name in ("", None):
            involved = node.attributes.get("involved_dim", ())
            if not all(involved if isinstance(involved, tuple) else ()):
                raise refusal(
                    "chakra-C4",
                    f"{self._place(rank, node)} is over some dimensions of a network "
                    "(involved_dim), which a trace does not know",
                    "give its process group as pg_name",
                )
            return everybody
        group = self._trace.groups.get(str(name))
        if group is None:
            known = ", ".join(list(self._trace.groups)[:8]) or "none"
            place = self._place(rank, node)
            raise refusal(
                "chakra-C4",
                f"{place} is of process group {str(name)[:40]!r}; known are {known}",
                'give the groups as {"NAME": [ranks], …} with --comm-groups FILE.json',
            )
        if rank not in group:
            raise refusal(
                "chakra-C4",
                f"{self._place(rank, node)} is of process group {str(name)[:40]!r}, ranks "
                f"{_listed(group)}, and not of rank {rank}",
                "give the groups of this trace with --comm-groups FILE.json",
            )
        return group

    def _place(self, rank: int, node: TraceNode) -> str:
        return self._trace.ranks[rank].place(node)

    # ---- the order

    def ordered(self) -> OrderedRanks:
        """Meetings in an order of all ranks, and each rank's items in that of its file else.

        Collectives come as they do in the files where ranks agree in that, so that alike ranks stay
        alike; otherwise dependencies alone say what comes first.
        """
        order = self._order(self._in_file_order())
        if order is None:
            order = self._order({})
        assert order is not None, "without more to wait for a cycle is refused"
        meetings: list[Meeting] = []
        meeting_of: dict[int, int] = {}  # by unit
        for units in order:
            first = self._meetings[units[0]]
            assert first is not None, "only meetings are in the order"
            pairs = sorted(pair for unit in units for pair in self._pairs(unit))
            meeting_of |= dict.fromkeys(units, len(meetings))
            meetings.append(attrs.evolve(first, pairs=tuple(pairs)))
        items = (self._items(rank, meeting_of) for rank in range(len(self._graphs)))
        return OrderedRanks(tuple(meetings), tuple(items))

    def _in_file_order(self) -> Mapping[int, Sequence[int]]:
        """By unit, units that come before it in the file of some rank: collectives, and messages
        before or after a collective. Messages of a run are free, as an exchange is two of them."""
        before: dict[int, list[int]] = {}
        for units in self._unit_of:
            last, run = -1, list[int]()
            for unit in units:
                meeting = self._meetings[unit]
                if meeting is None:
                    continue
                if meeting.what.kind is None:
                    run.append(unit)
                    before.setdefault(unit, []).extend([last] if last != -1 else [])
                    continue
                before.setdefault(unit, []).extend(run or ([last] if last != -1 else []))
                last, run = unit, []
        return before

    def _order(self, more: Mapping[int, Sequence[int]]) -> list[list[int]] | None:
        """Meetings one after the other, each behind all that it waits for: the units of each.

        Units come in the order of their first place in a file where they may. With `more` to wait
        for than dependencies there may be no order: None. CompileError if there is none without.
        """
        users: dict[int, list[int]] = {}
        waits_for = [
            sum(len(self._graphs[rank].deps[at]) for rank, at in places) for places in self._places
        ]
        for unit, others in more.items():
            waits_for[unit] += len(others)
            for other in others:
                users.setdefault(other, []).append(unit)
        ready: list[_Entry] = []
        free: dict[ExchangeKind, _FreeMessages] = {}

        def add(unit: int) -> None:
            entry = (*min((at, rank) for rank, at in self._places[unit]), unit)
            heapq.heappush(ready, entry)
            meeting = self._meetings[unit]
            if meeting is not None and meeting.what.kind is None:
                of_pair = free.setdefault(meeting.what, {}).setdefault(meeting.pairs[0], [])
                heapq.heappush(of_pair, entry)

        for unit, count in enumerate(waits_for):
            if not count:
                add(unit)
        done = [False] * len(self._places)
        order: list[list[int]] = []
        while ready:
            entry = heapq.heappop(ready)
            if done[entry[2]]:
                continue
            units = self._together(entry, free)
            if self._meetings[units[0]] is not None:
                order.append(units)
            for unit in units:
                done[unit] = True
            for unit in units:
                following = [
                    self._unit_of[rank][user]
                    for rank, at in self._places[unit]
                    for user in self._graphs[rank].users[at]
                ]
                for other in (*following, *users.get(unit, ())):
                    waits_for[other] -= 1
                    if not waits_for[other]:
                        add(other)
        if all(done):
            return order
        if more:
            return None
        raise self._cycle(done)

    def _items(self, rank: int, meeting_of: Mapping[int, int]) -> tuple[Item, ...]:
        """What a rank does, in the order of its file as far as that of the meetings allows."""
        graph, units = self._graphs[rank], self._unit_of[rank]
        parts: dict[int, list[int]] = {}  # of a meeting, the rank's nodes
        for at, unit in enumerate(units):
            if unit in meeting_of:
                parts.setdefault(meeting_of[unit], []).append(at)
        first = list(range(len(units)))  # by node, the one that stands for its meeting
        for its in parts.values():
            for at in its:
                first[at] = its[0]
        deps: dict[int, set[int]] = {at: set() for at in dict.fromkeys(first)}
        for at, stands in enumerate(first):
            deps[stands].update(first[dep] for dep in graph.deps[at])
        waits_for = {at: len(before) for at, before in deps.items()}
        users: dict[int, list[int]] = {at: [] for at in deps}
        for at, before in deps.items():
            for dep in before:
                users[dep].append(at)
        met = [parts[number][0] for number in sorted(parts)]
        for one, other in itertools.pairwise(met):
            waits_for[other] += 1
            users[one].append(other)
        ready = [at for at, count in waits_for.items() if not count]
        heapq.heapify(ready)
        item_of: dict[int, int] = {}
        items: list[Item] = []
        while ready:
            at = heapq.heappop(ready)
            item_of[at] = len(items)
            known = sorted(item_of[dep] for dep in deps[at])
            items.append(Item(graph.nodes[at], meeting_of.get(units[at]), tuple(known)))
            for user in users[at]:
                waits_for[user] -= 1
                if not waits_for[user]:
                    heapq.heappush(ready, user)
        assert len(items) == len(deps), "the order of meetings is one of each rank"
        return tuple(items)

    def _pairs(self, unit: int) -> tuple[tuple[int, int], ...]:
        meeting = self._meetings[unit]
        return () if meeting is None else meeting.pairs

    def _together(
        self,
        entry: _Entry,
        free: Mapping[ExchangeKind, _FreeMessages],
    ) -> list[int]:
        """The units that are performed as one: a unit, with a message those that go with it."""
        meeting = self._meetings[entry[2]]
        if meeting is None or meeting.what.kind is not None:
            return [entry[2]]
        by_pair = free[meeting.what]
        units, sources, targets = list[int](), set[int](), set[int]()
        # of a pair only the first: the second has the same source. The entry is the first of all.
        for (_, _, unit), (source, target) in sorted(
            (its[0], pair) for pair, its in by_pair.items()
        ):
            if source not in sources and target not in targets:
                units.append(unit)
                sources.add(source)
                targets.add(target)
                heapq.heappop(by_pair[source, target])
                if not by_pair[source, target]:
                    del by_pair[source, target]
        return units

    def _cycle(self, done: Sequence[bool]) -> Exception:
        """The complaint about units that wait for one another."""
        unit = next(unit for unit, is_done in enumerate(done) if not is_done)
        path: dict[int, str] = {}
        while unit not in path:
            found = next(
                (rank, at, dep)
                for rank, at in self._places[unit]
                for dep in self._graphs[rank].deps[at]
                if not done[self._unit_of[rank][dep]]
            )
            rank, at, dep = found
            path[unit] = self._place(rank, self._graphs[rank].nodes[at])
            unit = self._unit_of[rank][dep]
        round_trip = list(path.values())[list(path).index(unit) :]
        shown = "; ".join(round_trip[:4]) + ("; …" if len(round_trip) > 4 else "")
        return refusal(
            "chakra-C3",
            f"nodes wait for one another, each for the next and the last for the first: {shown}",
            "dependencies have no cycle, and ranks come to what they share in one order",
        )


def _message_of(size: int, node: TraceNode) -> ExchangeKind:
    label = str(node.attributes.get(COLLECTIVE, ""))
    return ExchangeKind(None, size, stream=stream_of(node), label=label)


def stream_of(node: TraceNode) -> int:
    """The stream that a trace names, as far as there is one."""
    stream = node.attributes.get("stream", 0)
    return stream if type(stream) is int else 0


def _is_barrier(node: TraceNode) -> bool:
    return bool(node.attributes.get("comm_type") == CommType.BARRIER)


def _comm_type(place: str, node: TraceNode) -> CommType:
    number = node.attributes.get("comm_type")
    if type(number) is not int or number not in _COMM_TYPES:
        given = "no comm_type" if number is None else f"comm_type {number!r}"
        known = ", ".join(f"{int(kind)} {kind.name}" for kind in CommType)
        raise refusal("chakra-C4", f"{place} has {given}", f"known are {known}")
    return CommType(number)


_COMM_TYPES = frozenset(map(int, CommType))


def _size(place: str, node: TraceNode) -> int:
    """comm_size, or of a message tensor_size: bytes of a rank's operand."""
    names = ("comm_size",) if node.kind is NodeType.COMM_COLL else ("comm_size", "tensor_size")
    size = next((node.attributes[name] for name in names if name in node.attributes), None)
    if size is None and _is_barrier(node):
        return 0
    if type(size) is not int or not 0 <= size <= MOST_SIZE:
        given = "no comm_size" if size is None else f"{size!r} as its comm_size"
        raise refusal(
            "chakra-C2", f"{place} has {given}", f"bytes of a rank's operand, 0 to {MOST_SIZE}"
        )
    return size


MOST_SIZE = 2**44
"""Bytes of one exchange: far above any memory."""


def _text(what: ExchangeKind) -> str:
    assert what.kind is not None, "of collectives"
    return f"{what.kind.name} of {what.size_bytes} bytes"


def _listed(ranks: Iterable[int]) -> str:
    listed = list(ranks)
    shown = ",".join(map(str, listed[:16]))
    return f"{shown},…" if len(listed) > 16 else shown
