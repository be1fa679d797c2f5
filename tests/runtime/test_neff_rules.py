"""Every rule of a program can be broken, and its breach is reported under its number alone."""

import re
from collections.abc import Callable
from pathlib import Path

import attrs
import numpy as np
import pytest

from ncc_runtime.neff.check import STAGES, check
from ncc_runtime.neff.isa import Engine
from ncc_runtime.neff.listing import parse_program
from ncc_runtime.neff.program import MAX_SEMAPHORES, Program, Semaphore
from ncc_runtime.neff.table import Instr, InstrTable
from tests.runtime import test_neff_control, test_neff_fusions
from tests.wrong_listings import assert_breach, changed

ROOT = Path(__file__).parents[2]
LISTING = ROOT / "tests" / "data" / "neff" / "step.listing"
GATHER = "t5 = t4  groups {{0,1,2,3}}"
FIRST, SECOND = "ptc2  p0  wait tensor>=1", "ptc2  p1  wait stream0>=1"

RESULTS = "results\n  0 x {}\n  1 y\nconstants\n"
ALIASES = "aliases\n  out0 arg0\n  out1 arg0\nconstants\n"
CUT = "shardings\n  s0 [4] parts [0,1,2,3]\n"
SHARDED = "shardings\n  s0 {} parts {}\nparameters\n  0 x s0\n  1 y\noutputs\n"

# rule, what the listing says, what it says instead, the complaint
BREACHES = [
    ("neff-N1", "replicas 1", "replicas 1000000000", "4000000000 ranks, at most 2147483647"),
    ("neff-N2", "  t0, t1", "  t0, t11", "inputs: tensor 11, there are 11"),
    ("neff-N2", "b9+0   select", "b10+0   select", "tensor t9: buffer 10, there are 10"),
    ("neff-N2", "t5 = t4  groups", "t5 = t40  groups", "placeholder p1: tensor 40"),
    ("neff-N4", "0  dot  t3", "0  dat  t3", "opcode 'dat' is not in the instruction set"),
    ("neff-N5", "t9 = t6, t10", "t9 = t6, t100", "queue Vector, pc 2: tensor 100, there are 11"),
    ("neff-N5", "t2 #1 ", "t2 #9 ", "queue Vector, pc 3: attribute 9, there are 3"),
    ("neff-N6", "flops 64", "flops -64", "queue Tensor, pc 0: flops is -64, must be >= 0"),
    (
        "neff-N6",
        "read 96 written 32",
        f"read {2**63 - 1} written 32",
        f"queue Tensor, pc 0: moves {2**63 + 31} bytes, at most {2**63 - 1}",
    ),
    ("neff-N6", "stream1>=1", "stream1>=0", "queue Vector, pc 1: waits for 0, must be >= 1"),
    ("neff-N7", "v0, v1", "v0, v2", "region r0, v2: reads v2"),
    ("neff-N7", "gives v2", "gives v3", "region r0: gives v3, there are 3"),
    ("neff-N8", "outputs\n", "parameters\n  0 x\noutputs\n", "1 parameters for 2 inputs"),
    ("neff-N8", "outputs\n", 'parameters\n  0 ""\n  1 ""\noutputs\n', "nothing is known of any"),
    ("neff-N8", "outputs\n", "parameters\n  0 x s0\n  1 y\noutputs\n", "sharding 0, there are 0"),
    ("neff-N8", "outputs\n", SHARDED.format("[1]", "[0,0,0,0]"), "s0: tiles [1] cut nothing"),
    ("neff-N8", "outputs\n", SHARDED.format("[0]", "[0,0,0,0]"), "s0: tiles [0] cut nothing"),
    ("neff-N8", "outputs\n", SHARDED.format("[2]", "[0,1]"), "s0: 2 parts for 4 ranks"),
    ("neff-N8", "outputs\n", SHARDED.format("[2]", "[0,1,2,0]"), "s0: tile 2, there are 2"),
    ("neff-N8", "outputs\n", SHARDED.format("[2]", "[0,1,1,0]"), "tiles [2] of an array of shape"),
    ("neff-N8", "constants\n", "results\n  0 x\nconstants\n", "1 results for 2 outputs"),
    ("neff-N8", "constants\n", RESULTS.format("s0"), "result 0: sharding 0, there are 0"),
    ("neff-N8", "constants\n", RESULTS.format("of [3]"), "result 0: shape [3], a rank has ["),
    ("neff-N8", "constants\n", CUT + RESULTS.format("s0 of [99]"), "shape [99] is not what"),
    ("neff-N9", "constants\n", "aliases\n  out2 arg0\nconstants\n", "output 2, there are 2"),
    ("neff-N9", "constants\n", "aliases\n  out0 arg9\nconstants\n", "input 9, there are 2"),
    ("neff-N9", "constants\n", ALIASES, "alias: input 0 is paired twice"),
    ("neff-N9", "constants\n", ALIASES, "alias: output 0 is f32[2], input 0 is f32[2,4]"),
    ("neff-M1", "0x00000280", "0x00000290", "buffer b9: address 0x290 is no multiple of 64"),
    ("neff-M1", "memory 2048", "memory 512", "buffer b8: ends at 584, memory has 512 bytes"),
    ("neff-M2", "0x00000240", "0x00000280", "output b9 (picked) overlaps output b8 (result) at"),
    ("neff-M2", "0x00000200", "0x00000040", "tmp-buf b7 (shifted) overlaps input b1 (w) at"),
    ("neff-M3", "b5+32", "b5+112", "tensor t10: ends at byte 144 of b5, which has 128"),
    ("neff-M3", "b5+32", "b5+33", "tensor t10: offset 33 is no multiple of its element, 4 bytes"),
    ("neff-M4", "  b2+0  00000000", "  b2+0  00", "buffer b2: 1 bytes of value, 4 of room"),
    ("neff-M4", "  b2+0  00000000", "", "buffer b2: file without a value"),
    ("neff-M4", "  b2+0  00000000", "  b2+0  00000000\n  b3+0", "buffer b3: tmp-buf with a value"),
    ("neff-M5", "  t0, t1", "  t0", "buffer b1: no input fills it"),
    ("neff-M5", "  t0, t1", "  t0, t1, t1", "input 2: shares b1 with input 1"),
    ("neff-M5", "  t0, t1", "  t0, t1, t3", "input 2: t3 lies in tmp-buf b3"),
    ("neff-M5", "32   x", "36   x", "input 0: 32 bytes, b0 36"),
    ("neff-M6", "  t8, t9", "  t8, t7", "output 1: t7 lies in b7, which may be reused"),
    ("neff-M7", "t9 = t6", "t0 = t6", "queue Vector, pc 2: writes t0, which lies in input x"),
    ("neff-M7", "t7 = t0  pairs", "t0 = t7  pairs", "placeholder p2: writes t0, which lies in"),
    ("neff-M8", "t9 = t6, t10", "t7 = t6, t10", "output 1: reads t9 of b9, which nothing has wri"),
    ("neff-M9", "t3 = t0, t1 #0", "t3 = t3, t1 #0", "queue Tensor, pc 0: result t3 overlaps t3"),
    ("neff-T1", "t6 = t10, t0 ", "t6 = t10 ", "queue Vector, pc 1: compare: 1 operands, must be 2"),
    ("neff-T1", "t6 = t10, t0 ", "t6, t9 = t10, t0 ", "compare: 2 results, must be 1"),
    ("neff-T1", "ptc2  p2", "ptc2 t7 = t0 p2", "ptc2: lists tensors, its placeholder does that"),
    ("neff-T2", '  direction="GT"', "", "pc 1: compare: attribute direction is missing"),
    ("neff-T2", '"GT"', '"GT" order=1', "attribute order is unknown here, known: direction, type"),
    ("neff-T2", '"GT"', "[1]", "attribute direction is tuple, must be str"),
    ("neff-T3", '"GT"', '"XX"', "compare: direction is 'XX', known are EQ, NE, LT, LE, GT, GE"),
    ("neff-T3", "region=0", "region=1", "queue Vector, pc 3: reduce: region 1, there are 1"),
    ("neff-R1", "v2  add    f32", "v2  and    f32", "region r0, v2: and: not defined on f32"),
    ("neff-R1", "v2  add ", "v2  dot ", "region r0, v2: dot: is no scalar operation"),
    ("neff-R1", "v0, v1", 'v0, v1 "1"', "region r0, v2: add: has the value '1'"),
    ("neff-R1", "add    f32       v0, v1", 'constant f32 "one"', "'one' is no f32 value"),
    ("neff-S2", "attributes", "semaphores\n extra Nobody\nattributes", "owner 'Nobody', known: "),
    ("neff-S3", "ptc2  p2", "ptc2 p2 post tensor", "GpSimd, pc 0: posts tensor, which belongs to"),
    ("neff-S4", "wait vector>=1", "wait vector>=2", "Sync, pc 0: waits for vector >= 2, which"),
    ("neff-S4", "stream0>=2", "vector>=1", "waits for its own vector >= 1, after 0 posts"),
    ("neff-S5", "wait  wait vector>=1", "wait", "queue Sync, pc 0: wait without a semaphore"),
    ("neff-S5", "t3 = t0, t1 #0", "t3 = t0, t1 #0 p2", "Tensor, pc 0: dot with a placeholder"),
    ("neff-P1", "t7 = t0  pairs", "t7 =  pairs", "placeholder p2 (collective-permute): 0 operands"),
    ("neff-P1", "p2  collective-permute       f32", "p2 collective-permute s32", "t0 is f32, must"),
    ("neff-P2", "all-reduce          add ", "all-reduce ", "p0 (all-reduce): no reduction"),
    ("neff-P2", "all-gather          ", "all-gather add ", "p1 (all-gather): add reduction"),
    ("neff-P2", "all-reduce          add ", "all-reduce and ", "and is not defined on f32"),
    ("neff-P3", "{0,1},{2,3}} stream", "{0,1},{2,2}} stream", "rank 2 is in the groups 2 times"),
    ("neff-P3", "{0,1},{2,3}} stream", "{0,1},{2,4}} stream", "rank 4 is in a group, there are 4"),
    ("neff-P3", "{0,1},{2,3}} stream", "{0,1},{3}} stream", "3 of 4 ranks are in groups, rank 2"),
    ("neff-P3", GATHER, "t5 = t4 groups {{0,1,2},{3}}", "groups have 1 to 3 ranks"),
    ("neff-P3", "pairs {{0", "groups {{0,1,2,3}} pairs {{0", "has groups, must have pairs alone"),
    ("neff-P4", "{2,3}} stream 1", "{2,2}} stream 1", "rank 2 is target 2 times"),
    ("neff-P4", "{2,3}} stream 1", "{4,3}} stream 1", "source 4, there are 4 ranks"),
    ("neff-P4", GATHER, f"{GATHER} pairs {{{{0,1}}}}", "has pairs, must have groups alone"),
    ("neff-P5", GATHER, "t5 = t4 groups {{0,1},{2,3}}", "result has 32 elements, must have 16"),
    ("neff-P6", "0 channel 1", "0 in-place channel 1", "in place, but results do not lie where"),
    ("neff-P6", "0 channel 2", "0 in-place channel 2", "in place, only all-reduce can be"),
    ("neff-P6", "t5 = t4", "t5 = t10", "operand t10 overlaps result t5"),
    ("neff-P7", "ptc2  p2 ", "ptc2  p1 ", "placeholder p2: triggered 0 times, must be once"),
    ("neff-P9", "{2,3}} stream 0", "{2,3}} root 0 stream 0", "p0 (all-reduce): has a root, must"),
    ("neff-P10", "{2,3}} stream 0", "{2,3}} counts t0 stream 0", "(all-reduce): 1 tensors of cou"),
    ("neff-P8", "stream 1 coll", "stream 4 coll", "placeholder p2: stream 4, there are 4"),
]  # fmt: skip


def broken_rules(program: Program) -> set[str]:
    return {complaint.split()[0] for complaint in check(program)}


@pytest.fixture
def program() -> Program:
    return parse_program(LISTING.read_text())


def test_the_program_that_is_broken_below_is_whole(program: Program) -> None:
    assert check(program) == ()


@pytest.mark.parametrize(("identifier", "old", "new", "complaint"), BREACHES)
def test_a_breach_is_reported_under_its_rule(
    identifier: str, old: str, new: str, complaint: str
) -> None:
    assert_breach(changed(LISTING.read_text(), old, new), identifier, complaint)


def with_queue(program: Program, **columns: object) -> Program:
    table = attrs.evolve(program.queues[Engine.VECTOR], **columns)
    return attrs.evolve(program, queues={**program.queues, Engine.VECTOR: table})


def array(dtype: str, *values: int) -> np.ndarray:
    return np.array(values, dtype)


@pytest.mark.parametrize(
    ("columns", "complaint"),
    [
        ({"flops": array("i4", 0, 0, 0, 8)}, "column flops is int32[4], not int64[4]"),
        ({"origin": array("i4", 0)}, "column origin is int32[1], not int32[4]"),
        ({"start": array("i4", 0, 1, 2, 3, 4)}, "column start does not ascend from 0 to 10"),
        ({"start": array("i4", 0, 9, 3, 3, 10)}, "column start does not ascend from 0 to 10"),
        ({"result_count": array("u2", 9, 1, 1, 1)}, "pc 0: 9 results of 0 tensors"),
        ({"opcode": array("u2", 9, 0, 0, 0)}, "opcode 9, there are 4 names"),
    ],
)
def test_columns_that_are_no_table_are_reported(
    columns: dict[str, np.ndarray], complaint: str, program: Program
) -> None:
    assert check(with_queue(program, **columns)) == (f"neff-N3 queue Vector: {complaint}",)


def test_a_missing_queue_is_reported(program: Program) -> None:
    queues = {
        engine: table for engine, table in program.queues.items() if engine is not Engine.SYNC
    }
    assert check(attrs.evolve(program, queues=queues)) == ("neff-N3 queue Sync is missing",)


def test_an_opcode_name_without_use_is_reported(program: Program) -> None:
    names = ("compare", "reduce", "select", "wait", "xor")
    assert broken_rules(with_queue(program, opcode_names=names)) == {"neff-N4"}


def test_a_waited_value_without_a_semaphore_is_reported(program: Program) -> None:
    values = array("i4", 2, 1, 7, 0)
    (complaint,) = check(with_queue(program, wait_value=values))
    assert complaint == "neff-N6 queue Vector, pc 2: wait_value 7, no semaphore"


@pytest.mark.parametrize(
    ("semaphores", "complaint"),
    [
        ([Semaphore("vector", "Sync")], "neff-S1 2 semaphores are called 'vector'"),
        ([Semaphore("more", "stream 0")], "neff-S2 stream 0 owns 2 semaphores, at most 1"),
        (
            [Semaphore(f"s{number}", "Sync") for number in range(MAX_SEMAPHORES - 3)],
            "neff-S1 257 semaphores, a core has 256",
        ),
    ],
)
def test_semaphores_must_be_few_and_distinct(
    semaphores: list[Semaphore], complaint: str, program: Program
) -> None:
    more = attrs.evolve(program, semaphores=(*program.semaphores, *semaphores))
    assert check(more) == (complaint,)


def test_two_collectives_of_a_stream_in_the_wrong_order_are_reported() -> None:
    text = LISTING.read_text().replace(FIRST, "ptc2  p1  wait tensor>=1", 1)
    program = parse_program(text.replace(SECOND, "ptc2  p0  wait stream0>=1", 1))
    assert broken_rules(program) == {"neff-P8"}


def _on_two_queues(second: str) -> Program:
    """p0 is triggered by GpSimd, p1 by Tensor with the wait `second`."""
    kept = [line for line in LISTING.read_text().split("\n") if "ptc2  p1" not in line]
    return parse_program("\n".join(kept).rstrip() + f"\nqueue Tensor\n  1 ptc2 p1 {second}\n")


def test_triggers_of_one_stream_on_two_queues_must_be_ordered() -> None:
    assert broken_rules(_on_two_queues("wait tensor>=1")) == {"neff-P8"}


def test_triggers_of_one_stream_on_two_queues_may_be_ordered_by_a_semaphore() -> None:
    assert check(_on_two_queues("wait stream0>=1")) == ()


def test_a_trigger_that_no_run_comes_to_is_for_the_proof_of_deadlock() -> None:
    """Both queues wait for what the other would have triggered."""
    text = LISTING.read_text().replace(FIRST, "ptc2  p0  wait stream1>=1", 1)
    lines = [line for line in text.split("\n") if "ptc2  p1" not in line]
    text = "\n".join(lines).rstrip() + "\nqueue Tensor\n  1 ptc2 p1 wait stream0>=1\n"
    assert "neff-P8" not in broken_rules(parse_program(text))


def _evolved(change: Callable[[Instr], Instr], program: Program) -> Program:
    table = InstrTable.from_rows(map(change, program.queues[Engine.GPSIMD]))
    return attrs.evolve(program, queues={**program.queues, Engine.GPSIMD: table})


def test_a_trigger_that_names_nothing_is_reported(program: Program) -> None:
    unnamed = _evolved(lambda row: attrs.evolve(row, placeholder=-1), program)
    assert {"neff-S5", "neff-P7"} <= broken_rules(unnamed)


def test_every_breach_of_a_stage_is_reported() -> None:
    text = LISTING.read_text().replace("0x00000280", "0x00000290").replace('"GT"', '"XX"')
    assert broken_rules(parse_program(text)) == {"neff-M1", "neff-T3"}


def test_rules_are_numbered_once_documented_and_broken_here() -> None:
    known = [rule.id for rules in STAGES for rule in rules]
    documented = re.findall(
        r"^\| (neff-\w+) \|", (ROOT / "docs" / "neff.md").read_text(), re.MULTILINE
    )
    elsewhere = (*test_neff_control.BREACHES, *test_neff_fusions.BREACHES)
    broken = {identifier for identifier, *_ in (*BREACHES, *elsewhere)}
    broken |= {"neff-N3", "neff-S1", "neff-C3"}
    assert len(set(known)) == len(known)
    assert sorted(documented) == sorted(known)
    assert broken == set(known)
