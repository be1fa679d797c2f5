"""What AWS and others have published of the hardware's behaviour comes out of the clock."""

from pathlib import Path

import numpy as np
import pytest

import ncc_runtime
from ncc_runtime.execution.clock.clock import collective_ps
from ncc_runtime.execution.trace import Trace
from ncc_runtime.lowering.executable import DmaQueue
from ncc_runtime.machine_model.timing import TimingModel
from ncc_runtime.neff.placeholder import CollectiveOp
from tests.clock_runs import collective, permute, timed, transfers
from tests.programs import collective_program

US = 10**6
MIB = 1 << 20
GATHER, REDUCE = CollectiveOp.ALL_GATHER, CollectiveOp.ALL_REDUCE


def per_step(short: Trace, long: Trace, steps: int) -> float:
    """Microseconds of each of so many more steps; what launches is not counted."""
    spans = [trace.time_ps - int(trace.start_ps.min()) for trace in (short, long)]
    return (spans[1] - spans[0]) / steps / US


def ring(ranks: int, elements: int, **place: object) -> Trace:
    return timed(collective(GATHER, "ring", ranks, elements, **place))


def test_a_hop_of_a_ring_takes_one_to_two_microseconds():
    # AWS Neuron docs, intranode-collective-comm.rst
    few, many = (ring(ranks, 256, placement="spread") for ranks in (8, 16))
    assert 1 < per_step(few, many, 8) < 2


def test_kangaring_over_64_ranks_takes_what_was_measured_of_it_beside_its_bytes():
    # rows of 128 MB and more lie on 130 us + bytes / rate: 31 steps of 4.2 us, every second of
    # which crosses dies. The same page says 1 to 2 us a hop; a step goes over two ranks.
    once, twice = (
        collective_ps(collective(GATHER, "kangaring", 64, mb * 2**20 // 256)) for mb in (128, 256)
    )
    assert 2 * once - twice == pytest.approx(130 * US, rel=0.1)


def test_a_step_between_instances_takes_about_fifteen_microseconds():
    # AWS Neuron docs, internode-collective-comm.rst
    few, many = (ring(n, 256, nodes=n, placement="spread") for n in (4, 8))
    assert 14 < per_step(few, many, 4) < 18


def test_a_mesh_between_instances_has_one_step_and_a_ring_one_for_each_instance():
    # the same page: O(1) and O(N) steps
    def time(algorithm: str, n: int) -> int:
        place = {"nodes": n, "placement": "spread"}
        trace = timed(collective(GATHER, algorithm, n, 64, **place))
        return trace.time_ps - int(trace.start_ps.min())

    assert time("ring", 8) - time("ring", 4) > 4 * 14 * US
    assert time("mesh", 8) - time("mesh", 4) < 15 * US


def test_an_exchange_between_instances_has_a_step_for_every_doubling():
    # the same page: RDH has O(log N) steps, each with as many bytes as all before
    times = []
    for n in (2, 4, 8):
        trace = timed(collective(GATHER, "rdh", n, 64, nodes=n, placement="spread"))
        times.append(trace.time_ps - int(trace.start_ps.min()))
    for more in np.diff(times).tolist():
        assert 14 * US < more < 18 * US


def test_a_single_step_pays_while_what_it_sends_more_takes_less_than_a_step():
    # the same page: single-step mesh against mesh, (N-1)*N*C bytes against twice (N-1)*C
    def lead_ps(size: int) -> int:
        place = {"nodes": 4, "placement": "spread"}
        mesh, single = (
            timed(collective(REDUCE, name, 4, size // 4, **place)).time_ps
            for name in ("mesh", "single-step-mesh")
        )
        return mesh - single

    assert 10 * US < lead_ps(1024) < 16 * US
    assert lead_ps(256 * 1024) < 0


def test_rings_of_a_hierarchy_have_fewer_steps_than_one_ring_over_all():
    # the same page: O(X) + O(Y) instead of O(XY)
    times = [
        timed(collective(GATHER, name, 32, 64, nodes=4)).time_ps
        for name in ("hier.ring.ring", "ring")
    ]
    assert times[1] - times[0] > 40 * US


def test_what_several_instances_send_at_once_queues_up_at_the_receiver():
    """Ingress congestion: with n senders, each gets 1/n of the receiver's adapter."""
    n, size = 8, MIB
    trace = timed(
        collective(CollectiveOp.GATHER, "direct", n, size // 4, nodes=n, placement="spread")
    )
    alone = size * US // 19_300
    slowed = [
        int(trace.slowed_ps[event])
        for number, queue in enumerate(trace.executable.queues)
        if isinstance(queue, DmaQueue)
        for event in np.flatnonzero(trace.queue == number).tolist()
        if queue.peer[trace.row[event], trace.rank[event]] == 0 and trace.rank[event] != 0
    ]
    assert len(slowed) >= n - 1
    assert max(slowed) == pytest.approx((n - 2) * alone, rel=0.3)


LATE = """name = "late"
base = "trn2.48xlarge"
[[core]]
node = 0
chip = 0
core = 0
dma_percent = 1
source = "assumed"
"""


@pytest.mark.parametrize(("algorithm", "meet"), [("mesh", True), ("ring", False)])
def test_members_of_a_mesh_between_instances_meet_at_a_receiver_and_those_of_a_ring_do_not(
    algorithm: str, meet: bool, tmp_path: Path
):
    """Ingress congestion: who is late sends where others now send; in a ring nobody else does."""
    # AWS Neuron docs, internode-collective-comm.rst: uneven starters hog the adapter
    path = tmp_path / "late.toml"
    path.write_text(LATE)
    place = {"nodes": 4, "placement": "spread", "topology": str(path)}
    trace = timed(collective(GATHER, algorithm, 4, MIB, **place))
    lost_ps = int(trace.slowed_ps[trace.rank != 0].max())
    assert (lost_ps > MIB * US // 19_300 / 2) == meet
    assert (lost_ps > 0) == meet


def test_more_collectives_in_a_program_do_not_pay_for_its_launch_again():
    # foxl-ai/kiln, docs/neuron-notes.md: a fixed cost for each execution, not for each collective
    times = [
        timed(
            ncc_runtime.load(collective_program(REDUCE, 64, [64], repeat=repeat)).executable
        ).time_ps
        for repeat in (1, 2, 3)
    ]
    once, more = times[0], times[1] - times[0]
    model = TimingModel.from_topology(
        ncc_runtime.load(collective_program(REDUCE, 64, [64])).executable.topology
    )
    launch = model.launch_ps + model.barrier_ps(16)
    assert launch > 50 * US
    assert more <= once - launch
    assert times[2] - times[1] == pytest.approx(more, rel=0.2)


def test_an_all_to_all_grows_with_the_ranks_at_the_same_bytes_of_each():
    """The bytes of a rank go to ever more places, over ever more hops and shared links."""
    total = 4 * MIB // 4
    times = [
        timed(collective(CollectiveOp.ALL_TO_ALL, "direct", ranks, total)).time_ps
        for ranks in (4, 16, 64)
    ]
    assert times[0] < times[1] < times[2]


SLOW_CORE = """name = "slow"
base = "trn2.48xlarge"
[[core]]
chip = 5
core = {core}
dma_percent = 10
source = "assumed"
"""
SLOW_LINKS = 'name = "slow"\nbase = "trn2.48xlarge"\n' + "".join(
    f'[[fault]]\nbetween = [{chip}, 5]\nbandwidth_bytes_per_s = 8_000_000_000\nsource = "assumed"\n'
    for chip in (1, 4, 6, 9)  # all neighbours: rings go round a single slow link
)


@pytest.mark.parametrize(
    "body",
    [SLOW_CORE.format(core=0) + SLOW_CORE.format(core=1).split("\n", 2)[2], SLOW_LINKS],
    ids=["core", "links"],
)
def test_a_chip_with_slow_cores_or_links_holds_up_every_rank_of_the_ring(body: str, tmp_path: Path):
    path = tmp_path / "slow.toml"
    path.write_text(body)
    size = 2 * MIB
    whole = ring(16, size // 4, placement="spread")
    slow = timed(collective(GATHER, "ring", 16, size // 4, topology=str(path), placement="spread"))
    for rank in range(16):
        ends = [int(trace.end_ps[trace.rank == rank].max()) for trace in (whole, slow)]
        assert ends[1] > 1.5 * ends[0]


def test_kangaring_beats_the_ring_at_large_sizes():
    elements = 256 * MIB // 4
    times = {
        name: timed(collective(REDUCE, name, 64, elements)).time_ps
        for name in ("ring", "kangaring")
    }
    assert times["kangaring"] < times["ring"]


SLOW_MEMORY = """name = "slow"
base = "trn2.48xlarge"
[hbm]
stack_bandwidth_bytes_per_s = {value = 40_000_000_000, source = "assumed"}
"""


@pytest.mark.parametrize(
    ("op", "elements", "share"),
    [(GATHER, MIB // 16, 3 / 4), (CollectiveOp.REDUCE_SCATTER, 4 * MIB, 4 / 6)],
    ids=["all-gather", "reduce-scatter"],
)
def test_kangaring_touches_memory_less_where_memory_is_what_is_slow(
    op: CollectiveOp, elements: int, share: float, tmp_path: Path
):
    """Of two ranks 3 touches instead of 4, and where it reduces 4 instead of 6."""
    path = tmp_path / "slow.toml"
    path.write_text(SLOW_MEMORY)
    ring, kangaring = (
        timed(collective(op, name, 64, elements, topology=str(path))).time_ps
        for name in ("ring", "kangaring")
    )
    assert kangaring / ring == pytest.approx(share, rel=0.1)


def test_the_way_to_the_other_die_costs_what_is_fitted_to_it():
    near, far = (
        transfers(timed(permute([(0, to), (to, 0)], 4096, 4, "trn2")), 0)[0] for to in (1, 2)
    )
    topology = ncc_runtime.load(collective_program(GATHER, 4, [4])).executable.topology
    assert (far[3] - far[2]) - (near[3] - near[2]) == topology.intra_chip.die_latency_ps
