"""How long increments are under way until they are seen, per post of a queue, as columns."""

from collections.abc import Iterator

import numpy as np

from ncc_runtime.execution.clock.cells import Alike, alike
from ncc_runtime.lowering.cc_isa import CcOpcode
from ncc_runtime.lowering.executable import (
    IDLE,
    CcQueue,
    EngineQueue,
    Executable,
    Post,
    Queue,
)
from ncc_runtime.timing import TimingModel


class Flights:
    """Flight times of the increments of one executable on one topology."""

    def __init__(self, executable: Executable, model: TimingModel, ranks: int) -> None:
        self._executable = executable
        self._ranks = ranks  # whose increments are asked for, the first ones
        self._model = model
        self._triggers = [facts.trigger_sem for facts in executable.streams]

    def of(self, queue: Queue) -> Iterator[Alike]:
        """Per post, ps by row and rank, as many as Sync.posts; anything where there is none."""
        if isinstance(queue, EngineQueue):
            yield from map(self._of_engine, queue.sync.posts)
        elif isinstance(queue, CcQueue):
            signals = queue.opcode == CcOpcode.SIGNAL
            yield from (self._of_cc(post, signals) for post in queue.sync.posts)
        else:
            arrivals = {0} if queue.also_peer is None else {0, 2}
            for number, post in enumerate(queue.sync.posts):
                follows = number in arrivals or number == 1
                yield self._of_arrival(post) if follows else self._of_signal(post)

    def _of_engine(self, post: Post) -> Alike:
        rows, model = alike(post.sem), self._model
        is_trigger = np.isin(rows.rows, self._triggers)
        flight = np.where(is_trigger, model.trigger_ps, model.semaphore_local_ps)
        return Alike(flight, rows.index)

    def _of_cc(self, post: Post, signals: np.ndarray) -> Alike:
        rows = alike(post.rank)
        away = self._signal_ps(rows.rows)
        home = np.full_like(away, self._model.semaphore_local_ps)
        index = rows.index + np.where(signals, 0, len(away))
        return Alike(np.concatenate((away, home)), index)

    def _of_arrival(self, post: Post) -> Alike:
        """The word follows its data, its write is left to pay."""
        rows, model = alike(post.rank), self._model
        to, mine = self._ends(rows.rows)
        local, remote = model.semaphore_local_ps, model.semaphore_remote_ps
        return Alike(np.where(to == mine, local, remote), rows.index)

    def _of_signal(self, post: Post) -> Alike:
        rows = alike(post.rank)
        return Alike(self._signal_ps(rows.rows), rows.index)

    def _ends(self, rank: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Whose semaphore it is, the own where there is none, and whose increment."""
        mine = np.broadcast_to(np.arange(self._ranks), (len(rank), self._ranks))
        return np.where(rank == IDLE, mine, rank), mine

    def _signal_ps(self, rank: np.ndarray) -> np.ndarray:
        """Of increments of other ranks' semaphores, no data before them."""
        to, mine = self._ends(rank)
        routes = self._executable.routes
        way = routes.transport(mine, to), routes.links_ps(mine, to)
        return self._model.semaphore_ps(*way) + routes.crossing_ps(mine, to)
