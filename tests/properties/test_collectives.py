"""Collectives on random groups, sizes, operators and placements: values, order, traffic."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ncc_runtime
from ncc_runtime.neff.placeholder import CollectiveOp
from ncc_runtime.neff.shared.reductions import Reduction
from tests.draws_collectives import REDUCTIONS, Case, cases
from tests.example_count import examples
from tests.programs import collective_program


def loaded(case: Case) -> ncc_runtime.Model:
    topology, nodes, placement, lnc = case.place
    return ncc_runtime.load(case.program, topology, nodes=nodes, placement=placement, lnc=lnc)


def inputs_of(case: Case, seed: int) -> list[np.ndarray]:
    generator = np.random.default_rng(seed)
    most = 20 if case.reduction is Reduction.AVERAGE else 200  # exact sums, also in bfloat16
    tensors = [case.program.tensors[tensor] for tensor in case.program.inputs]
    return [
        generator.integers(0, most, (case.program.ranks, *tensor.shape)).astype(tensor.dtype.numpy)
        for tensor in tensors
    ]


def expected(case: Case, operand: np.ndarray) -> list[np.ndarray]:
    """What numpy says each rank holds."""
    if case.op is CollectiveOp.PERMUTE:
        source = {target: sender for sender, target in case.pairs}
        ranks = range(len(operand))
        return [operand[source[r]] if r in source else operand[r] * 0 for r in ranks]
    nothing = np.zeros_like(operand[0])
    result: list[np.ndarray] = [nothing] * len(operand)  # for who is in no group
    for group in case.groups:
        rows = operand[list(group)]
        for place, rank in enumerate(group):
            result[rank] = _at_member(case, rows, place)
    return result


def _at_member(case: Case, rows: np.ndarray, place: int) -> np.ndarray:
    """The result of the group's member `place`, from the operands [members, elements]."""
    if case.op is CollectiveOp.BROADCAST:
        return rows[case.root]
    if case.op is CollectiveOp.SCATTER:
        return np.split(rows[case.root], len(rows))[place]
    if case.op in (CollectiveOp.ALL_GATHER, CollectiveOp.GATHER):
        return _at_root(case, rows.reshape(-1), place)
    if case.op is CollectiveOp.ALL_TO_ALL:
        return np.concatenate([np.split(row, len(rows))[place] for row in rows])
    joined = _joined(case.reduction, rows)
    if case.op is CollectiveOp.REDUCE_SCATTER:
        return np.split(joined, len(rows))[place]
    return _at_root(case, joined, place)


def _joined(reduction: Reduction, rows: np.ndarray) -> np.ndarray:
    """Averages are of small integers, so that every way to sum them gives the same."""
    if reduction is not Reduction.AVERAGE:
        return np.asarray(REDUCTIONS[reduction].reduce(rows, axis=0, dtype=rows.dtype))
    wide = np.float64 if rows.dtype == np.float64 else np.float32
    return np.asarray((rows.astype(wide).sum(axis=0) / wide(len(rows))).astype(rows.dtype))


def _at_root(case: Case, result: np.ndarray, place: int) -> np.ndarray:
    """The result, but zeros where only the root gets it."""
    only_root = case.op in (CollectiveOp.REDUCE, CollectiveOp.GATHER)
    return np.zeros_like(result) if only_root and place != case.root else result


@settings(max_examples=examples(150))
@given(case=cases(), seed=st.integers(0, 99))
def test_every_collective_gives_what_numpy_gives(case: Case, seed: int) -> None:
    inputs = inputs_of(case, seed)
    run = loaded(case).run(inputs, checked=True)
    for operand, result in zip(inputs, run.outputs, strict=True):
        for rank, wanted in enumerate(expected(case, operand)):
            np.testing.assert_array_equal(result[rank], wanted)


@settings(max_examples=examples(60))
@given(case=cases(), seed=st.integers(0, 99))
def test_random_order_and_threads_change_neither_values_nor_times(case: Case, seed: int) -> None:
    inputs = inputs_of(case, seed)
    model = loaded(case)
    plain = model.run(inputs)
    for run in (model.run(inputs, shuffle_seed=seed), model.run(inputs, threads=8)):
        assert run.time_us == plain.time_us
        for mine, theirs in zip(run.outputs, plain.outputs, strict=True):
            assert mine.tobytes() == theirs.tobytes()


@settings(max_examples=examples(30))
@given(members=st.integers(1, 9), elements=st.integers(0, 40), per=st.integers(0, 5))
def test_traffic_equals_the_closed_forms(members: int, elements: int, per: int) -> None:
    others = members - 1
    forms = {
        CollectiveOp.ALL_REDUCE: ("ring", elements, 2 * elements * others),
        CollectiveOp.ALL_GATHER: ("ring", per, per * members * others),
        CollectiveOp.REDUCE_SCATTER: ("ring", per * members, per * members * others),
        CollectiveOp.ALL_TO_ALL: ("direct", per * members, per * members * others),
    }
    for op, (name, size, sent) in forms.items():
        program = collective_program(op, members, [size])
        (row,) = ncc_runtime.load(program, algorithms={op.value: name}).run(seed=0).collectives
        assert sum(row.bytes_by_transport.values()) == sent * 4
        assert sum(row.sent_by_rank) == sent * 4
        if sent % members == 0 and size % members == 0:
            assert set(row.sent_by_rank) == {sent * 4 // members}


@settings(max_examples=examples(20))
@given(st.integers(1, 9), st.integers(0, 40), st.integers(0, 5), st.integers(0, 8))
def test_traffic_of_operators_with_a_root_equals_the_closed_forms(
    members: int, elements: int, per: int, root: int
) -> None:
    root %= members
    rank, others = np.arange(members), members - 1
    last = (root - 1) % members
    forms = {
        CollectiveOp.BROADCAST: (elements, np.where(rank == last, 0, elements)),
        CollectiveOp.REDUCE: (elements, np.where(rank == root, 0, elements)),
        CollectiveOp.GATHER: (per, np.where(rank == root, 0, per)),
        CollectiveOp.SCATTER: (per * members, np.where(rank == root, per * others, 0)),
    }
    for op, (size, sent) in forms.items():
        program = collective_program(op, members, [size], root=root)
        (row,) = ncc_runtime.load(program).run(seed=0).collectives
        assert list(row.sent_by_rank) == (sent * 4).tolist()
        assert sum(row.bytes_by_transport.values()) == sent.sum() * 4


@settings(max_examples=examples(30))
@given(members=st.integers(1, 20))
def test_a_barrier_takes_a_signal_to_each_member_in_each_of_log2_rounds(members: int) -> None:
    model = ncc_runtime.load(collective_program(CollectiveOp.BARRIER, members, []))
    (row,) = model.run([]).collectives
    rounds = (members - 1).bit_length()
    sent = sum(
        int((queue.peer >= 0).sum()) for queue in model.executable.queues if hasattr(queue, "peer")
    )
    assert sent == members * rounds
    assert sum(row.sent_by_rank) == 0


_WITHOUT_ROWS = (CollectiveOp.PERMUTE, CollectiveOp.RAGGED_ALL_TO_ALL)
_WITH_GROUPS = [op for op in CollectiveOp if op not in _WITHOUT_ROWS]


@pytest.mark.parametrize("op", [op for op in _WITH_GROUPS if op is not CollectiveOp.BARRIER])
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
