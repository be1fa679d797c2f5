"""Collectives on random groups, sizes, operators and placements: values, order, traffic."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ncc_runtime
from ncc_runtime.neff.placeholder import CollectiveOp
from tests.draws_collectives import REDUCTIONS, Case, cases
from tests.programs import collective_program


def loaded(case: Case) -> ncc_runtime.Model:
    topology, nodes, placement, lnc = case.place
    return ncc_runtime.load(case.program, topology, nodes=nodes, placement=placement, lnc=lnc)


def inputs_of(case: Case, seed: int) -> list[np.ndarray]:
    generator = np.random.default_rng(seed)
    tensors = [case.program.tensors[tensor] for tensor in case.program.inputs]
    return [
        generator.integers(0, 200, (case.program.ranks, *tensor.shape)).astype(tensor.dtype.numpy)
        for tensor in tensors
    ]


def expected(case: Case, operand: np.ndarray) -> list[np.ndarray]:
    """What numpy says each rank holds."""
    if case.op is CollectiveOp.PERMUTE:
        source = {target: sender for sender, target in case.pairs}
        ranks = range(len(operand))
        return [operand[source[r]] if r in source else operand[r] * 0 for r in ranks]
    result: list[np.ndarray] = [operand[0]] * len(operand)
    for group in case.groups:
        rows = operand[list(group)]
        for place, rank in enumerate(group):
            result[rank] = _at_member(case, rows, place)
    return result


def _at_member(case: Case, rows: np.ndarray, place: int) -> np.ndarray:
    """The result of the group's member `place`, from the operands [members, elements]."""
    if case.op is CollectiveOp.ALL_GATHER:
        return rows.reshape(-1)
    if case.op is CollectiveOp.ALL_TO_ALL:
        return np.concatenate([np.split(row, len(rows))[place] for row in rows])
    joined = REDUCTIONS[case.reduction].reduce(rows, axis=0, dtype=rows.dtype)
    whole = case.op is CollectiveOp.ALL_REDUCE
    return joined if whole else np.split(joined, len(rows))[place]


@settings(deadline=None, max_examples=150)
@given(case=cases(), seed=st.integers(0, 99))
def test_every_collective_gives_what_numpy_gives(case: Case, seed: int) -> None:
    inputs = inputs_of(case, seed)
    run = loaded(case).run(inputs, checked=True)
    for operand, result in zip(inputs, run.outputs, strict=True):
        for rank, wanted in enumerate(expected(case, operand)):
            np.testing.assert_array_equal(result[rank], wanted)


@settings(deadline=None, max_examples=60)
@given(case=cases(), seed=st.integers(0, 99))
def test_random_order_and_threads_change_neither_values_nor_times(case: Case, seed: int) -> None:
    inputs = inputs_of(case, seed)
    model = loaded(case)
    plain = model.run(inputs)
    for run in (model.run(inputs, shuffle_seed=seed), model.run(inputs, threads=8)):
        assert run.time_us == plain.time_us
        for mine, theirs in zip(run.outputs, plain.outputs, strict=True):
            assert mine.tobytes() == theirs.tobytes()


@settings(deadline=None, max_examples=60)
@given(members=st.integers(1, 9), elements=st.integers(0, 40), per=st.integers(0, 5))
def test_traffic_equals_the_closed_forms(members: int, elements: int, per: int) -> None:
    everybody = {
        CollectiveOp.ALL_REDUCE: (elements, 2 * elements * (members - 1)),
        CollectiveOp.ALL_GATHER: (per, per * members * (members - 1)),
        CollectiveOp.REDUCE_SCATTER: (per * members, per * members * (members - 1)),
        CollectiveOp.ALL_TO_ALL: (per * members, per * members * (members - 1)),
    }
    for op, (size, sent) in everybody.items():
        run = ncc_runtime.load(collective_program(op, members, [size])).run(seed=0)
        (row,) = run.collectives
        assert sum(row.bytes_by_transport.values()) == sent * 4
        assert sum(row.sent_by_rank) == sent * 4
        if sent % members == 0 and size % members == 0:
            assert set(row.sent_by_rank) == {sent * 4 // members}


@pytest.mark.parametrize("op", [op for op in CollectiveOp if op is not CollectiveOp.PERMUTE])
def test_only_efa_carries_bytes_between_instances(op: CollectiveOp) -> None:
    program = collective_program(op, 8, [64])
    model = ncc_runtime.load(program, "trn2", nodes=2)
    (row,) = model.run(seed=0).collectives
    node = model.executable.placement.node
    crossing = 0
    for queue in model.executable.queues:
        if hasattr(queue, "peer"):
            sender = np.broadcast_to(np.arange(8), queue.peer.shape)
            crosses = node[sender] != node[queue.peer]
            crossing += int(queue.size_bytes[crosses & (queue.peer >= 0)].sum())
    assert row.bytes_by_transport["efa"] == crossing > 0
    assert row.bytes_by_transport["neuronlink"] == 0  # four ranks share a chip at LNC 2
