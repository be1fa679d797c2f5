"""Comparators and what is read off them; sorts and scatters by kernels, on batches of ranks."""

import attrs
import numpy as np
import pytest

from ncc_runtime.execution.values.kernels.compute import KERNELS
from ncc_runtime.execution.values.kernels.ordering import sort_keys
from ncc_runtime.execution.values.kernels.work import KernelCall
from ncc_runtime.neff.placeholder import CollectiveOp
from ncc_runtime.neff.program import BufferId, Region, RegionInstr, Tensor
from ncc_runtime.neff.shared.dtypes import DType
from tests.programs import collective_program

F32, S32, PRED = DType.F32, DType.S32, DType.PRED


def compare(left: int, right: int, direction: str, order: str = "") -> RegionInstr:
    attributes = {"direction": direction, **({"type": order} if order else {})}
    return RegionInstr("compare", (left, right), PRED, attributes)


def region(dtypes, *body: RegionInstr) -> Region:
    """A comparator of one pair of each dtype, whose last value counts."""
    parameters = tuple(dtype for dtype in dtypes for _ in range(2))
    return Region("before", parameters, body, (len(parameters) + len(body) - 1,))


BY_TWO = (
    compare(0, 1, "LT"),
    compare(0, 1, "EQ"),
    compare(3, 2, "LT"),  # the second key downwards, said the other way round
    RegionInstr("and", (6, 5), PRED),
    RegionInstr("or", (4, 7), PRED),
)


def work(opcode: str, dtypes, shape, body: Region, **attributes) -> KernelCall:
    tensors = tuple(Tensor("", BufferId(0), dtype, shape) for dtype in dtypes)
    program = attrs.evolve(collective_program(CollectiveOp.ALL_REDUCE, 2, [4]), regions=(body,))
    return KernelCall(program, opcode, {**attributes, "region": 0}, tensors, np.arange(3))


def sort(body: Region, *arrays: np.ndarray) -> list[np.ndarray]:
    dtypes = [F32 if array.dtype == np.float32 else S32 for array in arrays]
    one = work("sort", dtypes, arrays[0].shape[1:], body, dimension=arrays[0].ndim - 2)
    return KERNELS["sort"](one, list(arrays))


@pytest.mark.parametrize(
    ("body", "keys"),
    [
        (region([F32], compare(0, 1, "LT")), [(False, False)]),
        (region([F32], compare(0, 1, "GT", "TOTALORDER")), [(True, True)]),
        (region([F32], compare(1, 0, "LT")), [(True, False)]),
        (region([F32, S32], compare(2, 3, "LT")), [(False, False)]),
        (region([S32, S32], *BY_TWO), [(False, False), (True, False)]),
        (
            region([F32], RegionInstr("abs", (0,), F32), RegionInstr("abs", (1,), F32),
                   compare(2, 3, "LT")),
            [(False, False)],
        ),
    ],
)  # fmt: skip
def test_keys_are_read_off_the_usual_comparators(body, keys):
    found = sort_keys(body)
    assert found is not None
    assert [(key.largest_first, key.is_total) for key in found] == keys


@pytest.mark.parametrize(
    "body",
    [
        region([F32], compare(0, 1, "LE")),  # equals would change places
        region([F32, F32], compare(0, 3, "LT")),
        region([F32], compare(0, 0, "LT")),
        region([F32], RegionInstr("abs", (0,), F32), compare(2, 1, "LT")),
        region([F32], compare(0, 1, "GE"), RegionInstr("not", (2,), PRED)),
        region(
            [F32, F32],
            compare(0, 1, "LT", "TOTALORDER"),
            compare(0, 1, "EQ"),  # -0 and 0 are equal here, and not there
            compare(2, 3, "LT"),
            RegionInstr("and", (5, 6), PRED),
            RegionInstr("or", (4, 7), PRED),
        ),
    ],
)
def test_other_comparators_have_no_keys(body):
    assert sort_keys(body) is None


def test_a_comparator_with_very_many_steps_is_read_at_once():
    doubled = [RegionInstr("add", (k, k), F32) for k in (0, 1)]
    doubled += [RegionInstr("add", (k + 2, k + 2), F32) for k in range(400)]
    assert sort_keys(region([F32], *doubled, compare(402, 403, "LT"))) is not None


@pytest.mark.parametrize("size", [1, 2, 3, 7, 8, 33])
def test_a_comparator_without_keys_sorts_as_one_with_keys(size):
    draw = np.random.default_rng(size)
    keys = draw.integers(0, 5, (3, 4, size)).astype(np.int32)
    places = np.broadcast_to(np.arange(size, dtype=np.int32), keys.shape)
    plain = region([S32, S32], compare(0, 1, "LT"))
    other = region([S32, S32], compare(0, 1, "GE"), RegionInstr("not", (4,), PRED))
    assert sort_keys(other) is None
    for one, two in zip(sort(plain, keys, places), sort(other, keys, places), strict=True):
        np.testing.assert_array_equal(one, two)


def test_a_comparator_that_is_no_order_still_permutes():
    keys = np.array([[np.nan, 3, np.nan, 1, 2, np.nan, 0]] * 3, np.float32)
    always = Region("always", (F32, F32), (RegionInstr("constant", (), PRED, {}, "true"),), (2,))
    for body in (region([F32], compare(0, 1, "LT")), always):
        (found,) = sort(body, keys)
        np.testing.assert_array_equal(np.sort(found, axis=-1), np.sort(keys, axis=-1))


NUMBERS = {
    "update_window_dims": (1,),
    "inserted_window_dims": (0,),
    "scatter_dims_to_operand_dims": (0,),
    "input_batching_dims": (),
    "scatter_indices_batching_dims": (),
    "index_vector_dim": 1,
}


def joining(opcode: str) -> Region:
    return Region("join", (F32, F32), (RegionInstr(opcode, (0, 1), F32),), (2,))


@pytest.mark.parametrize("opcode", ["add", "maximum", "subtract"])
def test_a_scatter_of_a_batch_has_the_bits_of_each_rank_alone(opcode):
    draw = np.random.default_rng(7)
    x = draw.standard_normal((5, 4, 3)).astype(np.float32)
    i = draw.integers(-1, 5, (5, 40)).astype(np.int32)
    u = draw.standard_normal((5, 40, 3)).astype(np.float32)
    one = work("scatter", [F32], (4, 3), joining(opcode), **NUMBERS)
    (together,) = KERNELS["scatter"](one, [x, i, u])
    for rank in range(5):
        (alone,) = KERNELS["scatter"](
            one, [x[rank : rank + 1], i[rank : rank + 1], u[rank : rank + 1]]
        )
        assert alone.tobytes() == together[rank : rank + 1].tobytes()


def test_a_maximum_scattered_prefers_plus_zero_and_keeps_nan():
    x = np.full((1, 2, 1), -0.0, np.float32)
    i = np.array([[0, 0, 1, 1]], np.int32)
    u = np.array([-0.0, 0.0, np.nan, 5], np.float32).reshape(1, 4, 1)
    one = work("scatter", [F32], (2, 1), joining("maximum"), **NUMBERS)
    (found,) = KERNELS["scatter"](one, [x, i, u])
    assert not np.signbit(found[0, 0, 0])
    assert np.isnan(found[0, 1, 0])


def test_updates_of_no_element_leave_the_operand():
    x = np.ones((2, 2, 3), np.float32)
    empty = np.zeros((2, 0), np.int32), np.zeros((2, 0, 3), np.float32)
    one = work("scatter", [F32], (2, 3), joining("add"), **NUMBERS)
    np.testing.assert_array_equal(KERNELS["scatter"](one, [x, *empty])[0], x)
