"""Broadcasts whose root is known only when the program runs, as frameworks write them."""

import numpy as np
import pytest

import ncc_compiler
import ncc_runtime
from ncc_compiler.options import CompileOptions
from ncc_compiler.reference.interpret import DivergenceError
from ncc_runtime.errors import NccError
from tests.compiler.reading import complaints
from tests.reference_runs import run_text

BRANCHES = "\n".join(
    f"""from_{root} {{ a{root} = f32[3] parameter(0)
  ROOT b{root} = f32[3] collective-broadcast(a{root}), channel_id={root + 1}, replica_groups={{{{{
        ",".join(map(str, [root, *(rank for rank in range(4) if rank != root)]))
    }}}}}
}}"""
    for root in range(4)
)
CHOSEN = f"""HloModule m, num_partitions=4
{BRANCHES}
ENTRY main {{
  x = f32[3] parameter(0)
  root = s32[] parameter(1)
  ROOT y = f32[3] conditional(root, x, x, x, x),
    branch_computations={{from_0, from_1, from_2, from_3}}
}}
"""
MASKED = """HloModule m, num_partitions=4
sum { a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b)
}
ENTRY main {
  x = f32[3] parameter(0)
  root = s32[] parameter(1)
  id = u32[] partition-id()
  rank = s32[] convert(id)
  is = pred[] compare(rank, root), direction=EQ
  mask = pred[3] broadcast(is), dimensions={}
  zero = f32[] constant(0)
  zeros = f32[3] broadcast(zero), dimensions={}
  mine = f32[3] select(mask, x, zeros)
  ROOT y = f32[3] all-reduce(mine), channel_id=1, use_global_device_ids=true,
    replica_groups={{0,1,2,3}}, to_apply=sum
}
"""
X = np.arange(12, dtype=np.float32).reshape(4, 3) + 1


@pytest.mark.parametrize("level", [0, 2])
@pytest.mark.parametrize("text", [CHOSEN, MASKED], ids=["branches", "masked sum"])
def test_everybody_gets_what_the_chosen_root_has(text: str, level: int) -> None:
    model = ncc_runtime.load(ncc_compiler.compile_text(text, CompileOptions(level=level)))
    for root in range(4):
        roots = np.full(4, root, np.int32)
        (meant,) = run_text(text, X, roots)
        (found,) = model.run([X, roots], checked=True).outputs
        assert found.tolist() == meant.tolist() == [X[root].tolist()] * 4


def test_ranks_that_choose_different_roots_are_told_so() -> None:
    roots = np.array([0, 0, 1, 0], np.int32)
    with pytest.raises(DivergenceError, match="the predicate guards a collective of ranks"):
        run_text(CHOSEN, X, roots)
    model = ncc_runtime.load(ncc_compiler.compile_text(CHOSEN))
    with pytest.raises(NccError, match="rank"):
        model.run([X, roots], checked=True)


def test_a_root_is_no_operand_of_a_broadcast() -> None:
    text = """HloModule m, num_partitions=4
ENTRY main {
  x = f32[3] parameter(0)
  root = s32[] parameter(1)
  ROOT y = f32[3] collective-broadcast(x, root), channel_id=1, replica_groups={{0,1,2,3}}
}
"""
    assert complaints(text) == ["5:12 op-C5"]
