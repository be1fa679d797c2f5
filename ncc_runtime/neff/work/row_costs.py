"""Which engine does each row of an instruction, and in how many cycles."""

from collections.abc import Sequence

import attrs

from ncc_runtime.neff.isa import OPCODES, Engine, Shape
from ncc_runtime.neff.program import FusedInstr
from ncc_runtime.neff.work.dataflow import Access, Dataflow
from ncc_runtime.neff.work.moves import MOVES
from ncc_runtime.neff.work.tensor_engine import (
    is_product_row,
    product_cycles,
    reads_of_product,
    sizes_of_product,
    transposing_cycles,
)
from ncc_runtime.neff.work.work import Mode

TABLE_FUNCTIONS = frozenset(
    {
        *("acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "cbrt", "cosh", "cosine"),
        *("erf", "exponential", "exponential-minus-one", "log", "log-plus-one", "logistic"),
        *("power", "rsqrt", "sine", "sinh", "sqrt", "tan", "tanh"),
    }
)
"""What the Scalar engine looks up in tables; any takes a cycle an element (nki_perf_guide.rst)."""

_ALU = frozenset(
    {
        *("abs", "add", "and", "compare", "maximum", "minimum", "multiply", "negate", "not", "or"),
        *("shift-left", "shift-right-arithmetic", "shift-right-logical", "subtract", "xor"),
    }
)
"""What the Vector engine does two of, one after the other, in the time of one (tensor_scalar)."""

_AFFINE = frozenset({"add", "multiply", "subtract", "negate"})
"""What the Scalar engine does to its input for nothing: function(in * scale + bias)."""

_NARROW_PAIRS = frozenset({"add", "multiply", "subtract"})
"""Operations of two arrays that are quicker with narrow floats (tensor_tensor)."""

_INTEGER_PAIRS = frozenset({"add", "divide", "multiply", "power", "remainder", "subtract"})
"""What GpSimd does with two arrays of integers of 32 bits and more, for Vector is not exact."""

RECIPROCAL_CYCLES = 8
"""Lane cycles of an element's reciprocal on the Vector engine."""


@attrs.define
class RowCost:
    """What one row takes."""

    engine: Engine
    cycles: int  # of lanes, or of the Tensor engine's array
    mode: Mode = Mode.FULL
    inputs: int = 0
    is_joined: bool = False  # has a second operation already
    is_copy: bool = False  # out of PSUM, which Scalar does as well as Vector


Costs = Sequence[RowCost | None]
"""What each row takes, None where another one does its work or there is none."""


class EngineCosts:
    """What each row of a dataflow costs, rows in order; a later one may do an earlier one's work.

    `costs` has None for rows that cost nothing; `reads` how often products read each value.
    """

    def __init__(self, flow: Dataflow) -> None:
        self._flow = flow
        self.costs: list[RowCost | None] = [None] * len(flow.rows)
        self.reads = [0] * len(flow.values)
        for number, row in enumerate(flow.rows):
            self._cost(number, row)

    def _cost(self, number: int, row: FusedInstr) -> None:
        if self._flow.is_free(row):
            return
        shape = OPCODES[row.opcode].shape
        if is_product_row(row):
            self.costs[number] = self._product(row)
        elif row.opcode == "reduce":
            self.costs[number] = self._reduction(row)
        elif row.opcode in MOVES - {"copy"}:
            self.costs[number] = self._rearrangement(row)
        elif shape in (Shape.UNARY, Shape.BINARY, Shape.TERNARY, Shape.MAP):
            self.costs[number] = self._elementwise(row)
        elif row.opcode == "broadcast":
            self.costs[number] = self._walk(Engine.VECTOR, row, 1)
        elif row.opcode == "iota" and self._flow.is_fused:
            dimension = row.attributes["iota_dimension"]
            assert isinstance(dimension, int), row.opcode
            self.costs[number] = RowCost(Engine.GPSIMD, self._flow.shape(row.results[0])[dimension])
        else:
            self.costs[number] = RowCost(self._or_queue(Engine.GPSIMD), self._walked(row))

    def _walked(self, row: FusedInstr) -> int:
        """Elements that a method walks over, as the compiler counts them."""
        return self._flow.counted or sum(
            self._flow.values[result].elements for result in row.results
        )

    def _or_queue(self, engine: Engine) -> Engine:
        """An instruction alone runs on the engine of its queue, if that computes."""
        if self._flow.queue in (Engine.VECTOR, Engine.SCALAR, Engine.GPSIMD):
            return self._flow.queue
        return engine

    def _walk(self, engine: Engine, row: FusedInstr, cycles: int) -> RowCost:
        """An engine that takes so many cycles for each element of the result."""
        arrays, result = self._flow.arrays(row), row.results[0]
        widest = max(self._flow.stored[value].size_bytes for value in (*arrays, result))
        lanes = self._flow.elements_of(result) * cycles * max(1, widest // 4)
        return RowCost(self._or_queue(engine), lanes, self._mode(row, arrays), len(arrays))

    def _mode(self, row: FusedInstr, arrays: Sequence[int]) -> Mode:
        kinds = [self._flow.stored[value] for value in (*arrays, row.results[0])]
        for kind in kinds:
            if kind.size_bytes > 2 or not kind.is_float:
                return Mode.FULL
        is_two_bytes = all(kind.size_bytes == 2 for kind in kinds)
        if len(arrays) <= 1:
            return Mode.NARROW if is_two_bytes else Mode.NARROW_PAIR
        is_pair = len(arrays) == 2 and row.opcode in _NARROW_PAIRS and is_two_bytes
        return Mode.NARROW_PAIR if is_pair else Mode.FULL

    def _elementwise(self, row: FusedInstr) -> RowCost:
        arrays = self._flow.arrays(row)
        kind = self._flow.values[row.operands[0]].dtype
        if row.opcode in TABLE_FUNCTIONS:
            # a power is exp(y * log(x)), a table each; so is an angle of two coordinates (assumed)
            cost = self._walk(Engine.SCALAR, row, 2 if row.opcode in ("power", "atan2") else 1)
            self._join_affine(arrays)
            return cost
        if row.opcode == "divide" and not kind.is_integer and self._divides_by_array(row):
            cycles = RECIPROCAL_CYCLES + (2 if len(arrays) == 2 else 0)
            return self._walk(Engine.VECTOR, row, cycles)
        if row.opcode == "select" and self._is_causal(row):
            maker = self._flow.alone(row.operands[0])
            assert maker is not None, row.opcode
            self.costs[maker] = None
            return self._walk(Engine.GPSIMD, row, 1)
        if row.opcode == "map":
            region = self._flow.region(row)
            return self._walk(Engine.VECTOR, row, max(1, len(arrays)) * max(1, len(region.body)))
        is_integer_pair = len(arrays) == 2 and row.opcode in _INTEGER_PAIRS and kind.is_integer
        if is_integer_pair and kind.size_bytes >= 4:
            return self._walk(Engine.GPSIMD, row, 1)
        cost = self._walk(Engine.VECTOR, row, max(1, len(arrays)))
        if self._is_alu(row):
            self._join_alu(cost, arrays)
        if self._is_affine(row) and len(arrays) == 1 and self._flow.is_fused:
            maker = self._flow.maker.get(self._flow.view[arrays[0]])
            cost.is_copy = maker is not None and is_product_row(self._flow.rows[maker])
        return cost

    def _divides_by_array(self, row: FusedInstr) -> bool:
        return self._flow.access[row.operands[1]] is Access.ARRAY

    def _is_alu(self, row: FusedInstr) -> bool:
        return row.opcode in _ALU or (row.opcode == "divide" and not self._divides_by_array(row))

    def _is_affine(self, row: FusedInstr) -> bool:
        return row.opcode in _AFFINE or (row.opcode == "divide" and not self._divides_by_array(row))

    def _is_causal(self, row: FusedInstr) -> bool:
        """Whether a mask compares positions: GpSimd compares and selects at once (affine_select).

        Source: nki_perf_guide.rst, which has it do causal masks.
        """
        maker = self._flow.alone(row.operands[0])
        if maker is None or not self._flow.is_fused or self._flow.rows[maker].opcode != "compare":
            return False
        is_filled = any(self._flow.access[value] is Access.IMMEDIATE for value in row.operands[1:])
        return is_filled and all(
            self._flow.values[value].dtype.is_integer
            and self._flow.maker.get(value) is not None
            and self._flow.rows[self._flow.maker[value]].opcode in ("broadcast", "iota")
            for value in self._flow.rows[maker].operands
        )

    def _join_alu(self, cost: RowCost, arrays: Sequence[int]) -> None:
        """An operation with a number, then another one: one instruction with two ALU stages.

        tensor_scalar where both have one array, scalar_tensor_tensor where the second has two.
        """
        for value in arrays:
            maker = self._flow.alone(value)
            earlier = None if maker is None else self.costs[maker]
            if (
                maker is not None
                and earlier is not None
                and earlier.engine is Engine.VECTOR
                and cost.engine is Engine.VECTOR
                and earlier.inputs == 1
                and not earlier.is_joined
                and self._is_alu(self._flow.rows[maker])
                and len(arrays) <= 2
            ):
                self.costs[maker], cost.is_joined = None, True
                return

    def _join_affine(self, arrays: Sequence[int]) -> None:
        """A scale and a bias, each one number or one a row, before a function of Scalar."""
        steps = 0
        while len(arrays) == 1 and steps < 2:
            maker = self._flow.alone(arrays[0])
            if maker is None or not self._is_affine(self._flow.rows[maker]):
                return
            row = self._flow.rows[maker]
            arrays = self._flow.arrays(row)
            if len(arrays) != 1 or row.operands.count(arrays[0]) > 1:
                return
            self.costs[maker] = None
            steps += 1

    def _reduction(self, row: FusedInstr) -> RowCost | None:
        """A fold: by Vector along rows, by products with ones over partitions, else by GpSimd."""
        operand, result = row.operands[0], row.results[0]
        body = self._flow.region(row).body
        elements = self._flow.elements_of(operand)
        if len(body) != 1 or len(row.results) > 1:
            cycles = elements * len(row.results) * max(1, len(body))
            return RowCost(self._or_queue(Engine.GPSIMD), cycles)
        is_sum = self._flow.is_sum(row)
        if self._flow.is_along_rows(row):
            if is_sum and self._sums_for_nothing(operand):
                return None
            cost = self._walk(Engine.VECTOR, row, 1)
            cost.cycles = elements * max(1, self._flow.stored[operand].size_bytes // 4)
            kind = self._flow.stored[operand]
            is_narrow = kind.is_float and kind.size_bytes == 2
            is_pair = is_narrow and self._flow.stored[result].size_bytes == 2
            is_quick = is_pair and body[0].opcode in ("add", "maximum")
            cost.mode, cost.inputs = Mode.NARROW_PAIR if is_quick else Mode.FULL, 0
            return cost
        kind = self._flow.stored[operand]
        if is_sum and kind.is_float:
            kept = self._flow.values[result].elements
            cycles = product_cycles(1, elements // max(1, kept), kept)
            return RowCost(Engine.TENSOR, cycles)
        return RowCost(self._or_queue(Engine.VECTOR), 2 * elements * max(1, kind.size_bytes // 4))

    def _sums_for_nothing(self, operand: int) -> bool:
        """Whether Scalar adds up along rows what it computes (activation_reduce).

        A square is a function of its own: it goes there if it is summed.
        """
        source = self._flow.view[operand]
        maker = self._flow.maker.get(source)
        cost = None if maker is None else self.costs[maker]
        if maker is None or cost is None or not self._flow.is_fused:
            return False
        row, is_alone = self._flow.rows[maker], self._flow.uses[source] == 1
        operands = {self._flow.view[operand] for operand in row.operands}
        is_square = row.opcode == "multiply" and len(operands) == 1
        if is_square and is_alone:
            lanes = self._flow.elements_of(row.results[0])
            self.costs[maker] = RowCost(Engine.SCALAR, lanes, cost.mode, 1)
            return True
        return cost.engine is Engine.SCALAR

    def _product(self, row: FusedInstr) -> RowCost:
        batch, m, k, n = sizes_of_product(row, self._flow.values)
        left, right = (
            self._flow.values[operand].size_bytes // max(1, batch) for operand in row.operands[:2]
        )
        times = reads_of_product(m, n, left, right)
        for operand, reads in zip(row.operands, times, strict=False):
            self.reads[operand] = max(self.reads[operand], reads)
        return RowCost(Engine.TENSOR, batch * product_cycles(m, k, n))

    def _rearrangement(self, row: FusedInstr) -> RowCost:
        """A move inside of a fusion: Vector copies, and Tensor transposes."""
        result = self._flow.values[row.results[0]]
        if row.opcode == "transpose" and (cycles := transposing_cycles(row, self._flow.values)):
            return RowCost(Engine.TENSOR, cycles)
        return RowCost(Engine.VECTOR, result.elements * max(1, result.dtype.size_bytes // 4))
