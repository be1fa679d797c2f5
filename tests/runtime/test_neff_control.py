"""Control flow in the contract: its rules can be broken, its counts are those a run comes to."""

import re
from pathlib import Path

import attrs
import numpy as np
import pytest

import ncc_runtime
from ncc_runtime.errors import NeffError
from ncc_runtime.neff.check import check
from ncc_runtime.neff.isa import ENGINES, TEST
from ncc_runtime.neff.listing import parse_program, print_program
from ncc_runtime.neff.program import TensorId
from ncc_runtime.neff.structure import acknowledgements, structure_of

LISTING = Path(__file__).parents[1] / "data" / "neff" / "loop.listing"
TEXT = LISTING.read_text()

# rule, what the listing says, what it says instead, the complaint
BREACHES = [
    ("neff-N2", "predicate t7", "predicate t70", "block k0: tensor 70, there are 11"),
    ("neff-T1", "0  loop    k0", "0  loop t0 k0", "loop: 1 results, must be 0"),
    ("neff-T2", "#1  block=0", "#1  block=true", "loop: attribute block is bool, must be int"),
    ("neff-T2", "#1  block=0", "#1", "loop: attribute block is missing"),
    ("neff-C1", "#3  block=2", "#3  block=7", "Vector, pc 12: case of block 7, there are 3"),
    ("neff-C1", "#3  block=2", "#3  block=1", "case k2 has 0 rows 'case', must have 1"),
    ("neff-C1", "1  test    k0", "1  test    k1", "case k1 has 1 rows 'test', must have 0"),
    ("neff-C1", "4  case    k1", "4  loop    k1", "case k1 has 1 rows 'loop', must have 0"),
    ("neff-C1", "k2  case", "k2  loop", "loop k2 has 0 rows 'test', must have 1"),
    ("neff-C2", "1  test    k0", "1  wait", "Tensor, pc 3: end k0 behind loop k0"),
    ("neff-C2", "3  end     k0", "3  end     k1", "Tensor, pc 3: end k1 behind test k0"),
    ("neff-C2", "3  end     k0", "3  wait post tensor", "Tensor, pc 1: test k0 without its end"),
    ("neff-C2", "0  loop    k0", "0  wait post tensor", "pc 1: test k0 behind no open block"),
    ("neff-C4", "7   pred[]  b7+0", "7   u8[]    b7+0", "k0: predicate t7 is u8[], must be pred[]"),
    ("neff-C4", "8   s32[]   b8+0", "8   f32[]   b8+0", "t8 is f32[], must be pred[] or s32[]"),
    ("neff-C4", "7   pred[]  b7+0", "7   pred[1] b7+0", "predicate t7 is pred[1], must be pred[]"),
    ("neff-C4", "0x00000240", "0x000001c0", "tmp-buf b9 (picked) overlaps predicate b7 (go)"),
    ("neff-C4", "9   f32[4]  b9+0", "9   u8[1] b8+1", "tensor t9: shares b8 with predicate t8"),
    ("neff-C5", "branch 1 of 2", "branch 2 of 2", "block k2: case is branch 2 of 2, at most"),
    ("neff-C5", "branch 1 of 2", f"branch 1 of {2**31}", f"case is branch 1 of {2**31}, at most"),
    ("neff-C5", "trips 3", "trips -3", "block k0: loop with trip count -3"),
    ("neff-C5", "trips 3", f"trips {2**63}", f"block k0: loop with trip count {2**63}"),
    ("neff-C5", "branch 1 of 2", "branch 1 of 2 trips 1", "block k2: case with trip count 1"),
    ("neff-C5", "trips 3", "branch 0 of 2 trips 3", "block k0: loop is branch 0 of 2, at most 1"),
    ("neff-C5", "predicate t8  branch 1 of 2", "predicate t7 branch 1 of 3", "of 3 by a pred"),
    ("neff-C6", "k0  wait sync>=1", "k0", "Tensor, pc 1: test k0 without waiting for Sync"),
    ("neff-C6", "k1  wait sync>=3", "k1  wait sync>=2", "case k1 without waiting for Sync's 3"),
    ("neff-C6", "wait vector>=1   post sync", "wait vector>=1", "k0: Sync posts nothing before"),
    ("neff-C6", "gpsimd   GpSimd", "gpsimd   Sync", "Sync owns 2 semaphores, with"),
    ("neff-S4", "wait stream0>=2", "wait stream0>=3", "waits for stream0 >= 3, which is by"),
    ("neff-S4", "wait stream0>=4", "wait stream0>=5", "waits for stream0 >= 5, which ends at 4"),
    ("neff-S4", "wait tensor>=1", "wait tensor>=2", "waits for tensor >= 2, which is by"),
    ("neff-S5", "wait                    post tensor", "wait", "pc 2: wait without a semaphore"),
]  # fmt: skip


def spelled_out(text: str) -> str:
    """Control rows name rows of attributes, so that these may say anything."""
    return re.sub(
        r"^( +\d+ +(?:loop|test|case|end) +)k(\d)",
        lambda match: f"{match[1]}#{int(match[2]) + 1}",
        text,
        flags=re.MULTILINE,
    )


def complaints(text: str) -> tuple[str, ...]:
    return check(parse_program(text))


def replaced(*pairs: tuple[str, str]) -> str:
    text = TEXT
    for old, new in pairs:
        assert old in text
        text = text.replace(old, new, 1)
    return text


@pytest.mark.parametrize(("identifier", "old", "new", "complaint"), BREACHES)
def test_a_breach_is_reported_under_its_rule(
    identifier: str, old: str, new: str, complaint: str
) -> None:
    text = replaced((old, new))
    found = complaints(spelled_out(text) if old.startswith("#") else text)
    assert any(one.startswith(f"{identifier} ") and complaint in one for one in found), found


def test_queues_that_hold_other_control_rows_are_reported() -> None:
    """In each queue alone all is well."""
    swapped = replaced(
        ("4  case    k1  wait sync>=3", "4  case k2 wait sync>=3"),
        ("5  end     k1", "5  end k2"),
        ("6  case    k2", "6  case k1"),
        ("7  end     k2", "7  end k1"),
    )
    assert complaints(swapped) == tuple(
        f"neff-C3 queue {engine.value}: control row 3 is case k1, that of queue Tensor is case k2"
        for engine in ENGINES[1:]
    )


def test_a_stream_is_triggered_by_one_queue_where_there_is_control_flow() -> None:
    rows = [line for line in TEXT.split("\n") if " ptc2  p1 " not in line]
    text = "\n".join(rows).replace("k2  ; conditional", "k2  ;", 1)
    text = text.replace("     13  end        k2", "     13  ptc2 p1\n     14  end k2", 1)
    assert " 14  copy " in text
    text = text.replace(" 14  copy ", " 15  copy ", 1)
    head, gpsimd = text.split("queue GpSimd")
    gpsimd = gpsimd.replace("      8  end", "      7  end", 1)
    program = parse_program(f"{head}queue GpSimd{gpsimd}")
    (complaint,) = check(program)
    assert complaint.startswith("neff-P8 placeholder p1: triggered at queue Vector, pc 13")


def test_the_program_that_is_broken_above_is_whole_and_canonical() -> None:
    program = parse_program(TEXT)
    assert check(program) == ()
    assert print_program(program) == TEXT


def test_what_a_queue_learns_in_a_branch_it_does_not_know_behind_it() -> None:
    """Sync posts in the first branch; who skips it needs no wait, who runs it does."""
    posting = replaced(("     11  end     k1   ", "     11  wait post sync\n     12  end k1 "))
    posting = posting.replace("     12  case    k2  ", "     13  case k2 ", 1)
    posting = posting.replace("     13  end     k2  ", "     14  end k2 ", 1)
    found = complaints(posting)
    assert len(found) == len(ENGINES) - 1
    assert all("case k2 without waiting for Sync's 4 posts" in one for one in found)
    waiting = posting.replace("end     k1   ", "end k1 wait sync>=4")
    waiting = waiting.replace("end        k1   ", "end k1 wait sync>=4")
    assert complaints(waiting) == ()


def test_a_wait_before_a_loop_says_nothing_of_its_second_iteration() -> None:
    """Sync posts before the loop and in its body, but not before the test."""
    moved = replaced(
        ("t6 = t1       ", "t6 = t1 post vector ;"),
        ("t7 = t6, t3 #0                   post vector", "t7 = t6, t3 #0"),
        ("1    wait      wait vector>=1   post sync", "1  loop k0"),
    )
    head, sync = moved.split("queue Sync")
    sync = sync.replace("0  loop    k0", "0  wait wait vector>=1 post sync", 1)
    moved = f"{head}queue Sync{sync}"
    assert complaints(moved) == ()  # Tensor waits again at `test`
    once = moved.replace("0  loop    k0       ", "0  loop k0 wait sync>=1 ;", 1)
    once = once.replace("1  test    k0  wait sync>=1", "1  test k0", 1)
    (complaint,) = complaints(once)
    assert "neff-C6 queue Tensor, pc 1: test k0 without" in complaint
    at_end = once.replace("3  end     k0   ", "3  end k0 wait sync>=2 ", 1)
    assert complaints(at_end) == ()  # what the body learns holds in the next iteration


def test_a_predicate_that_nothing_writes_needs_no_word_of_sync() -> None:
    program = parse_program(TEXT)
    constant = attrs.evolve(program.blocks[1], predicate=TensorId(1))
    blocks = (program.blocks[0], constant, attrs.evolve(constant, index=1))
    assert check(attrs.evolve(program, blocks=blocks)) == ()


def test_streams_acknowledge_the_blocks_that_hold_their_placeholders() -> None:
    program = parse_program(TEXT)
    structure = structure_of(program)
    assert structure is not None
    found = [
        (structure.rows[place], stream) for place, stream in acknowledgements(program, structure)
    ]
    assert found == [((TEST, 0), 0), (("case", 2), 0)]


def test_a_block_that_no_row_of_attributes_names_is_refused_with_its_line() -> None:
    with pytest.raises(NeffError, match=r"^line \d+: no row of attributes is block=2$"):
        parse_program(replaced(("#3  block=2", '#3  type="x"')))


@pytest.mark.parametrize("seed", range(3))
def test_what_the_rules_accept_runs_as_it_reads(seed: int) -> None:
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    run = ncc_runtime.load(parse_program(TEXT)).run([x], shuffle_seed=seed, checked=True)
    total = x
    for _ in range(3):
        total = total + total.sum(axis=0)
    assert (run.outputs[0] == -total).all()  # the counter ends at the limit: branch 0
