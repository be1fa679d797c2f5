"""The executable as the kernel's records (tables.py): queues, rows, increments, control flow."""

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import attrs
import numpy as np

from ncc_runtime.errors import LoweringError
from ncc_runtime.execution.clock.columns import (
    ColumnPool,
    DistinctRows,
    constant_column,
    distinct_rows,
    paired_rows,
)
from ncc_runtime.execution.clock.costs import (
    WORK,
    RowCosts,
    SemaphoreLatencies,
    cc_costs,
    engine_costs,
)
from ncc_runtime.execution.clock.instances import Instances, of_first_instance, places_in_instances
from ncc_runtime.execution.clock.max_min import MICRO
from ncc_runtime.execution.clock.routes import RouteRecords
from ncc_runtime.execution.clock.tables import (
    ALWAYS,
    BEYOND,
    CC_CORE,
    COUNTED,
    ENGINE,
    NONE,
    RECORDED,
    RING,
    empty,
)
from ncc_runtime.execution.control_flow import Decisions, PlannedDecisions
from ncc_runtime.lowering.executable import (
    CcQueue,
    Decision,
    DmaQueue,
    EngineQueue,
    Executable,
    Jump,
    Queue,
)
from ncc_runtime.machine_model.parts import Parts

RunSizes: TypeAlias = Mapping[int, Sequence[np.ndarray]]
"""By queue, for rings that perform a row several times: all sizes of each rank, in order."""


@attrs.frozen(eq=False)
class ClockProgram:
    """Records by their field of ClockState; they do not change while the kernel runs."""

    cells: np.ndarray
    queue: np.ndarray
    row: np.ndarray
    post: np.ndarray
    posted: np.ndarray
    jump: np.ndarray
    route: np.ndarray
    use: np.ndarray
    part: np.ndarray
    branch: np.ndarray
    most_posts: int
    increments: np.ndarray  # (ranks * semaphores,) of each semaphore, if every row runs once
    waiters: np.ndarray  # (ranks * semaphores,) how many queues wait for it; see _add_waits
    least: np.ndarray  # (ranks * semaphores,) the least value waited for; BEYOND if none is
    events: int  # at most, if every row runs once
    expected: int | None  # events, about, with the trips of loops; None where values decide them
    routes: RouteRecords  # for the records of routes with parts that a disturbance changes


class ProgramTables:
    """Builds them, queue by queue."""

    def __init__(self, executable: Executable, parts: Parts, instances: Instances) -> None:
        self._executable, self._parts = executable, parts
        self._ranks = instances.ranks
        self._cells = ColumnPool()
        self._routes = RouteRecords(parts, instances)
        self._latencies = SemaphoreLatencies(executable, parts, instances.ranks)
        self._queue = empty("queue", len(executable.queues))
        self._rows: list[np.ndarray] = [empty("row", 0)]
        self._posts: list[np.ndarray] = [empty("post", 0)]
        self._posted: list[np.ndarray] = [empty("posted", 0)]
        self._jumps: list[tuple[int, int, Jump]] = []
        count = instances.ranks * max(1, executable.semaphore_count)
        self._increments = np.zeros(count, np.int64)
        self._waiters = np.zeros((instances.ranks, max(1, executable.semaphore_count)), np.int64)
        self._least = np.full_like(self._waiters, BEYOND)
        self._events = 0
        self._tails = {
            (facts.stream, lane): tail
            for facts in executable.streams
            for lane, (tail, _) in facts.rings.items()
        }

    def program(self, decisions: Decisions, run_sizes: RunSizes) -> ClockProgram:
        """The records of an executable whose control flow goes as decided."""
        queues = self._executable.queues
        if self._ranks < self._executable.representatives:
            queues = tuple(of_first_instance(queue, self._ranks) for queue in queues)
        for number, queue in enumerate(queues):
            self._add_queue(number, queue)
        self._queue["run_sizes"] = NONE
        for number, sizes in run_sizes.items():
            offsets = [self._cells.append(of_rank) for of_rank in sizes]
            self._queue[number]["run_sizes"] = self._cells.append(np.array(offsets))
        length = self._queue["length"]
        self._queue["base"] = np.cumsum(length) - length
        route, use, part = self._routes.records(len(queues) * self._ranks)
        jump, branch = self._control(decisions)
        is_planned = isinstance(decisions, PlannedDecisions) or not len(jump)
        return ClockProgram(
            cells=self._cells.cells(),
            queue=self._queue,
            row=np.concatenate(self._rows),
            post=np.concatenate(self._posts),
            posted=np.concatenate(self._posted),
            jump=jump,
            route=route,
            use=use,
            part=part,
            branch=branch,
            most_posts=max((len(queue.sync.posts) for queue in queues), default=0),
            increments=self._increments,
            waiters=self._waiters.ravel(),
            least=self._least.ravel(),
            events=self._events,
            expected=round(self._events * self._repetition(jump)) if is_planned else None,
            routes=self._routes,
        )

    def _add_queue(self, number: int, queue: Queue) -> None:
        record, sync = self._queue[number : number + 1], queue.sync
        rows = empty("row", len(sync.wait_sem))
        costs = self._costs(queue)
        rows["overhead"], rows["work"] = costs.overhead, NONE
        if costs.work is not None:
            first = self._cells.append(costs.work)
            rows["work"] = first + costs.work.shape[1] * np.arange(len(rows))
        rows["pushed"] = queue.ring_row if isinstance(queue, CcQueue) else NONE
        if isinstance(queue, DmaQueue):
            rows["message"] = queue.placeholder * np.int64(2**32) + queue.round
        route, size = self._moved(number, queue, costs)
        columns = {
            "wait_sem": distinct_rows(sync.wait_sem),
            "wait_value": distinct_rows(sync.wait_value),
            "route": route,
            "size": size,
        }
        _check_size(queue, int(size.rows.max(initial=0)))
        for name, column in columns.items():
            pooled = self._cells.add(column)
            rows[name], record[name] = pooled.offset, pooled.stride
        kinds = {EngineQueue: ENGINE, CcQueue: CC_CORE, DmaQueue: RING}
        record["kind"], record["length"] = kinds[type(queue)], len(rows)
        record["tail"] = NONE
        if isinstance(queue, DmaQueue):
            record["tail"] = self._tails[queue.stream, queue.lane]
            self._waiters[:, record["tail"]] += 1
            self._least[:, record["tail"]] = 1
        else:
            self._add_waits(columns["wait_sem"], columns["wait_value"], costs, bool(queue.jumps))
        self._add_jumps(number, queue, rows)
        self._rows.append(rows)
        record["first_post"] = sum(len(posts) for posts in self._posts)
        increments = self._add_posts(queue)
        self._events += self._most_events(queue, columns, increments)
        record["end_post"] = sum(len(posts) for posts in self._posts)

    def _add_waits(
        self, sems: DistinctRows, values: DistinctRows, costs: RowCosts, has_jumps: bool
    ) -> None:
        """Count a queue as waiter of each semaphore that its rows wait for, and the least value.

        It counts as two where rows may take no time: a later row can then start by the same
        increment, so it must not be dropped. Jumps shift values, perhaps below what rows say.
        """
        waits = np.zeros_like(self._waiters)
        row, rank = np.nonzero(sems.rows != NONE)
        waits[rank if sems.rows.shape[1] > 1 else slice(None), sems.rows[row, rank]] = 1
        self._waiters += waits if costs.overhead.all() else 2 * waits
        if has_jumps:
            self._least[waits > 0] = 1
            return
        ranks, semaphores = self._least.shape
        first = np.arange(ranks) * semaphores
        for sem_row, value_row, _ in paired_rows(sems, values):
            sem, value = np.broadcast_arrays(sems.rows[sem_row], values.rows[value_row])
            # where all ranks have the same column, one holds for all
            key = first[: sem.shape[1]] + np.where(sem == NONE, 0, sem)
            least = np.full(self._least.size, BEYOND)
            np.minimum.at(least, key.ravel(), np.where(sem == NONE, BEYOND, value).ravel())
            of_all = least.reshape(ranks, semaphores)
            np.minimum(self._least, of_all if sem.shape[1] > 1 else of_all[:1], out=self._least)

    def _costs(self, queue: Queue) -> RowCosts:
        executable, model = self._executable, self._parts.model
        if isinstance(queue, EngineQueue):
            costs = engine_costs(executable.program, model, queue)
            work = np.stack([getattr(costs, column) for column in WORK], axis=1)
            return RowCosts(costs.overhead, costs.traffic, work)
        if isinstance(queue, CcQueue):
            return cc_costs(executable, model, queue)
        nothing = np.zeros(len(queue.opcode), np.int64)
        return RowCosts(nothing, nothing)

    def _moved(
        self, number: int, queue: Queue, costs: RowCosts
    ) -> tuple[DistinctRows, DistinctRows]:
        """The routes of a queue's rows, and the bytes that they move."""
        if isinstance(queue, DmaQueue):
            return self._routes.add_ring(queue, number), distinct_rows(queue.size_bytes)
        rows = len(costs.traffic)
        if not costs.traffic.any():
            return constant_column(NONE, rows), constant_column(0, rows)
        engine = self._routes.add_engine(number)
        # two different rows: no route, for instructions that move nothing, and the engine's
        rows_of_route = np.concatenate((np.full_like(engine.rows, NONE), engine.rows))
        route = DistinctRows(rows_of_route, (costs.traffic > 0).astype(np.int64))
        return route, DistinctRows(costs.traffic[:, None], np.arange(rows))

    def _most_events(self, queue: Queue, columns: dict[str, DistinctRows], increments: int) -> int:
        """At least the number of events of a queue on all ranks; idle rows have none."""
        ranks = self._ranks
        cells = len(columns["route"].index) * (ranks if queue.ranks is None else len(queue.ranks))
        if isinstance(queue, EngineQueue):
            return cells
        if isinstance(queue, DmaQueue):
            return _busy_cells(columns["route"], ranks)
        return min(cells, _busy_cells(columns["wait_sem"], ranks) + increments)

    def _add_posts(self, queue: Queue) -> int:
        """Add the posts of a queue; how many increments its rows make."""
        before = int(self._increments.sum())
        for post, latency in zip(queue.sync.posts, self._latencies.of(queue), strict=True):
            rank, sem = (
                places_in_instances(distinct_rows(post.rank), self._ranks),
                distinct_rows(post.sem),
            )
            self._count(rank, sem)
            record, posted = empty("post", 1), empty("posted", len(post.rank))
            record["base"] = sum(len(rows) for rows in self._posted)
            for name, column in {"rank": rank, "sem": sem, "latency": latency}.items():
                pooled = self._cells.add(column)
                posted[name], record[name] = pooled.offset, pooled.stride
            self._posts.append(record)
            self._posted.append(posted)
        return int(self._increments.sum()) - before

    def _count(self, rank: DistinctRows, sem: DistinctRows) -> None:
        """Add the increments of one post; equal rows are counted together."""
        semaphores = max(1, self._executable.semaphore_count)
        for rank_row, sem_row, times in paired_rows(rank, sem):
            ranks, sems = np.broadcast_arrays(rank.rows[rank_row], sem.rows[sem_row])
            is_made = ranks != NONE
            weights = np.broadcast_to(times[:, None], is_made.shape)[is_made]
            key = ranks[is_made].astype(np.int64) * semaphores + sems[is_made]
            counts = np.bincount(key, weights, len(self._increments))
            self._increments += counts.astype(np.int64)

    def _add_jumps(self, number: int, queue: Queue, rows: np.ndarray) -> None:
        rows["jump"] = NONE
        self._queue[number]["offset"] = NONE
        if isinstance(queue, DmaQueue) or not queue.jumps:
            return
        before = len({queue_number for queue_number, *_ in self._jumps})
        self._queue[number]["offset"] = before * self._ranks
        for row, jump in queue.jumps.items():
            rows["jump"][row] = len(self._jumps)
            self._jumps.append((number, row, jump))

    def _control(self, decisions: Decisions) -> tuple[np.ndarray, np.ndarray]:
        """The jumps of all queues, and what each rank decides at them."""
        ranks, semaphores = self._ranks, max(1, self._executable.semaphore_count)
        jumps = empty("jump", len(self._jumps))
        branches = empty("branch", len(self._jumps) * ranks)
        for number, (queue, row, jump) in enumerate(self._jumps):
            shift = np.zeros((len(jump.shift), semaphores), np.int64)
            shift[:, : jump.shift.shape[1]] = jump.shift
            record = jumps[number]
            record["target"], record["how"] = jump.target, ALWAYS
            record["shift"] = self._cells.append(shift)
            record["shift_step"] = semaphores if len(shift) > 1 else 0
            if jump.decision is Decision.ALWAYS:
                continue
            if isinstance(decisions, PlannedDecisions):
                record["how"], record["trips"] = COUNTED, decisions.trips(jump)
            else:
                record["how"] = RECORDED
                of_jump = branches[number * ranks : (number + 1) * ranks]
                taken = decisions.taken(queue, row)
                of_jump["first"] = [self._cells.append(of_rank) for of_rank in taken]
        return jumps, branches

    def _repetition(self, jumps: np.ndarray) -> float:
        """How often a row of an engine or a CC-core runs, on average."""
        runs = {
            number: np.ones(int(queue["length"]))
            for number, queue in enumerate(self._queue)
            if queue["kind"] != RING
        }
        for (number, row, jump), record in zip(self._jumps, jumps, strict=True):
            if record["how"] == COUNTED:
                runs[number][row + 1 : jump.target] *= float(record["trips"])
        rows = sum(map(len, runs.values()))
        return float(sum(of_queue.sum() for of_queue in runs.values())) / max(1, rows)


def _busy_cells(column: DistinctRows, ranks: int) -> int:
    """The number of cells of rows and ranks that are not NONE."""
    busy = (column.rows != NONE).sum(axis=1) * (ranks // column.rows.shape[1])
    return int(busy[column.index].sum())


def _check_size(queue: Queue, most: int) -> None:
    """Refuse sizes that overflow when counted in millionths of a byte."""
    limit = (1 << 62) // MICRO
    if most > limit:
        raise LoweringError(
            f"{queue.name} moves {most:,} bytes in one instruction, more than the {limit:,} that "
            "the clock can count; run it without the clock, or split the array"
        )
