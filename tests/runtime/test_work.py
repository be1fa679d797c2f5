"""The work of instructions: each rule by an example worked by hand."""

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ncc_compiler
from ncc_compiler.options import CompileOptions
from ncc_runtime.neff.durations import GENERIC, duration_of, engine_of
from ncc_runtime.neff.isa import Engine
from ncc_runtime.neff.program import (
    CONSTANT,
    FusedInstr,
    Fusion,
    Region,
    RegionInstr,
    ValueType,
)
from ncc_runtime.neff.shared.dtypes import DType
from ncc_runtime.neff.work.dataflow import Dataflow
from ncc_runtime.neff.work.instructions import work_of_fusion, works_of
from ncc_runtime.neff.work.moves import work_of_move
from ncc_runtime.neff.work.phases import work_of_rows
from ncc_runtime.neff.work.row_costs import TABLE_FUNCTIONS
from ncc_runtime.neff.work.tensor_engine import product_cycles, reads_of_product
from ncc_runtime.neff.work.work import SBUF_BYTES, Mode, Work

F32, BF16, S32, PRED, F8 = DType.F32, DType.BF16, DType.S32, DType.PRED, DType.F8E4M3
FULL, NARROW, PAIR = Mode.FULL, Mode.NARROW, Mode.NARROW_PAIR
DOT = {"lhs_batch": (), "rhs_batch": (), "lhs_contracting": (1,), "rhs_contracting": (0,)}

Kind = tuple[DType, tuple[int, ...]]


def folding(opcode: str) -> Region:
    return Region(opcode, (F32, F32), (RegionInstr(opcode, (0, 1), F32),), (2,))


REGIONS = (folding("add"), folding("maximum"))
SUM, MOST = 0, 1


class Rows:
    """A fusion that grows row by row."""

    def __init__(self, *parameters: Kind) -> None:
        self.values = [ValueType(*kind) for kind in parameters]
        self.parameters = len(parameters)
        self.body: list[FusedInstr] = []

    def row(
        self,
        opcode: str,
        operands: Sequence[int],
        kind: Kind,
        **attributes,
    ) -> int:
        self.values.append(ValueType(*kind))
        number = len(self.values) - 1
        self.body.append(FusedInstr(opcode, (number,), tuple(operands), attributes))
        return number

    def same(self, opcode: str, *operands: int) -> int:
        return self.row(opcode, operands, _kind(self.values[operands[0]]))

    def number(self, value: str, shape: tuple[int, ...], dtype: DType = F32) -> int:
        """A constant, broadcast."""
        scalar = self.row(CONSTANT, (), (dtype, ()))
        self.body[-1] = FusedInstr(CONSTANT, (scalar,), constant=value)
        return self.row("broadcast", (scalar,), (dtype, shape), dimensions=())

    def reduced(self, value: int, region: int, dimensions: tuple[int, ...]) -> int:
        zero = self.row(CONSTANT, (), (F32, ()))
        self.body[-1] = FusedInstr(CONSTANT, (zero,), constant="0")
        shape = self.values[value].shape
        kept = tuple(size for at, size in enumerate(shape) if at not in dimensions)
        kind = (self.values[value].dtype, kept)
        return self.row("reduce", (value, zero), kind, dimensions=dimensions, region=region)

    def over_rows(self, value: int, shape: tuple[int, ...]) -> int:
        """One number a row, for every element of it."""
        kind = (self.values[value].dtype, shape)
        return self.row("broadcast", (value,), kind, dimensions=tuple(range(len(shape) - 1)))

    def fusion(self, *results: int) -> Fusion:
        return Fusion("f", tuple(self.values), self.parameters, tuple(self.body), results)

    def work(self, *results: int) -> Work:
        return work_of_fusion(self.fusion(*results), REGIONS)


def _kind(value: ValueType) -> Kind:
    return value.dtype, value.shape


def alone(
    opcode: str,
    operands: Sequence[Kind],
    result: Kind,
    *,
    queue: Engine = Engine.VECTOR,
    is_in_place: bool = False,
    **attributes,
) -> Work:
    """The work of an instruction that is no fusion."""
    values = [ValueType(*kind) for kind in (*operands, result)]
    count = len(operands)
    row = FusedInstr(opcode, (count,), tuple(range(count)), attributes)
    if queue is Engine.SYNC:
        return work_of_move(row, values, is_in_place)
    return work_of_rows(Dataflow(values, count, (row,), (count,), REGIONS, queue))


def lanes(work: Work) -> list[Mapping[tuple[Engine, Mode], int]]:
    return [phase.lanes for phase in work.phases]


# Products


@pytest.mark.parametrize(
    ("sizes", "cycles"),
    [
        ((4096, 8192, 8192), 64 * 64 * 4096),  # 512 columns through 32,768 tiles
        ((1, 4096, 4096), 32 * 32 * 64),  # a vector moves through the matrix: 64 cycles a tile
        ((1, 128, 128), 64),
        ((8, 100, 200), 64 + 64),  # 2 tiles of 100 x 128 and of 100 x 72, 8 columns each
        ((512, 128, 1), min(512, 4 * 64)),  # the vector is moved, not loaded
        ((640, 128, 128), 512 + 128),
    ],
)
def test_a_product_goes_through_the_array_in_tiles(
    sizes: tuple[int, int, int], cycles: int
) -> None:
    assert product_cycles(*sizes) == cycles


@given(sizes=st.tuples(*[st.integers(1, 2000)] * 3), at=st.integers(0, 2))
def test_a_larger_product_never_takes_fewer_cycles(sizes: tuple[int, ...], at: int) -> None:
    larger = [size + (place == at) for place, size in enumerate(sizes)]
    assert product_cycles(*sizes) <= product_cycles(*larger)
    m, k, n = sizes
    assert product_cycles(m, k, n) == product_cycles(n, k, m)
    assert product_cycles(m, k, n) * 128 * 128 >= m * k * n


def test_an_operand_that_fits_into_half_of_sbuf_stays_there() -> None:
    half = SBUF_BYTES // 2
    assert reads_of_product(4096, 8192, half, 100 * half) == (1, 1)
    assert reads_of_product(4096, 8192, 2 * half, 2 * half) in ((1, 2), (2, 1))


def test_what_is_read_again_is_as_little_as_can_be() -> None:
    # 64 MiB x 128 MiB, bf16: 6 blocks of the left one, or 5 x 3 of sums of 1,773 x 1,773
    work = alone("dot", [(BF16, (4096, 8192)), (BF16, (8192, 8192))], (BF16, (4096, 8192)), **DOT)
    left, right = 64 << 20, 128 << 20
    assert work.bytes_read == min(left + 6 * right, 11 * left + right, 5 * left + 3 * right)
    assert work.bytes_written == left


S8 = DType.S8


@pytest.mark.parametrize(
    ("stored", "cast", "computed"),
    [
        ((BF16, F32), (F32, F32), F32),  # as wide as the wider one, whichever side it is on
        ((F32, BF16), (F32, F32), F32),
        ((F8, BF16), (BF16, BF16), BF16),
        ((BF16, F8), (BF16, BF16), BF16),
        ((BF16, BF16), (F32, F32), BF16),  # bfloat16 products are exact in float32
        ((BF16, F32), (BF16, BF16), BF16),  # weights in float32 are cast as they are loaded
        ((F32, BF16), (BF16, BF16), BF16),
        ((S8, BF16), (BF16, BF16), BF16),  # integers are not multiplied as they are
        ((BF16, S8), (BF16, BF16), BF16),
    ],
)
def test_a_product_is_computed_in_the_wider_type_of_what_it_reads(
    stored: tuple[DType, DType], cast: tuple[DType, DType], computed: DType
) -> None:
    shape = (256, 256)
    rows = Rows(*((dtype, shape) for dtype in stored))
    operands = [
        value if before is after else rows.row("convert", (value,), (after, shape))
        for value, (before, after) in enumerate(zip(stored, cast, strict=True))
    ]
    (phase,) = rows.work(rows.row("dot", operands, (F32, shape), **DOT)).phases
    assert phase.passes == {computed: product_cycles(256, 256, 256)}


def test_a_product_alone_is_copied_out_of_psum_by_the_quieter_engine() -> None:
    work = alone("dot", [(F32, (64, 128)), (F32, (128, 64))], (F32, (64, 64)), **DOT)
    (phase,) = work.phases
    assert phase.passes == {F32: 64}
    assert phase.lanes == {(Engine.SCALAR, FULL): 64 * 64}


# Vector and Scalar


@pytest.mark.parametrize(
    ("opcode", "operands", "result", "cycles"),
    [
        ("negate", 1, F32, {(Engine.VECTOR, FULL): 1}),
        ("add", 2, F32, {(Engine.VECTOR, FULL): 2}),
        ("select", 3, F32, {(Engine.VECTOR, FULL): 3}),
        ("negate", 1, BF16, {(Engine.VECTOR, NARROW): 1}),
        ("add", 2, BF16, {(Engine.VECTOR, PAIR): 2}),
        ("maximum", 2, BF16, {(Engine.VECTOR, FULL): 2}),
        ("divide", 2, F32, {(Engine.VECTOR, FULL): 10}),  # 8 of the reciprocal, 2 to multiply
        ("add", 2, DType.F64, {(Engine.VECTOR, FULL): 4}),
    ],
)
def test_an_elementwise_instruction_takes_a_cycle_for_each_array(
    opcode: str, operands: int, result: DType, cycles: Mapping[tuple[Engine, Mode], int]
) -> None:
    kind = (result, (128, 1000))
    work = alone(opcode, [kind] * operands, kind)
    assert lanes(work) == [{key: 128_000 * times for key, times in cycles.items()}]


def test_a_cast_to_one_byte_is_half_as_quick_as_one_to_two() -> None:
    rows = Rows((BF16, (128, 512)))
    doubled = rows.same("multiply", 0, rows.number("2", (128, 512), BF16))
    work = rows.work(rows.row("convert", (doubled,), (F8, (128, 512))))
    assert lanes(work) == [{(Engine.VECTOR, PAIR): 128 * 512}]


def test_a_square_of_an_array_reads_one_array() -> None:
    rows = Rows((F32, (128, 512)))
    assert lanes(rows.work(rows.same("multiply", 0, 0))) == [{(Engine.VECTOR, FULL): 128 * 512}]


def test_two_operations_with_numbers_are_one_instruction() -> None:
    rows = Rows((F32, (128, 512)))
    scaled = rows.same("multiply", 0, rows.number("2", (128, 512)))
    shifted = rows.same("add", scaled, rows.number("3", (128, 512)))
    once = 128 * 512
    assert lanes(rows.work(shifted)) == [{(Engine.VECTOR, FULL): once}]
    third = rows.same("multiply", shifted, rows.number("5", (128, 512)))
    assert lanes(rows.work(third)) == [{(Engine.VECTOR, FULL): 2 * once}]


def test_scalar_scales_and_shifts_before_a_function_for_nothing() -> None:
    rows = Rows((F32, (128, 512)))
    scaled = rows.same("multiply", 0, rows.number("2", (128, 512)))
    work = rows.work(rows.same("tanh", scaled))
    assert lanes(work) == [{(Engine.SCALAR, FULL): 128 * 512}]


def test_casts_of_what_an_engine_reads_or_writes_are_free() -> None:
    rows = Rows((BF16, (128, 512)))
    wide = rows.row("convert", (0,), (F32, (128, 512)))
    function = rows.same("tanh", wide)
    work = rows.work(rows.row("convert", (function,), (BF16, (128, 512))))
    assert lanes(work) == [{(Engine.SCALAR, NARROW): 128 * 512}]
    only_cast = Rows((F32, (128, 512)))
    work = only_cast.work(only_cast.row("convert", (0,), (BF16, (128, 512))))
    assert lanes(work) == [{(Engine.VECTOR, FULL): 128 * 512}]


# Reductions


def softmax(rows: int, columns: int) -> Rows:
    shape = (rows, columns)
    body = Rows((F32, shape))
    most = body.reduced(0, MOST, (1,))
    shifted = body.same("subtract", 0, body.over_rows(most, shape))
    powers = body.same("exponential", shifted)
    total = body.reduced(powers, SUM, (1,))
    body.same("divide", powers, body.over_rows(total, shape))
    return body


def test_softmax_has_three_phases_and_its_sums_cost_nothing() -> None:
    body = softmax(256, 1000)
    work = body.work(len(body.values) - 1)
    once = 256 * 1000
    assert lanes(work) == [
        {(Engine.VECTOR, FULL): once},  # the largest of each row
        {(Engine.SCALAR, FULL): once},  # the powers, less it as bias, and their sums
        {(Engine.VECTOR, FULL): once},  # times one over the sum: one number a row
    ]
    assert work.bytes_read == work.bytes_written == 4 * once


def test_a_few_rows_that_must_lie_in_one_partition_each_take_as_long_as_128() -> None:
    body = softmax(2, 8192)
    assert lanes(body.work(len(body.values) - 1))[0] == {(Engine.VECTOR, FULL): 128 * 8192}


@pytest.mark.parametrize(("dtype", "times"), [(BF16, 1), (F32, 1), (DType.F64, 2), (DType.C128, 4)])
def test_wide_elements_are_moved_inside_of_a_fusion_as_several(dtype: DType, times: int) -> None:
    rows = Rows((dtype, (256, 256)))
    cut = rows.row("reverse", (0,), (dtype, (256, 256)), dimensions=(1,))
    work = rows.work(rows.same("negate", cut))
    copied, negated = times * 256 * 256, times * 256 * 256
    assert sum(lanes(work)[0].values()) == copied + negated


def test_a_sum_over_partitions_is_a_product_with_ones() -> None:
    body = Rows((F32, (1000, 512)))
    (phase,) = body.work(body.reduced(body.same("negate", 0), SUM, (0,))).phases
    assert phase.passes == {F32: product_cycles(1, 1000, 512)}


def test_rows_too_long_for_sbuf_are_read_in_every_phase() -> None:
    short, long = softmax(4, 100_000), softmax(4, 4_000_000)
    assert short.work(len(short.values) - 1).bytes_read == 4 * 4 * 100_000
    assert long.work(len(long.values) - 1).bytes_read == 3 * 4 * 4 * 4_000_000


# Attention


def test_a_causal_mask_is_compared_and_filled_by_gpsimd() -> None:
    shape = (256, 256)
    body = Rows((F32, shape))
    down = body.row("iota", (), (S32, shape), iota_dimension=0)
    across = body.row("iota", (), (S32, shape), iota_dimension=1)
    seen = body.row("compare", (down, across), (PRED, shape), direction="GE")
    masked = body.row("select", (seen, 0, body.number("-1e9", shape)), (F32, shape))
    assert lanes(body.work(masked)) == [{(Engine.GPSIMD, FULL): 256 * 256 + 2 * 256}]


# Moves


def test_a_move_is_one_dma_from_memory_to_memory() -> None:
    kind = (F32, (64, 64))
    work = alone("copy", [kind], kind, queue=Engine.SYNC)
    assert (work.phases, work.starts, work.traffic) == ((), 1, 2 * 64 * 64 * 4)


def test_short_runs_of_bytes_take_as_long_as_512() -> None:
    whole, part = (BF16, (1000, 256)), (BF16, (1000, 64))
    box = {"start": (0, 0), "limit": (1000, 64), "stride": (1, 1)}
    work = alone("slice", [whole], part, queue=Engine.SYNC, **box)
    assert work.bytes_read == 1000 * 128  # rows of 128 bytes
    assert work.dma_read == work.dma_written == 1000 * 512


def test_an_update_in_place_moves_only_itself() -> None:
    array, update, start = (BF16, (8192, 128)), (BF16, (1, 128)), (S32, ())
    kinds = [array, update, start, start]
    in_place = alone("dynamic-update-slice", kinds, array, queue=Engine.SYNC, is_in_place=True)
    copied = alone("dynamic-update-slice", kinds, array, queue=Engine.SYNC)
    assert in_place.traffic == 2 * 256
    assert copied.traffic == 2 * (256 + 8192 * 256)


def test_a_transposition_of_elements_goes_through_the_array() -> None:
    work = alone(
        "transpose",
        [(BF16, (1024, 512))],
        (BF16, (512, 1024)),
        queue=Engine.SYNC,
        dimensions=(1, 0),
    )
    (phase,) = work.phases
    assert phase.passes == {BF16: 8 * 4 * 128}
    rows = alone(
        "transpose",
        [(BF16, (64, 32, 1, 512))],
        (BF16, (32, 64, 512, 1)),
        queue=Engine.SYNC,
        dimensions=(1, 0, 3, 2),
    )
    assert rows.phases == ()  # runs of 1 KiB; dimensions of one element do not count


# All fusions


@pytest.mark.parametrize(("opcode", "engine"), [("tanh", Engine.SCALAR), ("negate", Engine.VECTOR)])
def test_a_fusion_stands_in_the_queue_of_the_engine_that_works_longest(
    opcode: str, engine: Engine
) -> None:
    rows = Rows((F32, (128, 512)))
    assert engine_of(rows.work(rows.same(opcode, 0)).phases) is engine


def test_counters_are_registers_of_a_sequencer() -> None:
    rows = Rows((S32, ()), (S32, ()))
    assert rows.work(rows.same("add", 0, 1)).starts == 0


CHAINS = st.lists(
    st.sampled_from(["negate", "tanh", "exponential", "add", "multiply", "maximum"]),
    min_size=1,
    max_size=8,
)


def chain(opcodes: Sequence[str], shape: tuple[int, ...], dtype: DType, *, is_normed: bool) -> Rows:
    """Each operation on the last one's result, pairs of it and the parameter."""
    rows = Rows((dtype, shape))
    value = 0
    for opcode in opcodes:
        operands = (value, 0) if opcode in ("add", "multiply", "maximum") else (value,)
        value = rows.same(opcode, *operands)
    if is_normed:
        total = rows.reduced(value, SUM, (len(shape) - 1,))
        rows.same("multiply", value, rows.over_rows(total, shape))
    return rows


@given(
    opcodes=CHAINS,
    rows=st.integers(1, 3000),
    columns=st.integers(1, 3000),
    more=st.tuples(st.integers(0, 500), st.integers(0, 500)),
    dtype=st.sampled_from([F32, BF16]),
    is_normed=st.booleans(),
)
@settings(max_examples=60)
def test_more_work_is_never_faster(
    opcodes: list[str],
    rows: int,
    columns: int,
    more: tuple[int, int],
    dtype: DType,
    is_normed: bool,
) -> None:
    def time(shape: tuple[int, int]) -> int:
        body = chain(opcodes, shape, dtype, is_normed=is_normed)
        return duration_of(body.work(len(body.values) - 1), GENERIC).ps

    assert time((rows, columns)) <= time((rows + more[0], columns + more[1]))


@given(
    opcodes=CHAINS,
    rows=st.integers(1, 3000),
    columns=st.integers(1, 3000),
    dtype=st.sampled_from([F32, BF16]),
    is_normed=st.booleans(),
)
@settings(max_examples=60)
def test_a_fusion_is_never_slower_than_its_rows_one_after_the_other(
    opcodes: list[str], rows: int, columns: int, dtype: DType, is_normed: bool
) -> None:
    """Of elementwise operations and sums. A largest element binds rows to partitions, which is
    dear for few long rows."""
    body = chain(opcodes, (rows, columns), dtype, is_normed=is_normed)
    whole = duration_of(body.work(len(body.values) - 1), GENERIC).ps
    apart = 0
    for row in body.body:
        if row.opcode in (CONSTANT, "broadcast"):
            continue
        operands = [_kind(body.values[value]) for value in row.operands]
        queue = Engine.SCALAR if row.opcode in TABLE_FUNCTIONS else Engine.VECTOR
        result = _kind(body.values[row.results[0]])
        work = alone(row.opcode, operands, result, queue=queue, **row.attributes)
        apart += duration_of(work, GENERIC).ps
    assert whole <= apart


def test_tiles_bound_what_is_loaded_before_work_begins() -> None:
    rows = Rows((F32, (4096, 4096)))
    work = rows.work(rows.same("tanh", 0))
    assert work.tile == Fraction(128 * 512, 4096 * 4096)
    body = softmax(4096, 4096)
    assert body.work(len(body.values) - 1).tile == Fraction(128, 4096)
    assert math.isclose(float(work.tile), 1 / 256)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_what_reads_one_array_twice_is_not_priced_as_what_reads_two(order: tuple[int, int]) -> None:
    pairs = ["x, x", "x, y"]
    first, second = (f"(f32[8], f32[8]) reduce({pairs[k]}, z, z)" for k in order)
    text = f"""HloModule m
      sums {{
        a = f32[] parameter(0)  b = f32[] parameter(1)  c = f32[] parameter(2)
        d = f32[] parameter(3)  s = f32[] add(a, c)  t = f32[] add(b, d)
        ROOT r = (f32[], f32[]) tuple(s, t)
      }}
      ENTRY e {{
        x = f32[8,900] parameter(0)  y = f32[8,900] parameter(1)  z = f32[] constant(0)
        p = {first}, dimensions={{1}}, to_apply=sums
        q = {second}, dimensions={{1}}, to_apply=sums
        ROOT r = ((f32[8], f32[8]), (f32[8], f32[8])) tuple(p, q)
      }}"""
    program = ncc_compiler.compile_text(text, options=CompileOptions(level=0)).program
    (engine,) = (
        engine for engine, table in program.queues.items() if "reduce" in table.opcode_names
    )
    works, index = works_of(program, engine, program.queues[engine])
    read = [works[number].bytes_read for number in index[:2].tolist()]
    array, zero = 8 * 900 * 4, 4
    assert read == [(array, 2 * array)[k] + zero for k in order]
