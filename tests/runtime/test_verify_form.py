"""Every rule of form can be broken, and its breach is reported under its number alone."""

import re
from collections.abc import Callable

import attrs
import numpy as np
import pytest

from ncc_runtime.lowering.cc_isa import CcOpcode
from ncc_runtime.lowering.executable import IDLE, CcQueue, DmaQueue, Executable, Queue, RegisterLoad
from ncc_runtime.verify.proof import Cell
from ncc_runtime.verify.wellformed.wellformed import MOST_BREACHES, STAGES, prove_well_formed
from tests import mutant_edits as edit
from tests.calls import calls_of
from tests.documents import ROOT, cells
from tests.form_breaks import (
    BASES,
    COPY,
    DONE,
    PUSH,
    REDUCE,
    SIGNAL,
    Break,
    cell,
    changed,
    counted,
    dma,
    duplicated,
    facts,
    gap,
    hbm,
    jump,
    links,
    loaded,
    loads,
    looped,
    more_sources,
    over_efa,
    over_links,
    owner,
    placed,
    plain,
    post,
    register,
    rerouted,
    ring,
    three_streams,
    topology,
    untriggered,
    wait,
    without_jump,
)
from tests.stage_breaks import at_row, joint, numbers_of, of_second

TRIGGER = ring().streams[0].trigger_sem
TAIL, SENT = ring().streams[0].rings[0]
COUNT = ring().semaphore_count
END = ring().hbm_bytes
P0 = "(p0 all-reduce.0)"


ROW, RANK = np.argwhere(duplicated().queues[-1].second_peer != IDLE)[0].tolist()


def twice(executable: Executable) -> Executable:
    return attrs.evolve(executable, queues=(*executable.queues, executable.queues[0]))


def narrow_target(queue: Queue) -> Queue:
    return attrs.evolve(queue, target=queue.target[:, :3])


def beyond(rows: dict[int, RegisterLoad]) -> dict[int, RegisterLoad]:
    return {row: attrs.evolve(one, address=one.address + (1 << 40)) for row, one in rows.items()}


def further(rows: dict[int, RegisterLoad]) -> dict[int, RegisterLoad]:
    """All registers one further: nobody loads register 0."""
    return {row: attrs.evolve(one, first=one.first + 1) for row, one in rows.items()}


def narrow_waits(queue: Queue) -> Queue:
    sync = attrs.evolve(queue.sync, wait_sem=queue.sync.wait_sem[:, :2])
    return attrs.evolve(queue, sync=sync)


def fewer_owners(queue: Queue) -> Queue:
    return attrs.evolve(queue, source_rank=queue.source_rank[:, :, :1])


def without_second_targets(queue: Queue) -> Queue:
    return attrs.evolve(queue, second_target=None)


def below_all_opcodes(queue: Queue) -> Queue:
    return attrs.evolve(queue, opcode=queue.opcode.astype(np.int32) - 5)


def another_source_column(queue: Queue) -> Queue:
    more = np.full((*queue.peer.shape, 1), IDLE)
    return attrs.evolve(queue, sources=np.concatenate((queue.sources, more), axis=2))


def second_at_the_first(executable: Executable) -> Executable:
    """Both targets of a transfer, and both words of its arrival, at one rank."""
    peer = int(executable.queues[-1].peer[ROW, RANK])
    number, sem = (
        len(executable.queues) - 1,
        int(executable.queues[-1].sync.posts[2].sem[ROW, RANK]),
    )
    moved = edit.with_cells(executable, number, (ROW, RANK), {"second_peer": peer})
    return edit.with_post(moved, number, 2, (ROW, RANK), (peer, sem))


def onto_itself(by: int) -> Break:
    """The last row of rank 0 moves its bytes by so many within its own memory."""

    def made(executable: Executable) -> Executable:
        number, row = 6, len(executable.queues[6].opcode) - 1
        sem = int(executable.queues[6].sync.posts[0].sem[row, 0])
        target = int(executable.queues[6].sources[row, 0, 0]) + by
        moved = edit.with_cells(executable, number, (row, 0), {"peer": 0, "target": target})
        return edit.with_post(moved, number, 0, (row, 0), (0, sem))

    return made


def large_waits(queue: Queue) -> Queue:
    value = queue.sync.wait_value.astype(np.int64) + 2**31
    return attrs.evolve(queue, sync=attrs.evolve(queue.sync, wait_value=value))


def other_costs(queue: Queue) -> Queue:
    return attrs.evolve(queue, table=attrs.evolve(queue.table, flops=queue.table.flops + 1))


def posting(count: int) -> Callable[[Queue], Queue]:
    """Only the first posts of every row."""
    return lambda queue: attrs.evolve(
        queue, sync=attrs.evolve(queue.sync, posts=queue.sync.posts[:count])
    )


# rule, what is broken, how, the complaint
BREACHES: list[tuple[str, Callable[[], Executable], Break, str]] = [
    ("exe-W1", ring, twice, "2 queues of engine Tensor"),
    (
        "exe-W1",
        ring,
        lambda e: attrs.evolve(e, queues=e.queues[1:]),
        "no queue of engine Tensor on",
    ),
    ("exe-W1", ring, facts(stream=1), "streams [0] have a CC-core program, streams [1] should"),
    ("exe-W1", ring, facts(rings={0: (2, 3), 1: (4, 5)}), "rings of lanes [0], should have [0, 1]"),
    ("exe-W1", ring, changed("GpSimd", other_costs), "instructions are not those of the prog"),
    ("exe-W1", ring, changed("cc0.dma0", narrow_target), "a column is (14, 3), not (14, 4)"),
    ("exe-W1", ring, changed("cc0", narrow_waits), "a column of waits is (26, 2), not (26, 4)"),
    ("exe-W1", duplicated, changed("cc0.dma0", fewer_owners), "owners of sources are (16, 8, 1)"),
    ("exe-W1", duplicated, changed("cc0.dma0", without_second_targets), "one without the other"),
    ("exe-W2", ring, plain("cc0", "opcode", 0, 9), f"pc 0 {P0}: opcode 9 is unknown"),
    ("exe-W2", ring, changed("cc0.dma0", below_all_opcodes), f"pc 0 {P0}: opcode -5 is unknown"),
    ("exe-W2", ring, plain("cc0.dma0", "opcode", 0, 3), f"pc 0 {P0}: opcode 3 is unknown"),
    ("exe-W2", ring, plain("cc0.dma0", "placeholder", 0, 2), "names placeholder 2, there are 2"),
    ("exe-W2", ring, plain("cc0", "placeholder", 0, IDLE), "names placeholder -1, there are 2"),
    ("exe-W2", looped, plain("cc0", "placeholder", 0, 0), "names placeholder 0, there are 1"),
    ("exe-W2", ring, plain("cc0", "ring_row", PUSH, 14), "pushes row 14 of dma0, there are 14"),
    ("exe-W2", ring, plain("cc0", "ring", PUSH, 7), "pushes row 0 of dma7, there are 0"),
    ("exe-W2", ring, plain("cc0", "ring", 0, 0), "pushes row -1 of dma0, there are 14"),
    ("exe-W3", looped, without_jump("cc0"), "queue cc0, pc 0: a control row without a jump"),
    ("exe-W3", looped, without_jump("Sync"), "(test, w): a control row without a jump"),
    ("exe-W3", looped, jump("cc0", target=16), "jumps to pc 16, there are 15"),
    ("exe-W3", looped, jump("cc0", block=1), "names block 1, there are 1"),
    ("exe-W3", looped, plain("cc0", "opcode", 0, CcOpcode.CASE), "jumps as by test, which it is n"),
    (
        "exe-W3",
        looped,
        jump("cc0", shift=np.zeros((1, 3), int)),
        "shifts (1, 3) values, must be (4",
    ),
    ("exe-W4", ring, wait("cc0", 4, 1, COUNT, 1), f"rank 1, queue cc0, pc 4 {P0}: waits for sem"),
    ("exe-W4", ring, wait("cc0", 4, 1, 5, -1), "waits for -1, must be from 0 to 2147483647"),
    ("exe-W4", ring, changed("cc0", large_waits), "waits for 2147483649, must be from 0 to 2147"),
    ("exe-W4", ring, post("cc0", SIGNAL, 2, 0, (4, 4)), "posts semaphore 4 of rank 4, there are"),
    ("exe-W4", ring, post("cc0.dma0", 0, 2, 1, (IDLE, SENT)), "posts semaphore 3 of rank -1"),
    ("exe-W5", ring, placed("core", 1, 4), "rank 1 is on core 4, there are 4"),
    ("exe-W5", ring, placed("node", 1, 1), "rank 1 is on node 1, there are 1"),
    ("exe-W5", ring, placed("core", 1, 0), "ranks 0 and 1 are both on chip 0, core 0"),
    ("exe-W5", over_efa, placed("chip", 1, 16), "rank 1 is on chip 16, which is not of node 0"),
    (
        "exe-W6",
        ring,
        lambda e: attrs.evolve(e, semaphore_count=1026),
        "the streams of a rank use 1025 semaphores, its 4 CC-cores have 1024 (256 each)",
    ),
    ("exe-W7", three_streams, topology(cc_cores_per_core=1), "3 streams, a rank of trn2.48xlarge"),
    ("exe-W8", ring, dma(engines_per_core=0), "1 DMA rings, the 0 DMA engines of a rank have 0"),
    ("exe-W9", ring, plain("cc0.dma0", "opcode", REDUCE, 0), "copy of 2 sources, must be 1 to 1"),
    ("exe-W9", ring, plain("cc0.dma0", "opcode", COPY, 2), "fill of 1 sources, must be 0 to 0"),
    ("exe-W9", ring, changed("cc0.dma0", gap), "copy of 1 sources with a gap, must be 1 to 1"),
    ("exe-W9", ring, changed("cc0.dma0", more_sources), "reduce of 17 sources, must be 1 to 16"),
    (
        "exe-W9",
        ring,
        lambda e: edit.with_source(e, 6, (REDUCE, 0), 1, IDLE),
        "rank 0, queue cc0.dma0, pc 1 (p0 all-reduce.0): reduce of 1 sources, others of its row h",
    ),
    ("exe-W9", ring, plain("cc0.dma0", "divisor", REDUCE, 0), "reduce divides by 0"),
    ("exe-W9", ring, plain("cc0.dma0", "divisor", COPY, 2), "copy divides by 2"),
    ("exe-W10", ring, changed("cc0.dma0", posting(1)), "1 posts a row, must be 2 at least"),
    ("exe-W10", ring, cell("cc0.dma0", 0, 1, peer=3), "is told to rank 2, not 3"),
    ("exe-W10", ring, post("cc0.dma0", 0, 1, 0, (IDLE, IDLE)), "is told to rank -1, not 2"),
    ("exe-W10", ring, post("cc0.dma0", 0, 1, 1, (2, SENT)), "is told to rank 2, not 1"),
    ("exe-W10", ring, post("cc0.dma0", 0, 1, 1, (1, TAIL)), "counts its completion in semaphore 2"),
    ("exe-W10", duplicated, cell("cc0.dma0", ROW, RANK, second_peer=IDLE), "is told to rank"),
    ("exe-W10", duplicated, second_at_the_first, "writes twice at rank"),
    ("exe-W4", duplicated, cell("cc0.dma0", ROW, RANK, second_peer=8), "names rank 8, there are 8"),
    (
        "exe-W11",
        ring,
        plain("cc0", "placeholder", 4, 1),
        "placeholder 2 of its program is p0 all-reduce.0, not none",
    ),
    ("exe-W11", ring, plain("cc0", "opcode", DONE, 0), "its placeholder ends without DONE"),
    ("exe-W12", ring, wait("cc0", 0, 1, TRIGGER, 2), "must wait for its trigger, 1 >= 1"),
    ("exe-W12", ring, wait("cc0", 0, 1, IDLE, 0), "waits for semaphore -1 >= 0, must wait for"),
    ("exe-W12", ring, wait("cc0", 4, 1, TRIGGER, 1), "waits for semaphore 1, which engines incr"),
    (
        "exe-W12",
        ring,
        untriggered(0),
        "(p0 all-reduce.0): triggers cc0 0 times, not 1",
    ),
    ("exe-W12", looped, untriggered(1), "(test, w): triggers cc0 0 times, not 1"),
    ("exe-W12", ring, post("GpSimd", 0, 1, 0, (2, TRIGGER)), "(p0 all-reduce.0): posts at rank 2"),
    ("exe-W13", ring, post("cc0", SIGNAL, 1, 0, (1, 4)), "signal posts at rank 1"),
    ("exe-W13", ring, post("cc0", DONE, 1, 0, (2, 0)), "done posts at rank 2"),
    ("exe-W13", ring, post("cc0", DONE, 1, 0, (1, 5)), "posts semaphore 5, must be 0"),
    ("exe-W13", ring, post("cc0", 4, 1, 0, (1, 5)), "posts semaphore 5, must be -1"),
    ("exe-W13", ring, changed("cc0", posting(0)), "queue cc0: 0 posts a row, must be 1"),
    ("exe-W14", ring, lambda e: edit.with_pushes_swapped(e, 5, (2, 3)), "push 0 is of row 1"),
    ("exe-W14", ring, plain("cc0.dma0", "placeholder", 0, 1), "is pushed by p0, in cc0 at pc 2"),
    ("exe-W14", ring, post("cc0", PUSH, 1, 0, (IDLE, IDLE)), "posts semaphore -1, must be 2"),
    ("exe-W14", ring, post("cc0", PUSH, 1, 0, (1, 5)), "posts semaphore 5, must be 2"),
    (
        "exe-W15",
        ring,
        wait("cc0.dma0", 2, 1, TAIL, 2),
        "waits for semaphore 2 >= 2, must be 2 >= 3",
    ),
    ("exe-W15", ring, wait("cc0.dma0", 2, 1, 5, 3), "waits for semaphore 5 >= 3, must be 2 >= 3"),
    ("exe-W16", ring, hbm(stack_bytes=1024), "1152 bytes of memory, a rank of trn2.48xlarge has 1"),
    ("exe-W16", ring, facts(scratch_address=1032), "buffers begin at multiples of 64"),
    ("exe-W16", ring, facts(scratch_address=960), "overlaps the program, which ends at 0x400"),
    ("exe-W16", ring, facts(scratch_bytes=192), "ends behind the memory, 0x480"),
    (
        "exe-W17",
        ring,
        cell("cc0.dma0", 0, 1, target=END - 32),
        "writes 64 bytes at 0x460, memory en",
    ),
    (
        "exe-W17",
        ring,
        cell("cc0.dma0", 0, 1, target=-64),
        "writes 64 bytes at -0x40, memory ends at",
    ),
    ("exe-W17", ring, cell("cc0.dma0", 0, 1, size_bytes=-4), "moves -4 bytes"),
    ("exe-W17", ring, lambda e: edit.with_source(e, 6, (0, 1), 0, END), "reads 64 bytes at 0x480"),
    ("exe-W17", duplicated, cell("cc0.dma0", ROW, RANK, second_target=1 << 40), "also writes"),
    (
        "exe-W18",
        ring,
        cell("cc0.dma0", 0, 1, target=2),
        "writes at 0x2, no multiple of its element",
    ),
    ("exe-W18", ring, cell("cc0.dma0", 0, 1, size_bytes=62), "moves bytes, in all at 0x3e"),
    ("exe-W19", over_links, owner(1), "reads the memory of rank 1 on chip 1, it is on 0"),
    ("exe-W4", ring, owner(4), "names rank 4, there are 4"),
    ("exe-W19", ring, owner(IDLE), "in the memory of rank -1"),
    ("exe-W20", over_links, rerouted([]), "rank 0 to 1: the way of no link ends at c0, not at c1"),
    ("exe-W20", over_links, rerouted([2]), "the way c0.S>c4 ends at c4, not at c1"),
    ("exe-W20", over_links, rerouted([64]), "the way link 64 takes link 64, there are 64"),
    ("exe-W20", over_links, rerouted([2, 3]), "c0.S>c4, c0.E>c1 needs a link from c4 to c0"),
    ("exe-W20", over_links, links(is_down=lambda old: old | True), "takes c0.E>c1, which is down"),
    ("exe-W20", over_links, links(dst=lambda old: old[::-1].copy()), "rank 0 to 1: the way c0.E>c"),
    ("exe-W20", over_efa, topology(efa=None), "trn2.48xlarge has no EFA adapters"),
    ("exe-W20", ring, placed("chip", 3, 1), "rank 2 to 3: by intra_chip, must be neuronlink"),
    ("exe-W21", joint, plain("cc0.dma0", "round", 0, 5), "cut1000, queue cc0.dma0: not the rows o"),
    ("exe-W21", joint, plain("cc0.dma0", "opcode", COPY, 1), "of p0 all-reduce.0 in cut0"),
    ("exe-W22", ring, onto_itself(-4), "and writes them at"),
    ("exe-W23", counted, plain("cc0", "opcode", 1, CcOpcode.WAIT), "pc 1 (p0 r): reads a table"),
    ("exe-W23", counted, loads(lambda rows: {1: rows[1], 3: rows[3]}), "is a load that reads no"),
    ("exe-W23", counted, loads(beyond), "loads 4 words at"),
    ("exe-W23", counted, loads(further), "loads registers from 1 on, where 0 are filled"),
    ("exe-W24", counted, register("rows", 0, 1, IDLE), "names no register that says how many"),
    ("exe-W24", counted, register("target", 0, 2, 12), "names register 12, 12 are loaded"),
    ("exe-W21", joint, plain("cc0", "round", 20, 9), "cut1000, queue cc0: not the rows of p1 all"),
    ("exe-W21", joint, changed("cc0.dma0", another_source_column), "queue cc0.dma0: not the rows"),
]


@pytest.mark.parametrize("base", BASES)
def test_what_the_runtime_fills_is_well_formed(base: Callable[[], Executable]) -> None:
    assert prove_well_formed(base()).texts == ()


@pytest.mark.parametrize(("rule", "base", "breaking", "complaint"), BREACHES)
def test_a_broken_rule_is_reported_under_its_number_alone(
    rule: str, base: Callable[[], Executable], breaking: Break, complaint: str
) -> None:
    breaches = prove_well_formed(breaking(base())).texts
    assert {breach.split()[0] for breach in breaches} == {rule}, breaches
    assert any(complaint in breach for breach in breaches), breaches


def test_a_breach_says_which_row_it_is_about() -> None:
    broken = post("cc0", SIGNAL, 1, 0, (1, 4))(ring())
    (breach,) = prove_well_formed(broken).breaches
    number = [queue.name for queue in broken.queues].index("cc0")
    assert breach.rule == "exe-W13"
    assert breach.cells == (Cell(number, SIGNAL, 1),)
    assert breach.placeholders == {0}


def test_a_breach_of_a_stage_names_the_queue_by_its_place_among_all() -> None:
    number = numbers_of(joint(), "cc0")[1]
    broken = of_second("cc0", at_row("opcode", 4, 9))(joint())
    (breach,) = prove_well_formed(broken).breaches
    assert breach.rule == "exe-W2"
    assert breach.cells == (Cell(number, 4, 2),)


def test_a_transfer_may_write_just_where_it_reads() -> None:
    assert prove_well_formed(onto_itself(0)(ring())).holds


def test_another_way_over_links_that_are_there_is_well_formed() -> None:
    executable = over_links()
    names = [executable.topology.links.name(link) for link in range(64)]
    around = [names.index(name) for name in ("c0.S", "c4.E", "c5.N")]
    assert prove_well_formed(rerouted(around)(executable)).holds


def test_a_way_is_judged_by_the_links_of_its_own_instance() -> None:
    executable = loaded(8, "ring", nodes=2, placement="spread")
    assert prove_well_formed(executable).holds
    breaches = prove_well_formed(rerouted([2])(executable)).texts
    assert breaches[0].startswith("exe-W20 rank 0 to 1: the way c0.S>c4 ends at c4")
    assert breaches[1].startswith("exe-W20 rank 4 to 5: the way c16.S>c20 ends at c20")


def test_the_first_cell_is_named_and_all_are_counted() -> None:
    number = [queue.name for queue in ring().queues].index("cc0.dma0")
    queue = ring().queues[number]
    assert isinstance(queue, DmaQueue)
    beyond = np.array(queue.target)
    beyond[3:, 2] = END
    broken = edit.with_queue(ring(), number, attrs.evolve(queue, target=beyond))
    (breach,) = prove_well_formed(broken).texts
    assert breach.startswith("exe-W17 rank 2, queue cc0.dma0, pc 3 (p0 all-reduce.0): writes 64 by")
    assert breach.endswith("memory ends at 0x480; 11 cells are like this")


def test_no_more_is_reported_than_can_be_read() -> None:
    number = [queue.name for queue in looped().queues].index("cc0")
    queue = looped().queues[number]
    assert isinstance(queue, CcQueue)
    jumps = {**queue.jumps, **dict.fromkeys(range(20, 60), queue.jumps[0])}
    broken = edit.with_queue(looped(), number, attrs.evolve(queue, jumps=jumps))
    assert len(prove_well_formed(broken).texts) == MOST_BREACHES


def test_all_ranks_of_a_ring_are_looked_at_by_whole_arrays() -> None:
    """A ring of four times the ranks has four times the rows, sixteen times the cells."""
    small, large = loaded(16, "ring"), loaded(64, "ring")
    prove_well_formed(small)  # what is imported and remembered once does not count
    few = calls_of(lambda: prove_well_formed(small))
    assert prove_well_formed(large).holds
    assert calls_of(lambda: prove_well_formed(large)) < 4 * few


def test_every_rule_is_documented_once_and_broken_here() -> None:
    rules = [rule.id for stage in STAGES for rule in stage]
    assert sorted(set(rules)) == sorted(rules)
    source = ROOT / "ncc_runtime" / "verify"
    named = {one for path in source.rglob("*.py") for one in ids(path.read_text())}
    assert named == set(rules) == {rule for rule, *_ in BREACHES}
    rows = cells((ROOT / "docs" / "proofs.md").read_text())
    assert sorted(one for row in rows for one in ids(row[0])) == sorted(rules)


def ids(text: str) -> list[str]:
    return re.findall(r"\bexe-W\d+\b", text)
