"""Expressions are what runs compute: evaluated with numpy they have the bits of `Model.run`."""

import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ncc_compiler
from ncc_runtime import load
from ncc_runtime.bits.compared import BitsComparison, measured
from ncc_runtime.bits.orders import CollectiveOrder, ResultOrder, SumsOf, orders
from ncc_runtime.bits.sums import UNWRITTEN, ZEROS, Arithmetic, Join, OrderShape, Sums
from ncc_runtime.collectives.choose import ALGORITHMS
from ncc_runtime.errors import NccError
from ncc_runtime.lowering.lower import lower
from ncc_runtime.neff.placeholder import CollectiveOp
from ncc_runtime.neff.shared.dtypes import DType
from ncc_runtime.neff.shared.reductions import Reduction, is_exact
from ncc_runtime.placement import PlaceOptions, place_on
from ncc_runtime.runtime import Model
from ncc_runtime.topology import fault_names
from tests.example_count import examples
from tests.programs import collective_program

ACCUMULATORS = {DType.F64: np.float64, DType.C64: np.complex64}
DTYPES = (
    *(DType.F32, DType.BF16, DType.F16, DType.F64, DType.C64, DType.F8E4M3FN, DType.F8E5M2),
    DType.F8E4M3,
)
REDUCING = (CollectiveOp.ALL_REDUCE, CollectiveOp.REDUCE_SCATTER, CollectiveOp.REDUCE)
PLACES = (("trn2", 1), ("trn2", 2), ("trn1", 1), ("trn1", 2), ("inf2", 1), ("trn2", 4))


def evaluated(sums: Sums, number: int, operands: Sequence[np.ndarray], dtype: DType) -> np.ndarray:
    """An expression by recursion, in the precision that docs/faults.md states."""
    node = sums.node(number)
    if not isinstance(node, Join):
        return operands[node]
    parts = [evaluated(sums, part, operands, dtype) for part in node.parts]
    wide = [part.astype(ACCUMULATORS.get(dtype, np.float32)) for part in parts]
    total = wide[0]
    with np.errstate(all="ignore"):
        for part in wide[1:]:
            is_product = sums.arithmetic.reduction is Reduction.MULTIPLY
            total = total * part if is_product else total + part
        if node.divisor != 1:
            total = total / total.dtype.type(node.divisor)
        return total.astype(dtype.numpy)


def operand_slice(op: CollectiveOp, one: ResultOrder, at: int, itemsize: int) -> slice:
    """Which elements of an operand an interval of a result is made of."""
    first = one.group.index(one.rank) * one.size_bytes if op is CollectiveOp.REDUCE_SCATTER else 0
    start = first + int(one.start[at])
    return slice(start // itemsize, (start + int(one.sizes[at])) // itemsize)


def check_bits(model: Model, order: CollectiveOrder, seed: int = 0) -> None:
    """Every result of a run has the bits of its expressions, evaluated on the operands."""
    program = model.executable.program
    (placeholder,) = program.placeholders
    dtype, generator = placeholder.dtype, np.random.default_rng(seed)
    given = []
    for tensor in program.inputs:
        values = generator.standard_normal((program.ranks, *program.tensors[tensor].shape))
        if placeholder.reduction is Reduction.MULTIPLY:
            values = 1 + values / 16  # products of many stay in the range
        given.append(values.astype(dtype.numpy))
    outputs = model.run(given, clock=False, verify=False).outputs
    assert len(order.results) >= len(program.outputs)
    for one in order.results:
        out = outputs[one.result][one.rank].reshape(-1)
        for at, number in enumerate(one.expression.tolist()):
            assert number not in (ZEROS, UNWRITTEN)
            begin, size = int(one.start[at]), int(one.sizes[at])
            itemsize = dtype.size_bytes
            read = operand_slice(placeholder.op, one, at, itemsize)
            parts = [given[one.result][rank].reshape(-1)[read] for rank in one.group]
            found = out[begin // itemsize : (begin + size) // itemsize]
            assert evaluated(order.sums, number, parts, dtype).tobytes() == found.tobytes()
            assert order.sums.value(number, parts).tobytes() == found.tobytes()
            assert order.sums.members_of(number) == len(one.group)


@st.composite
def drawn_models(draw: st.DrawFn) -> Model | None:
    """A collective that reduces, by any algorithm that can run it on a drawn place."""
    ranks = draw(st.sampled_from([1, 2, 3, 4, 6, 8, 12, 16, 18, 24]))
    op = draw(st.sampled_from(REDUCING))
    dtype = draw(st.sampled_from(DTYPES))
    reductions = [Reduction.ADD, Reduction.AVERAGE]
    if not dtype.is_complex:  # numpy contracts their products as it likes
        reductions.append(Reduction.MULTIPLY)
    reduction = draw(st.sampled_from(reductions))
    sizes = draw(st.lists(st.integers(1, 150), min_size=1, max_size=2))
    order = draw(st.permutations(range(ranks)))
    count = draw(st.sampled_from([n for n in (1, 2) if ranks % n == 0]))
    size = ranks // count
    groups = tuple(tuple(order[k * size : (k + 1) * size]) for k in range(count))
    if op is CollectiveOp.REDUCE_SCATTER:
        sizes = [each * size for each in sizes]
    program = collective_program(
        op,
        ranks,
        sizes,
        groups=groups,
        root=draw(st.integers(0, size - 1)),
        dtype=dtype,
        reduction=reduction,
    )
    topology, nodes = draw(st.sampled_from(PLACES))
    name = draw(st.sampled_from([None, *ALGORITHMS[op]]))
    algorithms = {} if name is None else {op.value: name}
    placement = draw(st.sampled_from(["linear", "spread"]))
    down = draw(st.sampled_from([(), ("c0-c1",)])) if topology == "trn2" else ()
    try:
        where = PlaceOptions(topology, nodes, placement, None, tuple(map(fault_names.down, down)))
        return Model(lower(program, place_on(where, ranks), algorithms))  # chosen by price alone
    except NccError:
        return None  # it does not fit there, or the algorithm does not suit it


@settings(max_examples=examples(25))
@given(drawn_models())
def test_a_run_has_the_bits_of_its_expressions(model: Model | None) -> None:
    if model is not None:
        (order,) = orders(model.executable).values()
        check_bits(model, order)


@pytest.mark.slow
@settings(max_examples=1500)
@given(drawn_models())
def test_many_runs_have_the_bits_of_their_expressions(model: Model | None) -> None:
    if model is not None:
        (order,) = orders(model.executable).values()
        check_bits(model, order)


@pytest.mark.parametrize("name", ALGORITHMS[CollectiveOp.ALL_REDUCE])
def test_every_algorithm_of_all_reduce_has_the_bits_of_its_expressions(name: str) -> None:
    nodes = 2 if "hier." in name else 1
    topology = "trn1" if name == "torus" else "trn2"
    if name == "pod":
        topology, nodes = "trn2-ultraserver", 2
    ranks = 4 if name == "direct" else 32
    program = collective_program(
        CollectiveOp.ALL_REDUCE, ranks, [300, 7], dtype=DType.BF16, reduction=Reduction.AVERAGE
    )
    try:
        model = load(program, topology, nodes=nodes, algorithms={"all-reduce": name})
    except NccError:
        pytest.skip("it does not suit this group")
    (order,) = orders(model.executable).values()
    check_bits(model, order)


def test_reduce_scatter_of_variable_size_joins_in_order() -> None:
    program = collective_program(CollectiveOp.REDUCE_SCATTER_V, 20, [400], dtype=DType.BF16)
    (order,) = orders(load(program, "trn2").executable).values()
    assert [one.rank for one in order.results] == list(range(20))
    assert {int(one.expression[0]) for one in order.results} == {order.sums.in_order(20)}


@settings(max_examples=12)
@given(drawn_models(), st.sampled_from(["ring", "mesh", "rdh", "tree"]))
def test_equal_expressions_give_equal_bits_and_the_bound_holds(
    model: Model | None, other: str
) -> None:
    if model is None:
        return
    program = model.executable.program
    (placeholder,) = program.placeholders
    if placeholder.op is not CollectiveOp.ALL_REDUCE:
        return
    second = load(program, "trn2", algorithms={"all-reduce": other})
    comparison = BitsComparison((model.executable, second.executable))
    outputs = [
        each.run(seed=1, clock=False, verify=False, watch=watch).outputs
        for each, watch in ((model, comparison.watch), (second, None))
    ]
    found = comparison.result((outputs[0], outputs[1]))
    (compared,) = found.collectives
    if not compared.differing:
        assert all(a.tobytes() == b.tobytes() for a, b in zip(*outputs, strict=True))
        return
    assert compared.difference is not None
    assert found.outputs is not None
    total = sum(each.differing for each in found.outputs)
    assert compared.difference.differing == total  # it alone made the outputs differ
    if compared.sums.arithmetic.has_bound and not compared.difference.not_finite:
        assert compared.share is not None
        assert compared.share <= 1


DYADIC = st.integers(-(2**20), 2**20).map(lambda n: n / 2**12)


@given(
    st.sampled_from([DType.F32, DType.BF16, DType.F16]),
    st.sampled_from([Reduction.ADD, Reduction.AVERAGE]),
    st.integers(2, 40).flatmap(lambda n: st.lists(DYADIC, min_size=n, max_size=n)),
    st.randoms(use_true_random=False),
)
def test_no_order_is_farther_from_the_exact_sum_than_its_bound(
    dtype: DType, reduction: Reduction, values: list[float], random: "object"
) -> None:
    sums = Sums(Arithmetic(reduction, dtype))
    operands = [np.array([value]).astype(dtype.numpy) for value in values]
    left = [sums.member(place) for place in range(len(values))]
    divisor = len(values) if reduction is Reduction.AVERAGE else 1
    while len(left) > 1:  # any tree
        random.shuffle(left)  # type: ignore[attr-defined]
        width = min(len(left), random.randint(2, 5))  # type: ignore[attr-defined]
        last = divisor if width == len(left) else 1
        left = [sums.joined(left[:width], last), *left[width:]]
    found = sums.value(left[0], operands)
    if not np.isfinite(found.astype(np.float64)).all():
        return
    exact = [Fraction(float(each[0])) for each in operands]
    error = abs(Fraction(float(found[0])) - sum(exact) / divisor)
    bound = sums.bound(left[0])
    assert bound is not None
    most = Fraction(bound) * sum(map(abs, exact)) / divisor + Fraction(sums.least(left[0]))
    assert error <= most * (1 + Fraction(1, 2**40))  # the bound itself is a float
    depth = sums.roundings(left[0])
    unit = 2.0**-24 * depth.accumulator
    gamma = unit / (1 - unit)
    if dtype is DType.F32:
        assert bound <= gamma
        assert math.isclose(bound, gamma, rel_tol=1e-4)


# ---- expressions


def test_equal_bits_are_one_expression() -> None:
    sums = Sums(Arithmetic(Reduction.ADD, DType.F32))
    a, b, c = map(sums.member, range(3))
    assert sums.joined([a, b]) == sums.joined([b, a])
    assert sums.joined([a, b, c]) == sums.joined([c, sums.joined([b, a])])
    assert sums.joined([a, b, c]) != sums.joined([a, sums.joined([b, c])])
    assert sums.joined([a]) == a
    assert sums.joined([ZEROS, a]) == a
    narrow = Sums(Arithmetic(Reduction.ADD, DType.BF16))
    a, b, c = map(narrow.member, range(3))
    assert narrow.joined([a, b, c]) == narrow.joined([b, a, c])
    assert narrow.joined([a, b, c]) != narrow.joined([narrow.joined([a, b]), c])


def test_complex_products_are_not_taken_to_commute() -> None:
    sums = Sums(Arithmetic(Reduction.MULTIPLY, DType.C64))
    a, b = sums.member(0), sums.member(1)
    assert sums.joined([a, b]) != sums.joined([b, a])
    assert sums.bound(sums.joined([a, b])) is None


def test_what_is_not_rounded_has_no_order() -> None:
    assert is_exact(Reduction.ADD, DType.S32)
    assert is_exact(Reduction.AND, DType.PRED)
    assert is_exact(Reduction.MAXIMUM, DType.BF16)
    assert not is_exact(Reduction.MAXIMUM, DType.C64)
    assert not is_exact(Reduction.AVERAGE, DType.F32)
    program = collective_program(CollectiveOp.ALL_REDUCE, 4, [8], dtype=DType.S32)
    (order,) = orders(load(program).executable).values()
    assert order.results == ()


def test_expressions_are_written_with_a_bracket_for_each_rounding() -> None:
    sums = Sums(Arithmetic(Reduction.AVERAGE, DType.BF16))
    a, b, c, d = map(sums.member, range(4))
    at_once = sums.joined([a, b, c, d], 4)
    assert sums.text(at_once) == "(r0+r1+r2+r3)/4"
    assert sums.shape(at_once)[0] is OrderShape.AT_ONCE
    pairs = sums.joined([sums.joined([c, d]), sums.joined([a, b])], 4)
    assert sums.text(pairs) == "((r0+r1)+(r2+r3))/4"
    assert sums.shape(pairs)[0] is OrderShape.PAIRWISE
    assert sums.roundings(at_once).in_all == 5
    assert sums.roundings(at_once).element == 1
    assert sums.roundings(pairs).in_all == 7


def test_long_expressions_are_named() -> None:
    sums = Sums(Arithmetic(Reduction.ADD, DType.F32))
    turned = [*range(5, 40), *range(5)]
    chain = sums.joined(list(map(sums.member, turned)))
    assert sums.text(chain) == "chain r5, r6, r7, … r3, r4"
    pairs = list(map(sums.member, range(64)))
    while len(pairs) > 1:
        pairs = [sums.joined(two) for two in zip(pairs[::2], pairs[1::2], strict=True)]
    assert sums.text(pairs[0]) == "pairwise tree of 64"
    assert sums.text(sums.in_order(40)) == "tree of 40: 3 parts, each a chain of 8 to 16"


def test_chains_of_a_ring_differ_in_where_they_begin_only() -> None:
    program = collective_program(CollectiveOp.ALL_REDUCE, 8, [64])
    (order,) = orders(load(program, "trn1", algorithms={"all-reduce": "ring"}).executable).values()
    numbers = {number for one in order.results for number in one.expression.tolist()}
    assert len(numbers) == 16  # from each member on, both ways round
    assert len({order.sums.outline(number) for number in numbers}) == 1
    assert {order.sums.shape(number)[0] for number in numbers} == {OrderShape.CHAIN}


def test_executables_that_share_expressions_compare_by_number() -> None:
    program, shared = collective_program(CollectiveOp.ALL_REDUCE, 8, [64]), SumsOf()
    found = [orders(load(program, "trn1").executable, shared)[0] for _ in range(2)]
    pairs = zip(found[0].results, found[1].results, strict=True)
    assert all(np.array_equal(a.expression, b.expression) for a, b in pairs)


def test_what_two_orders_make_is_measured_against_the_bound() -> None:
    sums = Sums(Arithmetic(Reduction.ADD, DType.F32))
    a, b, c = map(sums.member, range(3))
    two = sums.joined([a, b, c]), sums.joined([a, sums.joined([b, c])])
    operands = [np.array([1e8, 1], np.float32), np.array([1, 2], np.float32)]
    operands.append(np.array([-1e8, 3], np.float32))
    found, share = measured(sums, two, operands)
    assert (found.elements, found.differing) == (2, 0) or found.differing == 1
    assert 0 <= share <= 1


@pytest.mark.parametrize("dtype", [DType.F32, DType.F64])
@pytest.mark.parametrize("extra", [0.0, np.nan, np.inf])
def test_elements_without_a_bound_leave_the_share_to_the_others(dtype: DType, extra: float) -> None:
    """Zeros of 64 bits, where the bound is zero too, and what is not finite; nothing warns."""
    sums = Sums(Arithmetic(Reduction.ADD, dtype))
    a, b, c = map(sums.member, range(3))
    two = sums.joined([sums.joined([a, b]), c]), sums.joined([a, sums.joined([b, c])])
    draw = np.random.default_rng(0)
    operands = [draw.standard_normal(20).astype(dtype.numpy) for _ in range(3)]
    known = measured(sums, two, operands)[1]
    assert 0 < known <= 1
    with_extra = [np.append(array, dtype.numpy.type(extra)) for array in operands]
    assert measured(sums, two, with_extra)[1] == known


def test_equal_collectives_of_joined_programs_are_each_among_ranks_of_its_own() -> None:
    text = """HloModule m
      sum { a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT c = f32[] add(a, b) }
      ENTRY e {
        x = f32[300] parameter(0)
        ROOT y = f32[300] all-reduce(x), replica_groups={{0,3,4},{1,2,5}}, to_apply=sum
      }"""
    neff = ncc_compiler.compile_text(text)
    alone, joined = load(neff), load([(neff, [0, 3, 4]), (neff, [1, 2, 5])])
    of_both = orders(joined.executable)
    assert [[one.rank for one in of_both[n].results] for n in range(2)] == [[0, 3, 4], [1, 2, 5]]
    assert [{one.group for one in of_both[n].results} for n in range(2)] == [
        {(0, 3, 4)},
        {(1, 2, 5)},
    ]
    x = np.random.default_rng(0).standard_normal((6, 300)).astype(np.float32)
    (expected,) = alone.run([x]).outputs
    first, second = joined.run([x[[0, 3, 4]], x[[1, 2, 5]]]).outputs
    assert first.tobytes() == expected[[0, 3, 4]].tobytes()
    assert second.tobytes() == expected[[1, 2, 5]].tobytes()
