"""An all-to-all of variable size whose receivers say where rows land."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ncc_compiler
import ncc_runtime
from ncc_runtime.errors import CountsError
from tests.compiler.reading import load
from tests.reference_runs import reference_outputs

ROWS, ROOM, WIDTH = 12, 20, 3
Groups = tuple[tuple[int, ...], ...]


def text_of(groups: Groups, ids: str = "replica_count", element: str = "f32") -> str:
    members, ranks = len(groups[0]), sum(map(len, groups))
    listed = str([list(group) for group in groups]).replace(" ", "")
    config = f'"replica_groups":{listed}'
    if ids == "num_partitions":
        config += ',"channel_id":7,"use_global_device_ids":true'
    return f"""HloModule m, {ids}={ranks}
ENTRY main {{
  x = {element}[{ROWS},{WIDTH}] parameter(0)
  out = {element}[{ROOM},{WIDTH}] parameter(1)
  t = u32[4,{members}] parameter(2)
  ROOT r = {element}[{ROOM},{WIDTH}] custom-call(x, out, t),
    custom_call_target="ncc.all_to_all_v", backend_config={{{config}}}
}}"""


def case(groups: Groups, seed: int) -> tuple[list[np.ndarray], np.ndarray]:
    """Operand, output and metadata of all ranks, and what comes of them."""
    rng = np.random.default_rng(seed)
    ranks, members = sum(map(len, groups)), len(groups[0])
    x = rng.integers(-99, 99, (ranks, ROWS, WIDTH)).astype(np.float32)
    out = rng.integers(-99, 99, (ranks, ROOM, WIDTH)).astype(np.float32)
    table = np.zeros((ranks, 4, members), np.uint32)
    wanted = out.copy()
    for group in groups:
        for me, rank in enumerate(group):
            cuts = np.sort(rng.integers(0, ROOM + 1, 2 * members)).reshape(-1, 2)
            for peer, (first, end) in zip(rng.permutation(members), cuts, strict=True):
                count = min(int(end - first), ROWS)
                start = int(rng.integers(0, ROWS - count + 1))
                source = group[int(peer)]
                table[source, 0, me], table[source, 1, me] = count, start
                table[rank, 2, peer], table[rank, 3, peer] = count, first
                wanted[rank, first : first + count] = x[source, start : start + count]
    return [x, out, table], wanted


@settings(max_examples=8)
@given(
    groups=st.sampled_from([((2, 0), (3, 1)), ((3, 1, 0, 2),), ((0,), (1,)), (tuple(range(6)),)]),
    ids=st.sampled_from(["replica_count", "num_partitions"]),
    level=st.integers(0, 2),
    seed=st.integers(0, 999),
)
def test_rows_land_where_their_receiver_says(
    groups: Groups, ids: str, level: int, seed: int
) -> None:
    given, wanted = case(groups, seed)
    text = text_of(groups, ids)
    (expected,) = reference_outputs(load(text), given)
    np.testing.assert_array_equal(expected, wanted)
    neff = ncc_compiler.compile_text(text, ncc_compiler.CompileOptions(level=level))
    run = ncc_runtime.load(neff).run(given, checked=True, shuffle_seed=seed)
    np.testing.assert_array_equal(run.outputs[0], wanted)
    assert {proof.name for proof in run.proofs if proof.holds} >= {"semantics", "races", "deadlock"}


@pytest.mark.parametrize(
    "topology", ["trn1", "trn3-gen2-ultraserver", "dgx-h100", "trn2-ultraserver"]
)
def test_the_same_everywhere(topology: str) -> None:
    groups = (tuple(range(8)),)
    given, wanted = case(groups, 3)
    run = ncc_runtime.load(ncc_compiler.compile_text(text_of(groups)), topology).run(given)
    np.testing.assert_array_equal(run.outputs[0], wanted)


def test_rows_that_land_on_each_other_are_refused() -> None:
    groups = ((0, 1, 2, 3),)
    (x, out, table), _ = case(groups, 1)
    table[:, [0, 2]], table[:, 3] = 2, 5
    table[:, 1] = 0
    model = ncc_runtime.load(ncc_compiler.compile_text(text_of(groups)))
    with pytest.raises(CountsError, match=r"rows 5\.\.7 from rank 0 and rows 5\.\.7 from rank 1"):
        model.run([x, out, table])


def test_a_seed_draws_offsets_that_the_receivers_tell() -> None:
    text = text_of(((0, 1, 2, 3),)).replace("ROOT r", "r").removesuffix("}")
    text += f"""
  ROOT both = (f32[{ROOM},{WIDTH}], u32[4,4]) tuple(r, t)
}}"""
    model = ncc_runtime.load(ncc_compiler.compile_text(text))
    apart = ~np.eye(4, dtype=bool)
    for seed in range(4):
        run = model.run(seed=seed)
        sent, received = run.outputs[1][:, 0], run.outputs[1][:, 2]  # (rank, peer)
        np.testing.assert_array_equal(sent, received.T)
        assert sent[apart].sum() > 0
        # Rows move once; before that every rank tells the three others an offset of 4 bytes.
        moved = sum(run.collectives[-1].bytes_by_transport.values())
        assert moved == sent[apart].sum() * WIDTH * 4
