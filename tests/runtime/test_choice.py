"""Choice: prices of plans, bounds below them, what wins and why, what cannot run."""

from pathlib import Path

import attrs
import numpy as np
import pytest

import ncc_runtime
from ncc_runtime.collectives.bounds import Bound, bound_of
from ncc_runtime.collectives.choose import ALGORITHMS, Choice, Chooser
from ncc_runtime.collectives.cost.price import Price
from ncc_runtime.errors import LoweringError
from ncc_runtime.execution.clock.clock import collective_ps
from ncc_runtime.lowering.cc_isa import DmaOpcode
from ncc_runtime.lowering.choices import groups_of, job_of
from ncc_runtime.lowering.executable import IDLE, DmaQueue, Executable
from ncc_runtime.machine_model.parts import PartKind
from ncc_runtime.neff.placeholder import CollectiveOp
from ncc_runtime.neff.program import Program
from ncc_runtime.options import LoadOptions
from ncc_runtime.placement import PlaceOptions, place_on
from ncc_runtime.report.diff import traffic_of
from ncc_runtime.report.explain import explained, links_of, touched, why
from ncc_runtime.runtime import load_on
from ncc_runtime.topology.routes import Transport
from tests.programs import collective_program

MB = 1 << 20
UNROOTED = [op for op in CollectiveOp if not op.is_rooted and op is not CollectiveOp.BARRIER]


def choice_of(
    program: Program, place: PlaceOptions, forced: dict[str, str] | None = None
) -> tuple[Choice, Chooser]:
    """The choice for the only placeholder, everything priced."""
    chooser = Chooser(place_on(place, program.ranks), forced or {})
    job = job_of(program, program.placeholders[0])
    groups = groups_of(program, program.placeholders[0])
    return chooser.best(job, chooser.candidates(job, groups, price_all=True)), chooser


def bound_on(program: Program, place: PlaceOptions) -> Bound:
    placeholder = program.placeholders[0]
    parts = Chooser(place_on(place, program.ranks), {}).parts
    return bound_of(parts, job_of(program, placeholder), groups_of(program, placeholder))


def memory_bytes(executable: Executable) -> int:
    """What descriptors read and write, on all ranks together."""
    total = 0
    for queue in executable.queues:
        if isinstance(queue, DmaQueue):
            touches = (queue.sources != IDLE).sum(axis=2) + 1
            if queue.second_peer is not None:
                touches = touches + (queue.second_peer != IDLE)
            # what is reduced for another instance is written to memory first and read from there
            rank = np.broadcast_to(np.arange(executable.ranks), queue.peer.shape)
            peer = np.where(queue.peer == IDLE, rank, queue.peer)
            crosses = executable.routes.transport(rank, peer) == Transport.EFA.code
            touches = touches + 2 * (crosses & (queue.opcode == DmaOpcode.REDUCE)[:, None])
            total += int((touches * queue.size_bytes)[queue.peer != IDLE].sum())
    return total


def prices(choice: Choice) -> dict[str, Price]:
    return {one.name: one.price for one in choice.candidates if one.price is not None}


def test_groups_of_the_same_ranks_but_other_sizes_are_priced_apart() -> None:
    place = PlaceOptions("trn2")
    shared = Chooser(place_on(place, 16), {})
    for size in (4, 8):
        groups = tuple(tuple(range(first, first + size)) for first in range(0, 16, size))
        program = collective_program(CollectiveOp.ALL_GATHER, 16, [MB], groups=groups)
        job = job_of(program, program.placeholders[0])
        found = shared.best(job, shared.candidates(job, groups, price_all=True))
        alone, _ = choice_of(program, place)
        times = [{name: one.time_ps for name, one in prices(of).items()} for of in (found, alone)]
        assert times[0] == times[1]


@pytest.mark.parametrize(
    ("size_mb", "winner"), [(0.5, "mesh"), (2, "rdh"), (28, "rdh"), (112, "kangaring")]
)
def test_64_ranks_of_trn2_change_algorithm_where_aws_publishes_it(
    size_mb: float, winner: str
) -> None:
    # AWS Neuron docs, intranode-collective-comm.rst: mesh below 1 MB, RDH to 56 MB, then KangaRing
    program = collective_program(CollectiveOp.ALL_REDUCE, 64, [int(size_mb * MB) // 4])
    choice, _ = choice_of(program, PlaceOptions("trn2"))
    assert choice.chosen.name == winner


@pytest.mark.parametrize(("size_mb", "winner"), [(0.125, "mesh"), (2, "rdh"), (32, "kangaring")])
def test_16_ranks_of_trn2_take_the_algorithms_of_the_published_example(
    size_mb: float, winner: str
) -> None:
    # AWS Neuron SDK docs, nccom-test.rst: the column algorithm of its example
    program = collective_program(CollectiveOp.ALL_REDUCE, 16, [int(size_mb * MB) // 4])
    choice, _ = choice_of(program, PlaceOptions("trn2"))
    assert choice.chosen.name == winner


def test_two_ranks_of_a_chip_reduce_in_one_hop() -> None:
    program = collective_program(CollectiveOp.ALL_REDUCE, 2, [1024])
    choice, _ = choice_of(program, PlaceOptions("trn1"))
    assert choice.chosen.name == "direct"
    (plan, _), *others = choice.chosen.replica_groups
    assert (len(plan.rounds), plan.scratch_bytes, others) == (1, 0, [])


def test_reading_neighbours_where_results_lie_over_operands_is_no_candidate() -> None:
    program = collective_program(CollectiveOp.ALL_REDUCE, 2, [1024])
    placement = place_on(PlaceOptions("trn1"), 2)
    job = job_of(program, program.placeholders[0])
    inside = attrs.evolve(job, buffers=attrs.evolve(job.buffers, in_place=True))
    found = Chooser(placement, {}).candidates(inside, groups_of(program, program.placeholders[0]))
    (direct,) = (one for one in found if one.name == "direct")
    assert direct.reason == "its results lie over operands that others read"


def test_one_slowed_core_delays_a_whole_ring(tmp_path: Path) -> None:
    path = tmp_path / "slow.toml"
    path.write_text(
        'name = "slow"\nbase = "trn2.48xlarge"\n'
        '[[core]]\nchip = 3\ncore = 0\ndma_percent = 25\nsource = "assumed"\n'
    )
    program = collective_program(CollectiveOp.ALL_REDUCE, 64, [16 * MB])
    fast, slow = (
        prices(choice_of(program, PlaceOptions(topology))[0])["ring"]
        for topology in ("trn2", str(path))
    )
    assert slow.bandwidth_ps > 3 * fast.bandwidth_ps


APART = PlaceOptions("trn1", placement="spread")  # 16 ranks, each on a chip of its own
TWO_INSTANCES = PlaceOptions("trn2", nodes=2)


def suits(op: CollectiveOp, name: str, place: PlaceOptions) -> bool:
    """Whether 16 ranks there are what an algorithm is for."""
    if name.startswith("hier."):
        return place is TWO_INSTANCES
    if name == "torus":
        return place is APART
    if name.startswith("rank-order.hier."):
        return place is TWO_INSTANCES
    needs_whole_chips = name in ("kangaring", "rank-order.kangaring")
    needs_one_chip = name == "direct" and op is CollectiveOp.ALL_REDUCE
    needs_hosts_or_faults = name in ("pod", "synthesised")
    return not (needs_whole_chips or needs_one_chip or needs_hosts_or_faults)


PLACED = [
    (op, name, place)
    for op in UNROOTED
    if op is not CollectiveOp.RAGGED_ALL_TO_ALL  # a price takes even shares, its tables say nothing
    for name in ALGORITHMS[op]
    for place in (APART, TWO_INSTANCES)
    if suits(op, name, place)
]


@pytest.mark.parametrize(
    ("op", "name", "place"), PLACED, ids=[f"{op.value}-{name}-{p}" for op, name, p in PLACED]
)
def test_a_price_counts_the_bytes_that_descriptors_move(
    op: CollectiveOp, name: str, place: PlaceOptions
) -> None:
    pairs = tuple((rank, (rank + 3) % 16) for rank in range(16))
    program = collective_program(
        op, 16, [16 * 64], pairs=pairs if op is CollectiveOp.PERMUTE else ()
    )
    # Forced, as some are not tried beside what is published of an instance.
    choice, chooser = choice_of(program, place, {op.value: name})
    (candidate,) = (one for one in choice.candidates if one.name == name)
    assert candidate.price is not None
    model = load_on(program, place, LoadOptions({op.value: name}))
    (counted,) = traffic_of(model.executable)
    assert links_of(chooser.parts, candidate.price) == dict(counted.bytes_by_link)
    efa = counted.bytes_by_transport[3]
    assert touched(chooser.parts, candidate.price, PartKind.EFA)[1] == 2 * efa


@pytest.mark.parametrize("elements", [1, 5, 1000])
@pytest.mark.parametrize("nodes", [1, 2])
def test_bytes_that_chunks_do_not_divide_are_counted_as_descriptors_move_them(
    elements: int, nodes: int
) -> None:
    program = collective_program(CollectiveOp.ALL_REDUCE, 64, [elements])
    place = PlaceOptions("trn2", nodes=nodes)
    choice, chooser = choice_of(program, place)
    for name, price in prices(choice).items():
        forced = {"all-reduce": name}
        executable = load_on(program, place, LoadOptions(forced)).executable
        (counted,) = traffic_of(executable)
        assert links_of(chooser.parts, price) == dict(counted.bytes_by_link), name
        assert (
            touched(chooser.parts, price, PartKind.EFA)[1] == 2 * counted.bytes_by_transport[3]
        ), name
        assert touched(chooser.parts, price, PartKind.HBM)[1] == memory_bytes(executable), name


@pytest.mark.parametrize("op", UNROOTED)
@pytest.mark.parametrize(("elements", "nodes"), [(0, 1), (16, 2), (16 * 65536, 1), (16 * 4096, 2)])
def test_no_price_is_below_the_bound(op: CollectiveOp, elements: int, nodes: int) -> None:
    pairs = tuple((rank, rank ^ 9) for rank in range(16)) if op is CollectiveOp.PERMUTE else ()
    program = collective_program(op, 16, [elements], pairs=pairs)
    for strategy in ("linear", "spread"):
        place = PlaceOptions("trn2", nodes=nodes, placement=strategy)
        choice, _ = choice_of(program, place)
        bound = bound_on(program, place)
        assert all(price.time_ps >= bound.time_ps for price in prices(choice).values())


def test_the_bound_of_an_all_reduce_over_an_instance_is_what_its_engines_must_join() -> None:
    program = collective_program(CollectiveOp.ALL_REDUCE, 64, [16 * MB])
    bound = bound_on(program, PlaceOptions("trn2"))
    # 64 operands and what 15 chips send are joined at 2 passes, 62 more results are written
    passes = 2 * (64 + 15) + 62
    assert bound.passes == "dma"
    assert bound.bandwidth_ps == -(-passes * 64 * MB * 10**12 // (64 * 32 * 23 * 10**9))


def test_the_bound_of_an_all_gather_over_an_instance_is_what_its_chips_must_send() -> None:
    program = collective_program(CollectiveOp.ALL_GATHER, 64, [MB // 4])
    bound = bound_on(program, PlaceOptions("trn2"))
    # (c-1)N bytes leave 16 chips by 4 links of 128 GB/s each, all at work
    assert bound.bandwidth_ps == -(-15 * 64 * MB * 10**12 // (16 * 4 * 128 * 10**9))
    assert bound.passes == "neuronlink"


def test_the_bound_between_instances_is_what_their_adapters_let_out() -> None:
    program = collective_program(CollectiveOp.ALL_GATHER, 8, [MB // 4])
    bound = bound_on(program, PlaceOptions("trn2", nodes=2))
    # half of 8 MB enters each instance by an adapter of 25 GB/s that 4 ranks share
    assert bound.bandwidth_ps == -(-4 * MB * 10**12 // 25_000_000_000)
    assert bound.passes == "efa"


@pytest.mark.parametrize(
    ("ranks", "rate"),
    # a rank alone, two on a chip, four on two chips of one adapter, eight on two adapters
    [(2, 9_700_000_000), (4, 12_500_000_000), (8, 12_500_000_000), (16, 25_000_000_000)],
)
def test_an_adapter_bounds_its_ranks_together_and_a_queue_pair_one_alone(
    ranks: int, rate: int
) -> None:
    program = collective_program(CollectiveOp.ALL_REDUCE, ranks, [16 * MB])
    bound = bound_on(program, PlaceOptions("trn1", nodes=2))
    assert bound.bandwidth_ps == -(-64 * MB * 10**12 // rate)
    assert bound.passes == "efa"


@pytest.mark.parametrize("op", [op for op in ALGORITHMS if op is not CollectiveOp.PERMUTE])
@pytest.mark.parametrize("ranks", [2, 6, 16])
def test_nothing_on_two_instances_is_quicker_than_its_bound(op: CollectiveOp, ranks: int) -> None:
    program = collective_program(op, ranks, [ranks * 40_000])
    for strategy in ("linear", "spread"):
        place = PlaceOptions("trn1", nodes=2, placement=strategy)
        choice, _ = choice_of(program, place)
        bound = bound_on(program, place)
        assert all(price.time_ps >= bound.time_ps for price in prices(choice).values())
        executable = load_on(program, place, LoadOptions()).executable
        assert collective_ps(executable) >= bound.time_ps


def test_lanes_of_a_ring_over_instances_share_no_adapter_in_its_price() -> None:
    """Eight channels cross with a quarter of the buffer each, over queue pairs of 9.7 GB/s."""
    program = collective_program(CollectiveOp.ALL_REDUCE, 64, [64 * MB])
    choice, _ = choice_of(program, PlaceOptions("trn1", nodes=2))
    ring = prices(choice)["ring"]
    steps, share = 63, 256 * MB // 64 // 8
    relayed = share * 10**12 // 9_700_000_000 + share * 10**12 // 17_000_000_000
    passed = share * 10**12 // 9_700_000_000
    assert ring.bandwidth_ps == pytest.approx(steps * (relayed + passed), rel=0.02)


def test_groups_that_share_a_link_are_priced_together() -> None:
    alone = collective_program(CollectiveOp.PERMUTE, 8, [MB], pairs=((0, 4),))
    both = collective_program(CollectiveOp.PERMUTE, 8, [MB], pairs=((0, 4), (1, 5)))
    one, two = (
        prices(choice_of(program, PlaceOptions("trn2"))[0])["direct"] for program in (alone, both)
    )
    assert one.bandwidth_ps == 4 * MB * 10**12 // (128 * 10**9)
    assert two.bandwidth_ps == 2 * one.bandwidth_ps
    assert two.latency_ps >= one.latency_ps


def test_a_slow_link_of_the_topology_changes_the_price(tmp_path: Path) -> None:
    program = collective_program(CollectiveOp.PERMUTE, 8, [MB], pairs=((0, 4),))
    slowed = tmp_path / "slowed.toml"
    slowed.write_text(
        'name = "slowed"\nbase = "trn2.48xlarge"\n'
        'link.bandwidth_bytes_per_s = {value = 32_000_000_000, source = "assumed"}\n'
    )
    fast, slow = (
        prices(choice_of(program, PlaceOptions(topology))[0])["direct"]
        for topology in ("trn2", str(slowed))
    )
    assert slow.bandwidth_ps == 4 * fast.bandwidth_ps


def test_who_cannot_run_a_candidate_is_named_with_the_reason() -> None:
    groups = tuple(tuple(range(first, first + 3)) for first in (0, 3))
    program = collective_program(CollectiveOp.ALL_REDUCE, 6, [64], groups=groups)
    choice, _ = choice_of(program, PlaceOptions("trn2", placement="spread"))
    (rdh,) = (one for one in choice.candidates if one.name == "rdh")
    assert rdh.reason.startswith("group {0,1,2}: ")
    assert "power of two" in rdh.reason
    assert choice.chosen.price is not None


def test_a_forced_algorithm_stays_although_others_are_cheaper() -> None:
    program = collective_program(CollectiveOp.ALL_REDUCE, 64, [64])
    choice, _ = choice_of(program, PlaceOptions("trn2"), {"all-reduce": "ring"})
    assert choice.chosen.name == "ring"
    assert choice.is_forced
    assert min(prices(choice).values(), key=lambda one: one.time_ps) is not choice.chosen.price


def test_a_channel_buffer_that_does_not_fit_is_no_candidate() -> None:
    for op, room in ((CollectiveOp.ALL_GATHER, 0), (CollectiveOp.ALL_REDUCE, 64)):
        program = collective_program(op, 64, [1024])
        placeholder = program.placeholders[0]
        chooser = Chooser(place_on(PlaceOptions("trn2"), 64), {}, room)
        job = job_of(program, placeholder)
        found = chooser.candidates(job, groups_of(program, placeholder))
        if op is CollectiveOp.ALL_GATHER:
            assert chooser.best(job, found).chosen.replica_groups[0][0].scratch_bytes == 0
        else:
            with pytest.raises(LoweringError, match=r"its channel buffer takes \d+ bytes"):
                chooser.best(job, found)


def test_explanations_price_what_fill_has_chosen() -> None:
    program = collective_program(CollectiveOp.ALL_REDUCE, 16, [4096], repeat=3)
    executable = ncc_runtime.load(program, "trn2").executable
    (row,) = explained(executable, {}).rows
    assert row.ids == (0, 1, 2)
    assert {filled.name for filled in executable.lowered} == {row.choice.chosen.name}
    assert row.attained is not None
    assert 0 < row.attained < 1


def test_the_reason_names_the_runner_up_and_the_term_that_decides() -> None:
    program = collective_program(CollectiveOp.ALL_REDUCE, 16, [64])
    row = explained(ncc_runtime.load(program, "trn2").executable, {}).rows[0]
    others = sorted(
        (one.time_ps, name)
        for name, one in prices(row.choice).items()
        if name != row.choice.chosen.name
    )
    assert f"less than {others[0][1]}: " in why(row)
    assert "us less of latency" in why(row)


def test_uneven_chunks_are_priced_as_the_largest() -> None:
    even, uneven = (
        prices(
            choice_of(collective_program(CollectiveOp.ALL_REDUCE, 8, [size]), PlaceOptions())[0]
        )["ring"]
        for size in (8 * 4096, 7 * 4096 + 1)
    )
    assert uneven.time_ps <= even.time_ps
    assert np.all(uneven.bytes_by_part <= even.bytes_by_part)
