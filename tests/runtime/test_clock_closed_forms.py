"""Times that can be worked out by hand, to the picosecond: transfers, rings, trees, shared ways."""

import itertools

import numpy as np
import pytest

from ncc_runtime.execution.trace import Reason, Trace
from ncc_runtime.lowering.executable import CcQueue, DmaQueue, EngineQueue
from ncc_runtime.machine_model.parts import PartKind
from ncc_runtime.machine_model.timing import TimingModel
from ncc_runtime.neff.isa import Engine
from ncc_runtime.neff.placeholder import CollectiveOp
from ncc_runtime.placement import place
from ncc_runtime.topology.graph import build
from ncc_runtime.topology.routes import Routes
from tests.clock_runs import agreed, collective, compiled, permute, timed, transfers
from tests.draws_topology import topology_file

MIB = 1 << 20
LINK = 128_000  # MB/s of trn2
MICRO = 10**6


def up(amount: int, rate: int) -> int:
    """A quotient rounded up."""
    return -(-amount // rate)


@pytest.mark.parametrize(
    ("where", "by_hand"),
    [
        ({}, 1_300_000 + 50_000 + 16 * 4_000 + up(MIB * MICRO, 8 * 23_000)),
        # by one link, from and to other ports of the chips
        (
            {"placement": "spread"},
            1_300_000 + 100_000 + 2 * 50_000 + 16 * 4_000 + MIB * 1000 // 128,
        ),
        ({"nodes": 2}, 15_000_000 + 16 * 4_000 + up(MIB * MICRO, 19_300)),
    ],
    ids=["intra-chip", "NeuronLink", "EFA"],
)
def test_one_transfer_takes_start_latency_descriptors_and_bytes(where, by_hand):
    executable = permute([(0, 1), (1, 0)], MIB, 2, "trn2", **where)
    (peer, _, start, end), *_ = transfers(timed(executable), 0)
    assert (peer, end - start) == (1, by_hand)
    routes, model = executable.routes, TimingModel.from_topology(executable.topology)
    way = np.array([0]), np.array([1])
    priced = model.transfer_ps(
        routes.transport(*way),
        routes.links_ps(*way),
        np.array([MIB]),
        routes.bandwidth_bytes_per_s(*way),
    )
    assert by_hand == int(priced[0]) + int(routes.crossing_ps(*way)[0])


def test_a_permute_takes_launch_trigger_handshake_transfer_and_report():
    executable = permute([(0, 1), (1, 0)], 4096, 2, "trn1", placement="spread")
    trace = timed(executable)
    model = TimingModel.from_topology(executable.topology)
    row = model.cc_row_ps(0, 1)
    transfer = model.dma_start_ps + 100_000 + 4_000 + up(4096 * MICRO, 48_000)
    assert trace.time_ps == (
        15_000_000  # the host
        + 10_000_000  # two chips meet
        + up(60 * MICRO, 1400)  # the instruction that triggers
        + 100_000  # the trigger
        + model.cc_start_ps
        + row  # wait for the trigger
        + row  # signal
        + 50_000  # remote write
        + 100_000  # its way
        + row  # advance
        + 20_000  # to the ring
        + transfer
        + 50_000  # the word behind the data
        + 3 * row  # arrival, own completion, done
    )


@pytest.mark.parametrize("ranks", [4, 8, 16])
def test_every_step_of_an_uncontended_ring_takes_a_transfer_a_word_a_row_and_an_advance(ranks):
    size = 6_000  # a lane has half
    executable = collective(
        CollectiveOp.ALL_GATHER, "ring", ranks, size // 4, topology="trn1", placement="spread"
    )
    trace = timed(executable)
    model = TimingModel.from_topology(executable.topology)
    lanes = [queue.lane for queue in executable.queues if isinstance(queue, DmaQueue)]
    transfer = model.dma_start_ps + 100_000 + 4_000 + up(size // len(lanes) * MICRO, 48_000)
    step = transfer + 50_000 + model.cc_row_ps(0, 1) + 20_000
    for rank in range(ranks):
        sent = [one for one in transfers(trace, rank) if one[0] != rank]
        for peer in {one[0] for one in sent}:
            starts = [start for to, _, start, _ in sent if to == peer]
            assert {end - start for to, _, start, end in sent if to == peer} == {transfer}
            # the first step waits for the own chunk, too
            assert np.diff(starts[1:]).tolist() == [step] * (ranks - 3)
    assert not trace.slowed_ps.any()


def path_of(trace: Trace) -> list[int]:
    """Events from the first to the one that ends last, each the cause of the next."""
    path = [int(trace.end_ps.argmax())]
    while trace.cause[path[0]] >= 0:
        path.insert(0, int(trace.cause[path[0]]))
    return path


TREE = (
    # from, to, hops, MB/s: a channel copies 68 GB/s, a reduction reads every source twice
    (0, 1, 1, 48_000),
    (1, 3, 2, 68_000 // (3 * 2)),  # what came from 0 and 2, and its own
    (3, 3, 0, 68_000 // (2 * 2)),  # the root's result
    (3, 1, 2, 48_000),
    (1, 2, 1, 68_000 // 2),  # to 0 in the same transfer
)


def test_a_tree_takes_what_its_deepest_branch_does():
    """Up over two levels and down again, in one piece, as it is small."""
    executable = collective(
        CollectiveOp.ALL_REDUCE, "tree", 4, 256, topology="trn1", placement="spread"
    )
    trace, model = timed(executable), TimingModel.from_topology(executable.topology)
    path = path_of(trace)
    moved = [
        (int(trace.rank[event]), int(queue.peer[trace.row[event], trace.rank[event]]))
        for event in path
        if isinstance(queue := executable.queues[trace.queue[event]], DmaQueue)
    ]
    assert moved == [(source, target) for source, target, *_ in TREE]
    rows = sum(isinstance(executable.queues[trace.queue[event]], CcQueue) for event in path)
    to_ring, behind_data, at_home = 5 * 20_000, 4 * 50_000, 20_000
    assert trace.time_ps == (
        int(trace.start_ps.min())
        + model.instruction_ps(Engine.GPSIMD)
        + model.trigger_ps
        + model.cc_start_ps
        + rows * model.cc_row_ps(0, 1)
        + (50_000 + 100_000)  # the signal that a buffer is free
        + (to_ring + behind_data + at_home)
        + sum(1_304_000 + 100_000 * hops + up(1024 * MICRO, rate) for *_, hops, rate in TREE)
    )


def test_two_transfers_over_one_link_get_half_each_and_the_second_speeds_up_when_one_ends():
    trace, _ = agreed(permute([(0, 4), (1, 5)], MIB, 8, "trn2"))
    ways = {rank: transfers(trace, rank) for rank in (0, 1)}
    late, early = (next(one for one in ways[k] if one[0] == k + 4) for k in (0, 1))
    start = 1_300_000 + 16 * 4_000
    begins, begun = late[2] + start, early[2] + start
    assert begun < begins
    left = MIB * MICRO - (begins - begun) * LINK
    first = begins + up(left, LINK // 2)
    second = first + up(MIB * MICRO - (first - begins) * LINK // 2, LINK)
    crossing = trace.executable.routes.crossing_ps(np.array([0, 1]), np.array([4, 5]))
    latency = 100_000 + crossing  # one link, and what lies between a core and its port
    assert early[3] - first == latency[early[0] - 4]
    assert late[3] - second == latency[late[0] - 4]


TWO_STREAMS = """HloModule m, replica_count=2
ENTRY e {{ x = f32[{short}] parameter(0)
 y = f32[{long}] parameter(1)
 a = f32[{short}] collective-permute(x), source_target_pairs={pairs}, frontend_attributes={first}
 b = f32[{long}] collective-permute(y), source_target_pairs={pairs}, frontend_attributes={second}
 ROOT r = (f32[{short}], f32[{long}]) tuple(a, b)
}}
"""


def test_a_short_transfer_beside_a_long_one_leaves_it_the_whole_link_when_it_ends():
    short, long = MIB, 4 * MIB
    text = TWO_STREAMS.format(
        short=short // 4,
        long=long // 4,
        pairs="{{0,1},{1,0}}",
        first='{stream_id="0"}',
        second='{stream_id="1"}',
    )
    trace, _ = agreed(compiled(text, placement="spread"))
    first, second = (one for one in transfers(trace, 0) if one[0] == 1)
    begun, begins = (
        one[2] + 1_300_000 + size // 65536 * 4_000 for one, size in ((first, short), (second, long))
    )
    latency = 100_000 + 2 * 50_000
    ends = begins + up(short * MICRO - (begins - begun) * LINK, LINK // 2)
    assert first[3] == ends + latency
    left = long * MICRO - (ends - begins) * LINK // 2
    assert second[3] == ends + up(left, LINK) + latency


LINE = """chips.count = 4
fabric.shape = "line"
fabric.dims = [4]
efa.adapters = 4"""


def test_three_links_in_a_line_are_shared_as_the_textbook_says(tmp_path):
    """One flow over three links, one more on the first and the last, two more on the second.

    Max-min: the second link gives a third to each of its three; what the long flow leaves on the
    others goes to those that are alone there (Bertsekas and Gallager, section 6.5.2).
    """
    pairs = [(0, 12), (1, 4), (5, 8), (6, 9), (10, 13)]
    topology = topology_file(tmp_path, LINE)
    _, reference = agreed(permute(pairs, 8 * MIB, 16, topology))
    links = reference.parts.span(PartKind.LINK)
    found = set()
    for instant in reference.network.instants:
        rates = [
            int(rate)
            for flow, rate in instant.rates
            if any(isinstance(part, int) and part < links.stop for part in flow.uses)
        ]
        found.add(tuple(sorted(rates)))
    third = LINK // 3
    assert (third, third, third, LINK - third, LINK - third) in found


ONE_ADAPTER = """chips.count = 2
fabric.shape = "line"
fabric.dims = [2]
efa.adapters = 1"""


@pytest.mark.parametrize(("senders", "rate"), [(1, 19_300), (2, 12_500), (5, 5_000), (8, 3_125)])
def test_ranks_share_their_adapter_and_one_alone_has_what_its_queue_pair_carries(
    tmp_path, senders, rate
):
    pairs = [(rank, 8 + rank) for rank in range(senders)]
    executable = permute(pairs, 8 * MIB, 16, topology_file(tmp_path, ONE_ADAPTER), nodes=2)
    _, reference = agreed(executable)
    found = {
        tuple(int(rate) for flow, rate in instant.rates if ("adapter", 0, "out") in flow.uses)
        for instant in reference.network.instants
    }
    assert (rate,) * senders in found
    assert {rates for rates in found if len(rates) == senders} == {(rate,) * senders}


def test_what_two_instances_send_to_one_shares_the_way_in(tmp_path):
    executable = permute(
        [(0, 16), (8, 17)], 8 * MIB, 24, topology_file(tmp_path, ONE_ADAPTER), nodes=3
    )
    _, reference = agreed(executable)
    both = max(
        sum(int(rate) for flow, rate in instant.rates if ("adapter", 2, "in") in flow.uses)
        for instant in reference.network.instants
    )
    assert both == 25_000


def test_over_efa_a_sum_is_reduced_first_and_a_message_waits_until_the_last_has_arrived():
    """Two chips of two ranks, a ring of four: ranks 1 and 3 send to the other instance."""
    executable = collective(
        CollectiveOp.REDUCE_SCATTER, "ring", 4, 4 * MIB, topology="trn1", nodes=2
    )
    trace, _ = agreed(executable)
    sent = [one for one in transfers(trace, 1) if one[0] == 2]
    size, descriptors = 4 * MIB, 64 * 4_000
    wire, reduction = 9_700, 68_000 // (2 * 2)
    rates = [wire, *2 * [wire * reduction // (wire + reduction)]]
    assert [end - start for _, _, start, end in sent] == [
        15_000_000 + descriptors + up(size * MICRO, rate) for rate in rates
    ]
    for (*_, arrived), (_, _, start, _) in itertools.pairwise(sent):
        assert start >= arrived


BUSY = """HloModule m, replica_count=1
sum {{ a = f32[] parameter(0)
 b = f32[] parameter(1)
 ROOT s = f32[] add(a, b) }}
ENTRY e {{ x = f32[{n}] parameter(0)
 {collectives}
 y0 = f32[{n}] negate(x)
 y1 = f32[{n}] negate(y0)
 y2 = f32[{n}] negate(y1)
 ROOT r = ({kinds}) tuple(c0, c1, c2, c3, y2)
}}
"""


def test_collectives_have_sixteen_times_the_share_of_compute_that_their_packets_have():
    """Four copies that read and write a stack beside a negation: 64 KiB against 4 KiB packets."""
    elements = 4 * MIB
    lines = [
        f"c{k} = f32[{elements}] all-reduce(x), replica_groups={{}}, to_apply=sum, "
        f'frontend_attributes={{stream_id="{k}"}}'
        for k in range(4)
    ]
    kinds = ", ".join([f"f32[{elements}]"] * 5)
    text = BUSY.format(n=elements, collectives="\n ".join(lines), kinds=kinds)
    trace, reference = agreed(compiled(text, level=0))
    compute = 725_000 * 1 // (4 * 2 * 16 + 1)
    shares = [
        sorted({int(rate) for _, rate in one.rates})
        for one in reference.network.instants
        if len(one.rates) == 5
    ]
    assert [compute, 725_000 * 16 // (4 * 2 * 16 + 1)] in shares
    engines = np.array([isinstance(queue, EngineQueue) for queue in trace.executable.queues])
    own = engines[trace.queue]
    *_, alone, beside = np.sort((trace.end_ps - trace.start_ps)[own])
    # Of three equal negations, two have the memory to themselves.
    assert trace.slowed_ps[own].max() == beside - alone


def test_a_row_that_waits_says_for_whom_and_a_row_that_does_not_says_that_its_queue_was_busy():
    trace = timed(collective(CollectiveOp.ALL_REDUCE, "ring", 4, 1 << 16))
    has_cause = trace.cause >= 0
    assert (trace.reason[~has_cause] == Reason.NONE).all()
    cause, after = trace.cause[has_cause], np.flatnonzero(has_cause)
    reason = trace.reason[after]
    queued = reason == Reason.QUEUE
    assert (trace.start_ps[after][queued] == trace.end_ps[cause][queued]).all()
    assert (trace.queue[after][queued] == trace.queue[cause][queued]).all()
    told = reason == Reason.SEMAPHORE
    assert (trace.start_ps[after][told] > trace.end_ps[cause][told]).all()
    assert set(np.unique(reason).tolist()) == {Reason.QUEUE, Reason.SEMAPHORE, Reason.RING}


def test_ranks_start_when_the_host_has_launched_and_those_of_several_chips_have_met():
    model = TimingModel.from_topology(build("trn2"))
    for ranks, chips in ((4, 1), (8, 2), (64, 16)):
        trace = timed(collective(CollectiveOp.ALL_GATHER, "ring", ranks, 16))
        assert trace.start_ps.min() == model.launch_ps + model.barrier_ps(chips)


def test_routes_of_the_line_are_what_the_textbook_example_takes_them_for(tmp_path):
    topology = build(topology_file(tmp_path, LINE))
    routes = Routes(topology, place(topology, 16, "linear"))
    long = set(routes.links(0, 12))
    assert len(long) == 3
    assert set(routes.links(5, 8)) == set(routes.links(6, 9)) < long
    assert {*routes.links(1, 4), *routes.links(5, 8), *routes.links(10, 13)} == long
