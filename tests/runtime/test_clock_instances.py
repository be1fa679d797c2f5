"""One instance simulated for all that are alike: the same times and causes as all of them."""

from pathlib import Path

import numpy as np
import pytest

from ncc_runtime.collectives.choose import ALGORITHMS
from ncc_runtime.errors import LoweringError
from ncc_runtime.execution.clock import clock
from ncc_runtime.execution.clock.instances import symmetric_instances, unreduced
from ncc_runtime.execution.trace import Trace
from ncc_runtime.lowering.executable import Executable
from ncc_runtime.machine_model.parts import Parts
from ncc_runtime.machine_model.timing import TimingModel
from ncc_runtime.neff.placeholder import CollectiveOp
from tests.clock_runs import collective, permute, planned, timed

REDUCE, GATHER = CollectiveOp.ALL_REDUCE, CollectiveOp.ALL_GATHER
ALL_TO_ALL = CollectiveOp.ALL_TO_ALL
ALIKE = [(REDUCE, "ring"), (REDUCE, "rdh"), (REDUCE, "hier.ring.rdh"), (GATHER, "ring")]


def alike(executable: Executable) -> int:
    model = TimingModel.from_topology(executable.topology)
    parts = Parts(executable.routes, model, executable.ranks)
    return symmetric_instances(executable, parts, planned(executable)).count


def apart(executable: Executable, monkeypatch: pytest.MonkeyPatch) -> Trace:
    with monkeypatch.context() as patch:
        patch.setattr(clock, "symmetric_instances", lambda executable, *_: unreduced(executable))
        return timed(executable)


def in_order(trace: Trace) -> np.ndarray:
    """Events by queue and rank, in the order performed, their causes numbered like that."""
    order = np.lexsort((np.arange(len(trace)), trace.rank, trace.queue))
    place = np.empty(len(trace) + 1, np.int64)
    place[order], place[-1] = np.arange(len(trace)), -1
    columns = (trace.queue, trace.row, trace.rank, trace.start_ps, trace.end_ps)
    more = (place[trace.cause], trace.reason, trace.slowed_ps)
    return np.stack([column.astype(np.int64)[order] for column in columns + more])


@pytest.mark.parametrize("nodes", [2, 4])
@pytest.mark.parametrize(("op", "name"), ALIKE)
@pytest.mark.parametrize("elements", [1 << 12, 3 << 20])
def test_alike_instances_are_timed_as_all_of_them(op, name, nodes, elements, monkeypatch):
    executable = collective(op, name, 4 * nodes, elements, nodes=nodes)
    assert alike(executable) == nodes
    assert (in_order(timed(executable)) == in_order(apart(executable, monkeypatch))).all()


def test_instances_that_send_to_each_other_are_alike(monkeypatch):
    pairs = [(rank, (rank + 6) % 12) for rank in range(12)]
    executable = permute(pairs, 1 << 22, 12, "trn2", nodes=3)
    assert alike(executable) == 3
    assert (in_order(timed(executable)) == in_order(apart(executable, monkeypatch))).all()


@pytest.mark.parametrize("left_out", [0, 7])
def test_an_instance_where_one_rank_sends_nothing_is_another(left_out):
    pairs = [(rank, (rank + 1) % 8) for rank in range(8) if rank != left_out]
    executable = permute(pairs, 1 << 20, 8, "trn2", nodes=2)
    assert alike(executable) == 1


def test_two_that_send_to_the_same_instance_are_not_alike():
    pairs = [(0, 1), (2, 3), (4, 0), (1, 2), (3, 5), (5, 4)]
    assert alike(permute(pairs, 1 << 20, 6, "trn2", nodes=3)) == 1


def test_uneven_shares_part_instances():
    assert alike(collective(REDUCE, "ring", 8, 4097 * 3, nodes=2)) == 1


SLOW = """name = "slow"
base = "trn2.48xlarge"
"""
CORE = '[[core]]\nnode = 1\nchip = 0\ncore = 1\n{what} = 50\nsource = "assumed"\n'
LINK = "[[fault]]\nnode = 1\nbetween = [4, 5]\nbandwidth_bytes_per_s = 8_000_000_000\n"


@pytest.mark.parametrize(
    "fault",
    [CORE.format(what="dma_percent"), CORE.format(what="engines_percent"), LINK + 'source = "a"\n'],
    ids=["dma", "engines", "link"],
)
def test_what_is_slow_in_one_instance_parts_it_from_the_others(fault: str, tmp_path: Path):
    path = tmp_path / "slow.toml"
    path.write_text(SLOW + fault)
    assert alike(collective(GATHER, "ring", 8, 1 << 12, topology=str(path), nodes=2)) == 1


@pytest.mark.slow
@pytest.mark.parametrize("nodes", [2, 3, 4])
@pytest.mark.parametrize("op", list(CollectiveOp))
def test_whatever_is_found_alike_is_timed_as_all_of_it(op, nodes, monkeypatch):
    for name in ALGORITHMS[op]:
        try:
            executable = collective(op, name, 4 * nodes, 1 << 16, nodes=nodes)
        except LoweringError:
            continue
        if alike(executable) > 1:
            assert (in_order(timed(executable)) == in_order(apart(executable, monkeypatch))).all()
