"""Races among the engines and streams of one rank: no two touch the same bytes without order.

A rank has up to nine *chains*: five engine queues and its streams. An item of an engine's chain is
a row of its queue. An item of a stream's chain is a placeholder, from its trigger to DONE, or a
`test` or `case` that its CC-core follows: each starts when its wait is satisfied and increments
when it is complete, just as an instruction does. What the CC-core does within a placeholder is
proved elsewhere (`races.py`). That each waits for its own trigger only, and that increments here
are of semaphores of the own rank, are rules of form (exe-W12, exe-W13).

Two accesses to the same bytes, one a write, must be ordered whatever path control flow takes. Items
of a path are performed with vector clocks (`order.ChainRun`), which say what each knows of the
others when it starts. First every phase by itself, behind each control row that leads to it. Where
every chain knows all accesses of the phase when it comes to the control row at its end, nothing
that follows can race with them: the compiler puts full barriers there, so this is all, and linear.
Else the paths that suffice (`control_paths`) are followed, as far as they touch what not everybody
knows of.

What the proof of counters says is taken for granted: increments of a semaphore come in one order,
no wait reaches over the next control row, jumps shift values by what they repeat or skip. Orders
that exist only by way of another rank are not counted: the compiler relies on none.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property

import attrs
import numpy as np

from ncc_runtime.lowering.cc_isa import CcOpcode
from ncc_runtime.lowering.executable import IDLE, CcQueue, EngineQueue, Executable
from ncc_runtime.neff.isa import CASE, TEST
from ncc_runtime.neff.structure import Structure
from ncc_runtime.order import NOBODY, ChainRun, ItemSpan, RunSlice, SyncStep
from ncc_runtime.verify.conflicts import Intervals, conflicting, spread_out
from ncc_runtime.verify.control_paths import NO_ROW, ControlPaths, Line, PathStart, Trail
from ncc_runtime.verify.counters import narrowed, on_rank
from ncc_runtime.verify.flow import QueueFlow, control_structure, flow_of, triggered_phases
from ncc_runtime.verify.places import breach_at, collective, place_of
from ncc_runtime.verify.proof import Breach, Proof
from ncc_runtime.verify.stage_parts import StagePart, parts_of

MOST_WITNESSES = 16
"""Races that are shown one by one."""

ENOUGH = 100
"""Races after which no more are looked for behind a phase."""

BLOCK_CELLS = 1 << 22
"""Elementary intervals of accesses that are set against each other at once, about."""


# ---- the proof


def prove_local(executable: Executable) -> Proof:
    """Every program by itself, and in each every class of ranks whose chains are alike."""
    breaches: list[Breach] = []
    classes: list[str] = []
    rows = phases = 0
    accesses: int | None = None  # None: no program can be followed
    parts = parts_of(executable)
    for part in parts:
        one = part.executable
        flow, faults = flow_of(one)
        structure = control_structure(one)
        if flow is None or structure is None:
            faults = faults or ("the control rows of the engines do not agree",)
            breaches += [Breach("engines.flow", part.title + fault) for fault in faults]
            continue
        chains = _chains_of(one, structure, flow)
        alike = _alike_ranks(one, chains, part.ranks)
        classes += [part.title + _ranks_text(ranks) for ranks in alike]
        rows += sum(len(chain) for chain in chains)
        misplaced = list(_misplaced(executable, part, chains, structure, flow))
        if misplaced:
            breaches += misplaced
            continue
        touched = _accesses_of(one, chains)
        accesses = (accesses or 0) + len(touched.item)
        phases += len(structure.rows) + 1 if one.program.blocks else 0
        paths = ControlPaths(one.program.blocks, structure, part.first_block)
        for ranks in alike:
            rank = _Rank(executable, part, chains, paths, touched, int(ranks[0]))
            breaches += _Search(rank).breaches()
    size = f"{rows} rows"
    if accesses is not None:
        size = f"{accesses} accesses of {size}" + (f" in {phases} phases" if phases else "")
    if len(parts) > 1:
        size = f"{size} of {len(parts)} programs"
    return Proof("races of engines", size, breaches=tuple(breaches), classes=tuple(classes))


def _ranks_text(ranks: np.ndarray) -> str:
    """Ranks that follow one another are first..last."""
    runs = np.split(ranks, np.flatnonzero(np.diff(ranks) != 1) + 1)
    parts = [f"{run[0]}..{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs]
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(parts)}"


# ---- chains, alike on all ranks but for semaphores and values


@attrs.frozen(eq=False)
class Items:
    """The items of one chain."""

    name: str  # of the queue
    queue: int  # in the executable of the program
    is_stream: bool
    first: np.ndarray  # (n,) row of the queue that waits
    last: np.ndarray  # (n,) row of the queue that increments
    placeholder: np.ndarray  # (n,) of a stream's item, IDLE for none
    predicate: np.ndarray  # (n,) tensor that a `test` or `case` reads, IDLE for none
    phase: np.ndarray  # (n,) ascending
    control: np.ndarray  # (phases,) the item that ends each phase, IDLE for none

    def __len__(self) -> int:
        return len(self.first)


def _chains_of(executable: Executable, structure: Structure, flow: QueueFlow) -> Sequence[Items]:
    """Engines in the order of their queues, then streams."""
    blocks = executable.program.blocks
    engines: list[Items] = []
    streams: list[Items] = []
    for number, queue in enumerate(executable.queues):
        if isinstance(queue, EngineQueue):
            first = last = np.arange(len(queue.table))
            placeholder = predicate = np.full(len(first), IDLE, np.int64)
            predicate = predicate.copy()
            pcs = structure.pcs[queue.engine]
            for (opcode, block), pc in zip(structure.rows, pcs.tolist(), strict=True):
                if opcode in (TEST, CASE):
                    predicate[pc] = blocks[block].predicate
            control = np.append(pcs, IDLE)
        elif isinstance(queue, CcQueue):
            # rows of one placeholder are one item; rows of none do nothing, but for decisions
            decides = np.isin(queue.opcode, (CcOpcode.TEST, CcOpcode.CASE))
            begins = np.diff(queue.placeholder, prepend=IDLE - 1) != 0
            begins |= decides | np.append(False, decides[:-1])
            first = np.flatnonzero(begins)
            last = np.append(first[1:], len(begins))[: len(first)] - 1
            kept = decides[first] | (queue.placeholder[first] != IDLE)
            first, last = first[kept], last[kept]
            placeholder = np.where(decides[first], IDLE, queue.placeholder[first])
            predicate = np.full(len(first), IDLE, np.int64)
            control = np.full(len(structure.rows) + 1, IDLE)
            for item in np.flatnonzero(decides[first]).tolist():
                block = queue.jumps[int(first[item])].block
                predicate[item] = blocks[block].predicate
                control[structure.block_rows[block].decides] = item
        else:
            continue
        phase = np.searchsorted(flow.limits[number], first, side="right")
        is_stream = isinstance(queue, CcQueue)
        items = Items(
            *(queue.name, number, is_stream, first, last, placeholder, predicate, phase, control)
        )
        (streams if is_stream else engines).append(items)
    return (*engines, *streams)


def _misplaced(
    executable: Executable,
    part: StagePart,
    chains: Sequence[Items],
    structure: Structure,
    flow: QueueFlow,
) -> Iterator[Breach]:
    """Placeholders that a CC-core does not come to in the phase in which they are triggered."""
    triggered = triggered_phases(part.executable, structure)
    for items in chains:
        at = np.flatnonzero(items.placeholder != IDLE)
        wanted = triggered[items.placeholder[at]]
        at_last = np.searchsorted(flow.limits[items.queue], items.last[at], side="right")
        for item in at[(items.phase[at] != wanted) | (at_last != wanted)].tolist():
            what = collective(part.executable, int(items.placeholder[item]))
            text = (
                f"{part.title}queue {items.name}, pc {items.first[item]} ({what}): "
                "not between the control rows where it is triggered"
            )
            cell = part.queues[items.queue], int(items.first[item]), int(part.ranks[0])
            yield breach_at(executable, "engines.misplaced", text, cell)


def _alike_ranks(
    executable: Executable, chains: Sequence[Items], ranks: np.ndarray
) -> Sequence[np.ndarray]:
    """Those of some ranks whose chains wait for the same and increment the same, by class."""
    differing = []
    for items in chains:
        sync = executable.queues[items.queue].sync
        columns = [narrowed(sync.wait_sem)[items.first], narrowed(sync.wait_value)[items.first]]
        for post in sync.posts:
            is_own = post.rank[items.last] == np.arange(executable.ranks)
            columns.append(np.where(is_own, post.sem[items.last], IDLE))
        for column in columns:
            mine = column if column.shape[1] in (1, len(ranks)) else column[:, ranks]
            differs = (mine != mine[:, :1]).any(axis=1)
            if differs.any():
                differing.append(mine[differs])
    if not differing:
        return [ranks]
    _, number = np.unique(np.concatenate(differing), axis=1, return_inverse=True)
    number = number.reshape(-1)
    return [ranks[number == one] for one in dict.fromkeys(number.tolist())]


# ---- accesses


@attrs.frozen(eq=False)
class ItemAccesses:
    """Every access of every item, ordered by chain and item; empty ones are left out.

    A row reads its operands and writes its results, whole, also where an update writes in place; so
    does a placeholder. `test` and `case` read the predicate.
    """

    chain: np.ndarray  # (n,)
    item: np.ndarray  # (n,) of the chain
    phase: np.ndarray  # (n,) of the item
    tensor: np.ndarray  # (n,)
    is_write: np.ndarray  # (n,) bool
    first: np.ndarray  # (n,) elementary interval
    end: np.ndarray  # (n,)
    intervals: Intervals
    base: np.ndarray  # (chains,) a number for item 0 of each chain, on from the chain before
    start: np.ndarray  # (items + 1,) by such a number: where the accesses of an item begin


def _accesses_of(executable: Executable, chains: Sequence[Items]) -> ItemAccesses:
    """All accesses of a rank's chains; they are alike on all ranks."""
    program = executable.program
    found = []  # (item, tensor, whether it is written), the items of all chains in one numbering
    lengths = np.array([len(items) for items in chains], np.int64)
    base = np.cumsum(lengths) - lengths
    for before, items in zip(base.tolist(), chains, strict=True):
        queue = executable.queues[items.queue]
        reads = np.flatnonzero(items.predicate != IDLE)
        found.append(np.stack([before + reads, items.predicate[reads], np.zeros_like(reads)]))
        if isinstance(queue, EngineQueue):
            table = queue.table
            item = np.repeat(np.arange(len(table)), np.diff(table.start))
            results = table.start[:-1] + table.result_count
            is_write = np.arange(len(item)) < results[item]
            found.append(np.stack([before + item, table.tensors, is_write]))
            continue
        for at in np.flatnonzero(items.placeholder != IDLE).tolist():
            one = program.placeholders[int(items.placeholder[at])]
            tensors = np.array([*one.operands, *one.counts, *one.results], np.int64)
            is_write = np.arange(len(tensors)) >= len(tensors) - len(one.results)
            found.append(np.stack([np.full(len(tensors), before + at), tensors, is_write]))
    views = [(view.buffer, view.offset, view.size_bytes) for view in program.tensors]
    buffer, offset, size = np.array(views, np.int64).reshape(-1, 3).T
    address = np.array([one.address for one in program.buffers], np.int64)[buffer] + offset
    number, tensor, is_write = np.concatenate([np.zeros((3, 0), np.int64), *found], axis=1)
    order = np.argsort(number, kind="stable")
    order = order[size[tensor[order]] > 0]
    number, tensor = number[order], tensor[order]
    chain = np.searchsorted(base + lengths, number, side="right")
    intervals = Intervals.cut(address[tensor], address[tensor] + size[tensor])
    return ItemAccesses(
        chain=chain,
        item=number - base[chain],
        phase=np.concatenate([items.phase for items in chains])[number],
        tensor=tensor,
        is_write=is_write[order].astype(bool),
        first=intervals.number(address[tensor]),
        end=intervals.number(address[tensor] + size[tensor]),
        intervals=intervals,
        base=base,
        start=np.searchsorted(number, np.arange(lengths.sum() + 1)),
    )


@attrs.frozen(eq=False)
class Performed:
    """Accesses as they were performed, by time; reads of an item come before its writes."""

    access: np.ndarray  # (n,) of ItemAccesses
    chain: np.ndarray  # (n,)
    count: np.ndarray  # (n,) of the item, as its chain performed it, from 1
    unit: np.ndarray  # (n,) to which of several runs it belongs
    clock: np.ndarray  # (n,) row of `clocks`: what its chain knew when the item started
    clocks: np.ndarray  # (m, chains)

    @classmethod
    def of(
        cls, accesses: ItemAccesses, slices: Sequence[RunSlice], units: Sequence[int]
    ) -> "Performed":
        """Those of slices, each of a unit."""
        columns = [(one.chain, one.first, one.end, one.performed, one.time) for one in slices]
        chain, first, end, performed, time = np.array(columns, np.int64).reshape(-1, 5).T
        low = accesses.start[accesses.base[chain] + first]
        high = accesses.start[accesses.base[chain] + end]
        at, access = spread_out(low, high - low)
        ahead = accesses.item[access] - first[at]
        order = np.lexsort((accesses.is_write[access], time[at] + ahead))
        at, access, ahead = at[order], access[order], ahead[order]
        clocks = np.array([one.known for one in slices], np.int64).reshape(-1, len(accesses.base))
        count, unit = performed[at] + ahead + 1, np.array(units, np.int64)[at]
        return cls(access, chain[at], count, unit, at, clocks)

    def unordered(self, accesses: ItemAccesses) -> Iterator[tuple[int, int]]:
        """Pairs in conflict (earlier, later), of one unit, that are in no order."""
        if not len(self.access):
            return
        cells = len(accesses.intervals)
        first, end = accesses.first[self.access], accesses.end[self.access]
        change = np.bincount(first, minlength=cells + 1) - np.bincount(end, minlength=cells + 1)
        touched = np.cumsum(np.cumsum(change))  # accesses to intervals up to each
        parts = np.flatnonzero(np.diff(touched // BLOCK_CELLS, append=-1)) + 1
        for low, high in itertools.pairwise([0, *parts.tolist()]):
            begin = np.clip(first, low, high)
            which, cell = spread_out(begin, np.clip(end, low, high) - begin)
            is_write = accesses.is_write[self.access]
            earlier, later = conflicting(which, self.unit[which] * cells + cell, is_write)
            chain = self.chain[earlier]
            lacks = self.clocks[self.clock[later], chain] < self.count[earlier]
            lacks &= chain != self.chain[later]
            yield from zip(earlier[lacks].tolist(), later[lacks].tolist(), strict=True)


# ---- one rank


class _Rank:
    """The chains of one rank, with what they wait for and increment, phase by phase."""

    def __init__(
        self,
        whole: Executable,
        part: StagePart,
        chains: Sequence[Items],
        paths: ControlPaths,
        accesses: ItemAccesses,
        rank: int,
    ) -> None:
        self.whole, self.part, self.rank = whole, part, rank
        self.chains, self.paths, self.accesses = chains, paths, accesses
        # of each chain's items, the semaphores that they wait for and increment
        columns, values = [], []
        for items in chains:
            sync = part.executable.queues[items.queue].sync
            sem, value = (
                on_rank(column, rank)[items.first].astype(np.int64)
                for column in (sync.wait_sem, sync.wait_value)
            )
            posts = [
                np.where(post.rank[items.last, rank] == rank, post.sem[items.last, rank], IDLE)
                for post in sync.posts
            ]
            columns.append(np.stack([sem, *posts], axis=1))
            values.append(value)
        # they are few: numbered anew, NOBODY for none
        used = np.unique(np.concatenate([[IDLE], *(column.ravel() for column in columns)]))
        self.semaphores = used[1:]
        columns = [np.searchsorted(used, column) - 1 for column in columns]
        # what semaphores hold around phases, every block run once, as values of waits have it
        made = np.zeros((paths.phases, len(self.semaphores)), np.int64)
        made_at_end = np.zeros_like(made)
        for items, column in zip(chains, columns, strict=True):
            item, place = np.nonzero(column[:, 1:] != NOBODY)
            phase, sem = items.phase[item], column[item, 1 + place]
            np.add.at(made, (phase, sem), 1)
            at_end = items.control[phase] == item
            np.add.at(made_at_end, (phase[at_end], sem[at_end]), 1)
        held = np.cumsum(made, axis=0)
        at_begin = held - made
        self._at_begin: list[list[int]] = at_begin.tolist()
        self._at_control: list[list[int]] = (held - made_at_end).tolist()
        # the items of each phase; and the chains that must know of a phase before they leave it
        spans = []
        self._must_know = []
        for number, (items, column, value) in enumerate(zip(chains, columns, values, strict=True)):
            acts = np.flatnonzero((column != NOBODY).any(axis=1))
            posted = [[sem for sem in row if sem != NOBODY] for row in column[acts, 1:].tolist()]
            rows = acts.tolist(), column[acts, 0].tolist(), value[acts].tolist(), posted
            steps = [SyncStep(*row) for row in zip(*rows, strict=True)]
            phases = np.arange(paths.phases + 1)
            item_at = np.searchsorted(items.phase, phases).tolist()
            step_at = np.searchsorted(items.phase[acts], phases).tolist()
            spans.append(
                [
                    ItemSpan(item_at[p], item_at[p + 1], steps[step_at[p] : step_at[p + 1]])
                    for p in range(paths.phases)
                ]
            )
            # a stream whose items all wait for increments of their own phase need not: whoever
            # makes these knows of the phase before
            sem = column[:, 0]
            is_led = sem != NOBODY
            is_led[is_led] = value[is_led] > at_begin[items.phase[is_led], sem[is_led]]
            if not (items.is_stream and is_led.all()):
                self._must_know.append(number)
        self._spans = list(zip(*spans, strict=True))

    def run_from(self, start: PathStart, time: int = 0) -> tuple[ChainRun, tuple[int, int] | None]:
        """Perform a control row and the phase behind it; also a chain and an item that is stuck."""
        run = ChainRun(len(self.chains), len(self.semaphores), time)
        stuck = None
        if start.row != NO_ROW:
            spans = [
                _item_span(span, int(items.control[start.row]))
                for span, items in zip(self._spans[start.row], self.chains, strict=True)
            ]
            stuck = run.perform(spans, self._at_control[start.row])
        return run, stuck or self.perform(run, start.phase)

    def perform(self, run: ChainRun, phase: int) -> tuple[int, int] | None:
        """Perform a phase and the control row at its end; a chain and an item that is stuck."""
        return run.perform(self._spans[phase], self._at_begin[phase])

    def least_known(self, known: np.ndarray) -> np.ndarray:
        """(…, chains) of how many items of each chain all others know, from (…, chains, chains)."""
        own = np.arange(len(self.chains))
        known = known.copy()
        known[..., own, own] = np.iinfo(np.int64).max
        found: np.ndarray = known[..., self._must_know, :].min(axis=-2)
        return found

    def cell(self, chain: int, item: int) -> tuple[int, int, int]:
        """Queue, row and rank of an item in the whole executable."""
        items = self.chains[chain]
        return self.part.queues[items.queue], int(items.first[item]), self.rank

    def place(self, chain: int, item: int) -> str:
        """An item, for people."""
        items = self.chains[chain]
        return place_of(self.part.executable, items.queue, int(items.first[item]), self.rank)

    def name(self, chain: int, item: int) -> str:
        """An item within its rank, for people."""
        items = self.chains[chain]
        first, last = int(items.first[item]), int(items.last[item])
        return f"{items.name} pc {first}" if first == last else f"{items.name} pc {first} to {last}"


def _item_span(span: ItemSpan, last: int) -> ItemSpan:
    """The last item of a span by itself; of nothing if it is IDLE."""
    if last == IDLE:
        return ItemSpan(0, 0, ())
    return ItemSpan(last, last + 1, [step for step in span.steps[-1:] if step.item == last])


# ---- the search


class _Search:
    """Looks for races on all paths of one rank that matter."""

    def __init__(self, rank: _Rank) -> None:
        self.rank = rank
        # by the chains and items of both accesses; None: no more are shown
        self._races: dict[tuple[int, int, int, int], Breach | None] = {}

    def breaches(self) -> Sequence[Breach]:
        """Items that never start, and races."""
        rank, accesses = self.rank, self.rank.accesses
        starts = list(rank.paths.starts())
        stuck: dict[tuple[int, int], None] = {}
        slices: list[RunSlice] = []
        units, known, goes_on = [], [], []
        time = 0
        for unit, start in enumerate(starts):
            run, stops = rank.run_from(start, time)
            time = run.time
            slices += run.slices
            units += [unit] * len(run.slices)
            known.append(run.known)
            goes_on.append(stops is None and start.phase < rank.paths.phases - 1)
            if stops is not None:
                stuck[stops] = None
        done = Performed.of(accesses, slices, units)
        for earlier, later in done.unordered(accesses):
            self.add_race(starts[int(done.unit[later])], (), None, done, earlier, done, later)
        due = self._due_at_end(starts, done)
        settled = (rank.least_known(np.array(known)) >= due).all(axis=1)
        for unit in np.flatnonzero(np.array(goes_on) & ~settled).tolist():
            if len(self._races) < ENOUGH:
                _Onward(self, starts[unit], due[unit]).follow()
        found = [
            breach_at(
                rank.whole,
                "engines.stuck",
                f"{rank.part.title}{rank.place(*item)}: "
                "waits for what no queue of its rank increments in time",
                rank.cell(*item),
            )
            for item in stuck
        ]
        found += [race for race in self._races.values() if race is not None]
        if len(self._races) > MOST_WITNESSES:
            more = f"… and {len(self._races) - MOST_WITNESSES} more pairs of rows in no order"
            found.append(Breach("engines.race", rank.part.title + more))
        return found

    def _due_at_end(self, starts: Sequence[PathStart], done: Performed) -> np.ndarray:
        """(starts, chains) of how many items everybody must know at the end of each first phase.

        Those up to the last that accesses anything; the control row at the end is not of them, its
        accesses are looked at once more with what follows.
        """
        control = np.stack([items.control for items in self.rank.chains])
        phase = np.array([start.phase for start in starts])
        item = self.rank.accesses.item[done.access]
        at = np.flatnonzero(item != control[done.chain, phase[done.unit]])
        found = np.zeros((len(starts), len(self.rank.chains)), np.int64)
        np.maximum.at(found, (done.unit[at], done.chain[at]), done.count[at])
        return found

    @cached_property
    def others(self) -> Mapping[int, frozenset[int]]:
        """By branch those that are not taken on its occasion: one predicate decides on all.

        Nobody writes that between the first and the last of them.
        """
        accesses, paths = self.rank.accesses, self.rank.paths
        found: dict[int, frozenset[int]] = {}
        for group in paths.conditionals():
            decides = [paths.structure.block_rows[block].decides for block in group]
            reads = np.flatnonzero(accesses.tensor == paths.blocks[group[0]].predicate)[:1]
            overlaps = accesses.first < accesses.end[reads]
            overlaps &= accesses.first[reads] < accesses.end
            written = accesses.phase[overlaps & accesses.is_write]
            if not ((min(decides) < written) & (written <= max(decides))).any():
                found |= {block: frozenset(group) - {block} for block in group}
        return found

    def add_race(
        self,
        start: PathStart,
        trail: Trail,
        run: ChainRun | None,
        before: Performed,
        earlier: int,
        behind: Performed,
        later: int,
    ) -> None:
        """Two accesses as performed on a path; `run` stands where the later one was performed.

        None is for a run of nothing but the first phase. The text names both rows, what the later
        one does not know, the path, and the wait that is missing.
        """
        rank, accesses = self.rank, self.rank.accesses
        one, other = int(before.access[earlier]), int(behind.access[later])
        chain, item = int(accesses.chain[one]), int(accesses.item[one])
        later_chain, later_item = int(accesses.chain[other]), int(accesses.item[other])
        key = chain, item, later_chain, later_item
        if key in self._races or len(self._races) >= MOST_WITNESSES:
            self._races.setdefault(key, None)
            return
        if run is None:
            run, _ = rank.run_from(start)
        overlap = _extent(
            accesses,
            max(accesses.first[one], accesses.first[other]),
            min(accesses.end[one], accesses.end[other]),
        )
        name, later_name = rank.name(chain, item), rank.name(later_chain, later_item)
        known = run.item(chain, int(behind.clocks[behind.clock[later], chain]))
        knowledge = f"of nothing in {rank.chains[chain].name}"
        if known != NOBODY:
            knowledge = f"of {rank.name(chain, known)}, and of nothing behind it"
        at = f"the trigger of {later_name}" if rank.chains[later_chain].is_stream else later_name
        missing = f"an increment behind {name}, and a wait for it at {at}"
        semaphore = value = None
        tells = _first_increment(run, chain, int(before.count[earlier]))
        if tells is not None:
            sem, value, count = tells
            semaphore = int(rank.semaphores[sem])
            names = rank.part.executable.semaphore_names(rank.rank)
            makes = rank.name(chain, run.item(chain, count))
            text = names.get(semaphore, f"semaphore {semaphore}")
            missing = f"a wait for {text} >= {value} at {at}; {makes} makes it"
        lines = (
            f"{rank.place(chain, item)}: in no order with {later_name}, which touches "
            f"{overlap} too",
            f"  {name} {_access_text(rank, one)}",
            f"  {rank.place(later_chain, later_item)} {_access_text(rank, other)}",
            f"  when {later_name} begins, it knows {knowledge}",
            f"  path: {rank.paths.path_text(start, trail)}",
            f"  missing: {missing}",
        )
        self._races[key] = breach_at(
            rank.whole,
            "engines.race",
            rank.part.title + "\n".join(lines),
            rank.cell(later_chain, later_item),
            rank.cell(chain, item),
            semaphore=semaphore,
            value=value,
        )


class _Onward:
    """Follows the paths behind a phase, and looks at what conflicts with it."""

    def __init__(self, search: _Search, start: PathStart, due: np.ndarray) -> None:
        self._search, self._rank, self._start, self._due = search, search.rank, start, due
        self._run, _ = self._rank.run_from(start)
        self._done = done = self._performed(self._run, 0)
        accesses = self._rank.accesses
        # by elementary interval and chain, the last access and the last write that not all know of
        least = self._rank.least_known(np.array(self._run.known))
        is_open = (done.count <= due[done.chain]) & (done.count > least[done.chain])
        at = np.flatnonzero(is_open)
        which, cell = self._cells(done.access[at])
        at = at[which]
        shape = 2, len(accesses.intervals), len(self._rank.chains)
        self._last: np.ndarray = np.full(shape, NOBODY, np.int64)
        np.maximum.at(self._last[0], (cell, done.chain[at]), at)
        writes = accesses.is_write[done.access[at]]
        np.maximum.at(self._last[1], (cell[writes], done.chain[at][writes]), at[writes])
        # accesses of the program that conflict with one of these, counted up to each phase
        touched = np.zeros((2, len(accesses.intervals) + 1), np.int64)
        touched[:, 1:] = np.cumsum((self._last != NOBODY).any(axis=2), axis=1)
        conflicts = touched[:, accesses.end] > touched[:, accesses.first]
        conflicts = np.where(accesses.is_write, conflicts[0], conflicts[1])
        counts = np.bincount(accesses.phase[conflicts] + 1, minlength=self._rank.paths.phases + 1)
        self._conflicts = np.cumsum(counts)

    def follow(self) -> None:
        """Add all that races with the first phase, on the paths that suffice."""
        paths = self._rank.paths
        barred = paths.barred(self._start, self._search.others)
        self._follow(self._run, paths.line(self._start, barred))

    def _follow(self, run: ChainRun, line: Line) -> None:
        for step in line:
            if not self._has_conflicts(step.ahead):
                return
            if step.side is not None and self._has_conflicts(step.side.inside):
                self._follow(run.fork(), step.side)
            begin = len(run.slices)
            stuck = self._rank.perform(run, step.phase)
            if self._has_conflicts(range(step.phase, step.phase + 1)):
                self._compare(run, begin, step.trail)
            least = self._rank.least_known(np.array(run.known))
            if stuck or (least >= self._due).all():
                return

    def _has_conflicts(self, phases: range) -> bool:
        """Whether anything in these phases conflicts with the first one."""
        if not phases:
            return False
        return bool(self._conflicts[phases.stop] > self._conflicts[phases.start])

    def _compare(self, run: ChainRun, begin: int, trail: Trail) -> None:
        """Set what was performed from slice `begin` on against the first phase."""
        done, first, accesses = self._performed(run, begin), self._done, self._rank.accesses
        which, cell = self._cells(done.access)
        reads = np.where(accesses.is_write[done.access][which], 0, 1)
        last = self._last[reads, cell]
        lacks = (last != NOBODY) & (first.count[last] > done.clocks[done.clock[which]])
        lacks[np.arange(len(which)), done.chain[which]] = False
        for at, chain in zip(*(index.tolist() for index in np.nonzero(lacks)), strict=True):
            earlier, later = int(last[at, chain]), int(which[at])
            self._search.add_race(self._start, trail, run, first, earlier, done, later)

    def _performed(self, run: ChainRun, begin: int) -> Performed:
        slices = run.slices[begin:]
        return Performed.of(self._rank.accesses, slices, [0] * len(slices))

    def _cells(self, access: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The elementary intervals of accesses, each with the place of its access."""
        accesses = self._rank.accesses
        first = accesses.first[access]
        return spread_out(first, accesses.end[access] - first)


def _first_increment(run: ChainRun, chain: int, count: int) -> tuple[int, int, int] | None:
    """By which others could learn of the `count`-th item of a chain.

    A semaphore, the value to wait for in the latest phase of the run, and which item makes it.
    """
    for sem, stamps in enumerate(run.made):
        for number, stamp in enumerate(stamps, 1):
            if stamp.chain == chain and stamp.known[chain] >= count:
                return sem, number - run.offsets[sem], stamp.known[chain]
    return None


def _access_text(rank: _Rank, access: int) -> str:
    accesses = rank.accesses
    tensor = int(accesses.tensor[access])
    view = rank.part.executable.program.tensors[tensor]
    verb = "writes" if accesses.is_write[access] else "reads"
    extent = _extent(accesses, accesses.first[access], accesses.end[access])
    return f"{verb} t{tensor} {view.name} {view.type_text}, {extent}"


def _extent(accesses: ItemAccesses, first: int, end: int) -> str:
    edges = accesses.intervals.edges
    return f"[{int(edges[first]):#x}, {int(edges[end]):#x})"
