"""Every algorithm is proved at any size: channels, slices and slots vary with it."""

import pytest

import ncc_compiler
import ncc_runtime
from ncc_runtime.collectives.choose import ALGORITHMS
from ncc_runtime.errors import LoweringError
from ncc_runtime.neff.placeholder import CollectiveOp
from ncc_runtime.verify.prove import prove

OPERATORS = {
    CollectiveOp.ALL_REDUCE: "f32[{total}] all-reduce({x}), replica_groups={{}}, to_apply=add",
    CollectiveOp.REDUCE_SCATTER: (
        "f32[{share}] reduce-scatter({x}), replica_groups={{}}, dimensions={{0}}, to_apply=add"
    ),
    CollectiveOp.ALL_GATHER: (
        "f32[{total}] all-gather({x}), replica_groups={{}}, dimensions={{0}}"
    ),
    CollectiveOp.ALL_TO_ALL: "f32[{total}] all-to-all({x}), replica_groups={{}}, dimensions={{0}}",
}
NAMES = [(op, name) for op in OPERATORS for name in ALGORITHMS[op]]
Place = tuple[int, str, int]
"""Ranks, topology, instances."""

SIZES = (1 << 16, 3 << 20, 1 << 24, (1 << 28) + 4096)


def refuted(
    op: CollectiveOp, name: str, place: tuple[int, str, int], total_bytes: int
) -> list[str]:
    """The proofs that do not hold of one collective; none where the algorithm is not for it."""
    ranks, topology, nodes = place
    share = total_bytes // 4 // ranks
    operand = share if op is CollectiveOp.ALL_GATHER else share * ranks
    said = OPERATORS[op].format(x="x", share=share, total=share * ranks)
    text = f"""HloModule m, replica_count={ranks}
add {{
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT s = f32[] add(a, b)
}}
ENTRY e {{
  x = f32[{operand}] parameter(0)
  ROOT y = {said}
}}
"""
    neff = ncc_compiler.compile_text(text)
    try:
        model = ncc_runtime.load(neff, topology, nodes=nodes, algorithms={op.value: name})
        executable = model.executable
    except LoweringError:
        assert name != next(iter(ALGORITHMS[op])), "the first works for every group"
        return []
    return [proof.name for proof in prove(executable) if not proof.holds]


@pytest.mark.parametrize(("op", "name"), NAMES, ids=lambda one: getattr(one, "value", one))
def test_an_algorithm_is_proved_at_small_and_at_large_sizes(op: CollectiveOp, name: str) -> None:
    for place in ((8, "trn2", 1), (8, "trn1", 1), (8, "trn2", 2)):
        for total_bytes in SIZES:
            assert refuted(op, name, place, total_bytes) == [], (place, total_bytes)


@pytest.mark.slow
@pytest.mark.parametrize(("op", "name"), NAMES, ids=lambda one: getattr(one, "value", one))
@pytest.mark.parametrize("place", [(32, "trn1", 1), (64, "trn1", 2), (64, "trn2", 1)], ids=str)
def test_an_algorithm_is_proved_at_all_sizes_on_many_ranks(
    op: CollectiveOp, name: str, place: Place
) -> None:
    for total_bytes in SIZES:
        assert refuted(op, name, place, total_bytes) == [], total_bytes
