"""What loops, branches and halves mean, on ranks that agree and on ranks that do not."""

import numpy as np
import pytest

from ncc_compiler.reference.interpret import DivergenceError
from tests.reference_runs import run_text

SUM = "sum { a = s32[] parameter(0) b = s32[] parameter(1) ROOT c = s32[] add(a, b) }\n"
DOUBLE_BELOW = """below { p = (s32[], s32[]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  n = s32[] get-tuple-element(p), index=1
  ROOT c = pred[] compare(i, n), direction=LT
}
double { p = (s32[], s32[]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  n = s32[] get-tuple-element(p), index=1
  j = s32[] add(i, i)
  ROOT t = (s32[], s32[]) tuple(j, n)
}
"""
RUN = """ENTRY main {{
  i = s32[] parameter(0)
  n = s32[] parameter(1)
  t = (s32[], s32[]) tuple(i, n)
  w = (s32[], s32[]) while(t), condition=below, body={body}
  ROOT r = s32[] get-tuple-element(w), index=0
}}
"""


def numbers(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def test_every_rank_goes_round_as_often_as_it_wants() -> None:
    text = DOUBLE_BELOW + RUN.format(body="double")
    (found,) = run_text(text, numbers(1, 1, 7), numbers(5, 1, 8), ranks=3)
    assert found.tolist() == [8, 1, 14]


MEET = """meet {{ p = (s32[], s32[]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  n = s32[] get-tuple-element(p), index=1
  j = s32[] all-reduce(i), replica_groups={groups}, to_apply=sum
  ROOT t = (s32[], s32[]) tuple(j, n)
}}
"""


def test_groups_that_never_meet_may_part() -> None:
    text = SUM + DOUBLE_BELOW + MEET.format(groups="{{0,1},{2,3}}") + RUN.format(body="meet")
    (found,) = run_text(text, numbers(1, 1, 1, 1), numbers(2, 2, 8, 8))
    assert found.tolist() == [2, 2, 8, 8]


def test_ranks_that_part_before_they_meet_are_named() -> None:
    text = SUM + DOUBLE_BELOW + MEET.format(groups="{{0,1}}") + RUN.format(body="meet")
    with pytest.raises(DivergenceError, match="True on rank 0, False on rank 1"):
        run_text(text, numbers(1, 9), numbers(8, 8))


def test_pairs_of_a_permute_bind_ranks_together() -> None:
    reduces = "all-reduce(i), replica_groups={{0,1}}, to_apply=sum"
    permutes = "collective-permute(i), source_target_pairs={{0,1}}"
    body = MEET.format(groups="{{0,1}}").replace(reduces, permutes)
    with pytest.raises(DivergenceError, match="ranks 0, 1 and"):
        run_text(
            DOUBLE_BELOW + body + RUN.format(body="meet"),
            numbers(1, 9, 1),
            numbers(8, 8, 1),
            ranks=3,
        )


@pytest.mark.parametrize(("index", "result"), [(-1, 30), (0, 10), (1, 20), (2, 30), (7, 30)])
def test_an_index_out_of_range_is_the_last_branch(index: int, result: int) -> None:
    times = [f"f{k} {{ a = s32[] parameter(0) k = s32[] constant({k}) "
             "ROOT b = s32[] multiply(a, k) }\n" for k in (1, 2, 3)]  # fmt: skip
    text = (
        "".join(times)
        + """ENTRY main {
      i = s32[] parameter(0)
      x = s32[] constant(10)
      ROOT c = s32[] conditional(i, x, x, x), branch_computations={f1, f2, f3}
    }
    """
    )
    (found,) = run_text(text, numbers(index, index), ranks=2)
    assert found.tolist() == [result, result]


def test_true_is_the_first_branch() -> None:
    text = """same { ROOT a = s32[] parameter(0) }
    less { a = s32[] parameter(0) ROOT b = s32[] negate(a) }
    ENTRY main {
      p = pred[] parameter(0)
      x = s32[] constant(3)
      ROOT c = s32[] conditional(p, x, x), true_computation=same, false_computation=less
    }
    """
    (found,) = run_text(text, np.array([True, False]), ranks=2)
    assert found.tolist() == [3, -3]


def test_a_start_gives_operand_result_and_contexts() -> None:
    text = """x = s32[] parameter(0)
    s = (s32[], s32[], u32[]) collective-permute-start(x), source_target_pairs={{0,1}}
    d = s32[] collective-permute-done(s)
    ROOT r = ((s32[], s32[], u32[]), s32[]) tuple(s, d)
    """
    found = run_text(text, numbers(5, 6), ranks=2)
    assert [array.tolist() for array in found] == [[5, 6], [0, 5], [0, 0], [0, 5]]


def test_what_a_loop_of_a_group_does_next_to_idle_ranks_is_their_own() -> None:
    """In a loop that only some ranks enter, collectives have those ranks only."""
    text = SUM + DOUBLE_BELOW + MEET.format(groups="{{0,1},{2,3}}") + RUN.format(body="meet")
    (found,) = run_text(text, numbers(9, 9, 1, 2), numbers(2, 2, 4, 4))
    assert found.tolist() == [9, 9, 6, 6]
