"""How much of what parts could do was used, against sums event by event."""

from collections import Counter

import pytest

from ncc_runtime.execution.trace import NO_EVENT, Reason
from ncc_runtime.machine_model.parts import PartKind
from ncc_runtime.report.utilisation import utilisation
from tests.report.test_timeline_files import bytes_by_link
from tests.report.traces import all_reduce, placed, simple, written


def test_links_have_the_bytes_that_went_over_them():
    trace = simple(all_reduce(elements=4096))
    found = {part.name: part.bytes for part in utilisation(trace).parts[PartKind.LINK]}
    assert found == bytes_by_link(trace)


def test_a_share_is_of_the_rate_over_the_whole_run():
    trace = simple(all_reduce(elements=4096))
    for kind, parts in utilisation(trace).parts.items():
        assert list(parts) == sorted(parts, key=lambda part: -part.share), kind
        for part in parts:
            most = part.rate_bytes_per_s * trace.time_ps / 1e12
            assert part.share == pytest.approx(part.bytes / most)


def test_memory_is_read_at_the_sources_and_written_at_the_target():
    trace = simple(all_reduce(elements=4096))
    wanted: Counter = Counter()
    chip = trace.executable.placement.chip
    for event in range(len(trace)):
        queue = trace.executable.queues[trace.queue[event]]
        if queue.name.startswith("cc0.dma"):
            cell = trace.row[event], trace.rank[event]
            size = int(queue.size_bytes[cell])
            wanted[f"c{chip[cell[1]]}.hbm0"] += size * int((queue.sources[cell] >= 0).sum())
            wanted[f"c{chip[queue.peer[cell]]}.hbm0"] += size
    found = {part.name: part.bytes for part in utilisation(trace).parts[PartKind.HBM]}
    assert found == wanted


def test_between_instances_adapters_are_used_and_no_link():
    from ncc_runtime.lowering.lower import lower
    from ncc_runtime.neff.placeholder import CollectiveOp
    from ncc_runtime.placement import PlaceOptions, place_on
    from tests.programs import collective_program

    program = collective_program(CollectiveOp.ALL_REDUCE, 2, [4096])
    executable = lower(program, place_on(PlaceOptions("trn1.32xlarge", nodes=2), 2), {})
    use = utilisation(simple(executable)).parts
    assert use[PartKind.LINK] == ()
    both_ways = {f"n{node}.efa0 {way}" for node in (0, 1) for way in ("in", "out")}
    assert {part.name for part in use[PartKind.EFA]} == both_ways
    assert {part.name for part in use[PartKind.QUEUE_PAIR]} == {
        "r0.efa out",
        "r0.efa in",
        "r1.efa out",
        "r1.efa in",
    }


def test_an_engine_is_used_while_it_works():
    executable = placed("ENTRY e { x = f32[8,8] parameter(0)\n ROOT y = f32[8,8] negate(x) }")
    (name,) = (queue.name for queue in executable.queues if len(queue.table))
    rows = [(name, 0, 0, 100, 350, NO_EVENT, Reason.NONE, 0)]
    (engine,) = utilisation(written(executable, rows)).engines
    assert engine.engine == name
    assert engine.mean_share == engine.most_share == pytest.approx(250 / 350)
