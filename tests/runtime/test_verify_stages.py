"""Proofs of several programs in one run: what holds of all, and faults in one of them."""

import functools
from collections.abc import Callable

import attrs
import pytest

import ncc_compiler
import ncc_runtime
from ncc_runtime.lowering.executable import IDLE, EngineQueue, Executable, Queue
from ncc_runtime.runtime import program_of
from ncc_runtime.verify.engine_races import prove_local
from ncc_runtime.verify.prove import prove
from ncc_runtime.verify.wellformed.wellformed import prove_well_formed
from tests import mutant_edits as edit
from tests.documents import ROOT
from tests.form_breaks import Break, cell, changed, placed, post, wait
from tests.local_edits import faults, with_waits
from tests.runtime.test_stages import ROUNDS, ROUNDS_BODY
from tests.stage_breaks import (
    at_row,
    joint,
    numbers_of,
    of_second,
    partial,
    run_by,
    unpushed,
    without_rank,
)
from tests.stage_programs import cut, stage

MODELS = [
    *(
        (name, part)
        for name in ("collective_zoo", "fsdp_scan_layers")
        for part in ("halves", "turns")
    ),
    *((name, "turns") for name in ("mlp_train_dp2_tp4", "moe_all_to_all", "ring_attention")),
    ("llama_4l_64ranks", "halves"),
]


def twice(executable: Executable) -> Executable:
    return attrs.evolve(executable, queues=(*executable.queues, executable.queues[0]))


def other_costs(queue: Queue) -> Queue:
    assert isinstance(queue, EngineQueue)
    return attrs.evolve(queue, table=attrs.evolve(queue.table, flops=queue.table.flops + 1))


# rule, how it is broken, the complaint
BREACHES: list[tuple[str, Break, str]] = [
    ("exe-W1", twice, "2 queues of engine Tensor on ranks 0-1"),
    ("exe-W1", changed("cc0", run_by(0, 1, 2)), "cc0 on ranks 0-2: no program is run by just thes"),
    ("exe-W1", changed("cc0", run_by()), "queue cc0: no program is run by just these ranks"),
    ("exe-W1", cell("cc0.dma0", 0, 3, size_bytes=64), "on ranks 0-1, pc 0: holds 64 for rank 3"),
    ("exe-W1", wait("cc0", 4, 2, 5, 1), "queue cc0 on ranks 0-1, pc 4: holds 5 for rank 2"),
    ("exe-W1", post("GpSimd", 0, 3, 0, (3, 1)), "queue GpSimd on ranks 0-1, pc 0: holds 3 for"),
    ("exe-W1", of_second("GpSimd", other_costs), "instructions are not those of the program"),
    ("exe-W1", of_second("Vector", run_by(0, 1)), "no queue of engine Vector on rank 2"),
    ("exe-W1", without_rank, "rank 1 runs 0 programs, must be 1"),
    ("exe-W1", partial, "p0: only some of the ranks of cut0 take part"),
    (
        "exe-W2",
        of_second("cc0", at_row("opcode", 4, 9)),
        "cut1000: rank 2, queue cc0, pc 4 (p0 all",
    ),
    ("exe-W5", placed("core", 3, 0), "W5 ranks 0 and 3 are both on chip 0, core 0"),
    (
        "exe-W11",
        of_second("cc0", at_row("placeholder", 0, 1)),
        "cut1000: queue cc0: placeholder 0 of its program is p1",
    ),
    ("exe-W14", of_second("cc0", unpushed), "cut1000: rank 2, queue cc0.dma0, pc 0 (p0 all"),
]


@pytest.mark.parametrize(("rule", "breaking", "complaint"), BREACHES)
def test_a_broken_rule_is_reported_under_its_number_alone(
    rule: str, breaking: Break, complaint: str
) -> None:
    assert prove_well_formed(joint()).texts == ()
    breaches = prove_well_formed(breaking(joint())).texts
    assert {breach.split()[0] for breach in breaches} == {rule}, breaches
    assert any(complaint in breach for breach in breaches), breaches


@pytest.mark.parametrize(("name", "part"), MODELS)
def test_a_model_cut_in_two_is_proved(name: str, part: str) -> None:
    program = program_of(ncc_compiler.compile_file(ROOT / f"tests/data/hlo/{name}.hlo"))
    ranks = program.ranks
    parts = {
        "halves": [range(ranks // 2), range(ranks // 2, ranks)],
        "turns": [range(0, ranks, 2), range(1, ranks, 2)],
    }
    model = ncc_runtime.load(cut(program, parts[part]))
    assert [proof.name for proof in model.proofs if not proof.holds] == []


@functools.cache
def example() -> Executable:
    """The two stages of a network."""
    ranks = range(4), range(4, 8)
    files = (ROOT / f"ir_examples/pipeline_stage{number}.ir" for number in range(2))
    parts = [(ncc_compiler.compile_file(file), own) for file, own in zip(files, ranks, strict=True)]
    return ncc_runtime.load(parts).executable


def second_waits(name: str, at: tuple[int, int], sem: int, value: int) -> Break:
    """A rank of the second program waits for something else at a row of a queue."""
    return lambda executable: edit.with_wait(
        executable, numbers_of(executable, name)[1], at, sem, value
    )


def elsewhere(executable: Executable) -> Executable:
    """A rank of the second program writes one element further on."""
    number = numbers_of(executable, "cc0.dma0")[1]
    target = int(executable.queues[number].target[3, 2]) + 4
    return edit.with_cells(executable, number, (3, 2), {"target": target})


def heedless(executable: Executable) -> Executable:
    """Vector of the second program does not wait for the sum that it takes."""
    number = numbers_of(executable, "Vector")[1]
    return with_waits(executable, number, {0: (IDLE, 0)})


STREAM, READY = 0, 4
FAULTS: list[tuple[str, Callable[[], Executable], Break, str]] = [
    ("counters", joint, second_waits("cc0", (3, 2), READY, 99), "rank 2, queue cc0, pc 3 (p0"),
    ("deadlock", joint, second_waits("GpSimd", (0, 3), STREAM, 1), "rank 3, queue GpSimd, pc 0"),
    ("deadlock", joint, lambda one: edit.with_ring_size(one, 0), "queue cc0"),
    ("semantics", joint, elsewhere, "rank 2"),
    ("races", joint, second_waits("cc0", (3, 2), IDLE, 0), "rank 2, queue cc0.dma0, pc 1"),
    ("races of engines", example, heedless, "pipeline_stage1: rank 4, queue "),
]


@pytest.mark.parametrize(("name", "base", "breaking", "complaint"), FAULTS)
def test_a_fault_in_one_program_is_found(
    name: str, base: Callable[[], Executable], breaking: Break, complaint: str
) -> None:
    proofs = {proof.name: proof for proof in prove(breaking(base()))}
    assert proofs[name].verdict == "refuted", proofs
    assert complaint in proofs[name].texts[0]


def test_ranks_that_are_alike_are_told_program_by_program() -> None:
    (proof,) = (one for one in prove(example()) if one.name == "races of engines")
    assert proof.size.endswith(" rows of 2 programs")
    assert proof.classes == ("pipeline_stage0: ranks 0..3", "pipeline_stage1: ranks 4..7")


def test_a_loop_has_the_number_that_listings_give_it() -> None:
    rounds = stage(ROUNDS_BODY, before=ROUNDS)
    executable = ncc_runtime.load(cut(rounds, [range(4), range(4, 8)])).executable
    number = numbers_of(executable, "Vector")[1]
    breaches = prove_local(with_waits(executable, number, {4: (IDLE, 0)})).texts
    assert breaches[0].startswith(
        "cut1000: rank 4, queue Sync, pc 8 (copy, last): in no order with"
    )
    assert "path: from the body of last (k1) back to the start of last (k1)" in breaches[0]


def test_waits_of_each_program_are_missed_as_they_are_in_one_alone() -> None:
    rounds = stage(ROUNDS_BODY, before=ROUNDS)
    alone = ncc_runtime.load(rounds).executable
    both = ncc_runtime.load(cut(rounds, [range(4), range(4, 8)])).executable
    verdicts = [
        [(name, prove_local(fault).holds) for name, fault in faults(one)] for one in (alone, both)
    ]
    engines = [one for one in verdicts[0] if " cc" not in one[0]]
    assert {holds for _, holds in engines} == {True, False}
    assert [one for one in verdicts[1] if " cc" not in one[0]] == engines * 2
