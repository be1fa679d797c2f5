"""What memory holds, as neff-M8 sees it: over rounds of loops, over branches, in donated inputs."""

from pathlib import Path

from ncc_runtime.neff.check import check
from ncc_runtime.neff.listing import parse_program

TEXT = (Path(__file__).parents[1] / "data" / "neff" / "loop.listing").read_text()


def changed(*edits: tuple[str, str], text: str = TEXT) -> tuple[str, ...]:
    """The complaints after some edits of a listing."""
    for old, new in edits:
        assert old in text
        text = text.replace(old, new, 1)
    return check(parse_program(text))


TEMPORARY = (
    ("      5    add      t4 = t4, t5", "      5    add      t9 = t4, t5"),
    ("f32  t9 = t4  pairs", "f32  t9 = t0  pairs"),
)


def test_memory_that_a_later_round_reads_is_not_given_to_a_temporary_of_the_loop() -> None:
    assert changed(*TEMPORARY) == ()
    found = changed(*TEMPORARY, ("b9   tmp-buf  0x00000240", "b9   tmp-buf  0x00000100"))
    assert found == (
        "neff-M8 placeholder p0: reads t4 of b4, which another buffer may have overwritten",
        "neff-M8 placeholder p0: reads t4 of b4, which another buffer may have overwritten",
        "neff-M8 queue Vector, pc 5: reads t4 of b4, which another buffer may have overwritten",
        "neff-M8 queue Vector, pc 10: reads t4 of b4, which another buffer may have overwritten",
    )


def test_the_state_of_a_loop_is_not_overwritten_before_it_is_read() -> None:
    (found,) = changed(("b6   tmp-buf  0x00000180", "b6   tmp-buf  0x00000140"))
    assert found == "neff-M8 queue Vector, pc 6: reads t6 of b6, which b5 (sum) has overwritten"


def test_what_every_branch_writes_is_written() -> None:
    (found,) = changed(("t9 = t4    ", "t5 = t4    "))
    assert found == (
        "neff-M8 queue Vector, pc 14: reads t9 of b9, which another buffer may have overwritten"
    )


DONATED = """program step replicas 1 partitions 1 memory 2048
buffers
  b0  input    0x00000000  32   w
  b1  output   0x00000000  32   next
  b2  tmp-buf  0x00000040  32   g
tensors
  t0   f32[8]   b0+0   w
  t1   f32[8]   b1+0   next
  t2   f32[8]   b2+0   g
inputs
  t0
outputs
  t1
aliases
  out0 arg0
queue Vector
  0  negate  t2 = t0
  1  add     t1 = t0, t2
"""


def test_an_output_lies_in_the_memory_of_the_input_it_is_paired_with() -> None:
    assert changed(text=DONATED) == ()
    assert changed(("  out0 arg0\n", ""), text=DONATED) == (
        "neff-M2 output b1 (next) overlaps input b0 (w) at 0x0",
    )
    assert changed(("b1  output   0x00000000", "b1  output   0x00000040"), text=DONATED) == ()


def test_a_donated_input_is_not_read_once_it_is_overwritten() -> None:
    late = ("  0  negate  t2 = t0\n  1  add     t1 = t0, t2", "  0 abs t1 = t0\n  1 negate t2 = t0")
    assert changed(late, text=DONATED) == (
        "neff-M8 queue Vector, pc 1: reads t0 of b0, which b1 (next) has overwritten",
    )


def test_an_output_in_an_inputs_memory_holds_what_that_held() -> None:
    rows = DONATED[DONATED.index("  0  negate") :]
    assert changed((rows, "  0  negate  t2 = t1\n"), text=DONATED) == ()
