"""The work of an instruction, read off the program: what each engine does, and what DMA moves.

An instruction loads its operands into SBUF tile by tile, works on them, and stores its results. A
*phase* is work that must end before the next begins: a mean over a row before what uses it. In a
phase all engines work at once, as they do in fusions with matrix products, whose phases overlap
from tile to tile (software pipelining). Nothing here depends on a topology: engines' work is in
*lane cycles*, one for each element that one of 128 lanes goes over at full width, and in passes of
a 128 x 128 array. `machine_model/compute.py` turns work into picoseconds.

Rules and figures: AWS Neuron SDK docs, the cost formulas of nki/api/nki/isa (tag v2.26.1), the
guides of nki/guides/architecture, and nki/deep-dives/nki_perf_guide.rst. docs/timing.md has the
arithmetic of an example for each rule.
"""

import enum
import math
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction

import attrs
import numpy as np

from ncc_runtime.neff.isa import FUSION, OPCODES, Engine, Shape
from ncc_runtime.neff.program import (
    CONSTANT,
    AttributeValue,
    FusedInstr,
    Fusion,
    Program,
    Region,
    Typed,
)
from ncc_runtime.neff.shared.dtypes import DType
from ncc_runtime.neff.shared.windows import read_labels
from ncc_runtime.neff.table import NONE, Instr, InstrTable

LANES = 128
"""Partitions of SBUF, rows and columns of the Tensor engine's array."""

MOVING_COLUMNS = 512
"""Columns that one instruction of the Tensor engine moves through the array at most."""

LEAST_CYCLES = 64
"""Cycles of the shortest instruction of an engine. Source: the cost formulas, MIN_II."""

SBUF_BYTES = 24 << 20
"""SBUF of the smallest core, NeuronCore-v2. Half holds a tile, half the next one (assumed)."""

TILE_COLUMNS = 512
"""Elements of a partition in a tile that need not hold whole rows: 2 KiB of float32, from where
DMA is near its peak (nki-dma-bandwidth-guide.rst)."""

DMA_ROW_BYTES = 512
"""A DMA takes as long for a shorter run of bytes as for these (assumed: nki-dma-overview.rst calls
512 bytes and more efficient)."""


class Mode(enum.Enum):
    """How an engine goes over elements: some are quicker with narrow floats where they lie right.

    Source: trainium2_arch.rst, performance modes of the Vector engine.
    """

    FULL = "full"  # an element a lane and cycle
    NARROW = "narrow"  # one input, 2-byte floats in and out
    NARROW_PAIR = "narrow pair"  # two inputs of 2-byte floats, or one and a result of 1 byte


@attrs.frozen
class Phase:
    """Work that goes on at once, and ends before that of the next phase begins."""

    lanes: Mapping[tuple[Engine, Mode], int]  # elements, each times the cycles it takes a lane
    passes: Mapping[DType, int]  # cycles of the array, by the dtype of what is multiplied
    chain: Mapping[Engine, int]  # instructions that wait for one another, by their engines


@attrs.frozen
class Work:
    """What one instruction does."""

    phases: tuple[Phase, ...]
    bytes_read: int  # from HBM, as often as they are
    bytes_written: int
    dma_read: int  # bytes_read, short runs counted as DMA_ROW_BYTES
    dma_written: int
    tile: Fraction  # the share of the whole that is loaded before work begins
    starts: int  # of DMAs that wait for one another: 2 for load and store, 1 for a move in HBM
    tables: int = 0  # changes of the Scalar engine's function table that nothing hides
    overlaps: bool = False  # phases of different tiles overlap

    @property
    def traffic(self) -> int:
        """Bytes to and from HBM."""
        return self.bytes_read + self.bytes_written


NOTHING = Work((), 0, 0, 0, 0, Fraction(1), 0)


# Instructions of a queue


def works_of(program: Program, engine: Engine, table: InstrTable) -> tuple[list[Work], np.ndarray]:
    """The different works of a queue's instructions, and the number of each instruction's, (n,).

    Instructions of one opcode, one row of attributes and the same types do the same work.
    """
    is_method = [_is_counted(name) for name in table.opcode_names]
    starts, tensors, elements = (
        table.start.tolist(),
        table.tensors.tolist(),
        table.elements.tolist(),
    )
    kinds: dict[tuple[DType, tuple[int, ...]], int] = {}
    kind: dict[int, int] = {}  # of the tensors that are used: a program may have many more
    for tensor in dict.fromkeys(tensors):
        view = program.tensors[tensor]
        kind[tensor] = kinds.setdefault((view.dtype, view.shape), len(kinds))
    columns = (table.opcode, table.attribute, table.result_count)
    numbers: dict[object, int] = {}
    works: list[Work] = []
    index = np.empty(len(table), np.int64)
    for row, (opcode, attribute, results) in enumerate(
        zip(*(column.tolist() for column in columns), strict=True)
    ):
        first, last = starts[row], starts[row + 1]
        used = tensors[first:last]
        operands = used[results:]
        # a product of an array with itself reads one array
        same = tuple(map(operands.index, operands)) if 1 < len(operands) < 4 else ()
        key = (
            *(opcode, attribute, results, same, tuple([kind[tensor] for tensor in used])),
            elements[row] if is_method[opcode] else 0,
            table.opcode_names[opcode] in _UPDATES
            and program.address(operands[0]) == program.address(used[0]),
        )
        number = numbers.setdefault(key, len(works))
        if number == len(works):
            works.append(_work_of(program, engine, table[row]))
        index[row] = number
    return works, index


_UPDATES = frozenset({"dynamic-update-slice", "scatter"})


def _is_in_place(program: Program, instr: Instr) -> bool:
    """Whether an update writes where its array is, and so moves no more than itself."""
    return program.address(instr.operands[0]) == program.address(instr.results[0])


def _is_counted(opcode: str) -> bool:
    """Whether only the compiler knows over how many elements an instruction walks."""
    is_window = opcode in ("reduce-window", "select-and-scatter", "scatter", "sort", "topk")
    return is_window or OPCODES[opcode].shape is Shape.METHOD


def _work_of(program: Program, engine: Engine, instr: Instr) -> Work:
    if OPCODES[instr.opcode].shape is Shape.CONTROL or not instr.operands + instr.results:
        return NOTHING
    attributes = program.attributes[instr.attribute] if instr.attribute != NONE else {}
    if instr.opcode == FUSION:
        number = attributes["fusion"]
        assert isinstance(number, int), instr.opcode
        return work_of_fusion(program.fusions[number], program.regions)
    # operands that are one tensor are one value
    places = {tensor: place for place, tensor in enumerate(dict.fromkeys(instr.operands))}
    types = [program.tensors[tensor] for tensor in (*places, *instr.results)]
    if _is_of_sequencer((instr.opcode,), types):
        return _by_sequencer(types[: len(places)], types[len(places) :])
    results = tuple(range(len(places), len(types)))
    operands = tuple(places[tensor] for tensor in instr.operands)
    row = FusedInstr(instr.opcode, results, operands, attributes)
    counted = instr.elements if _is_counted(instr.opcode) else 0
    body = Body(types, len(places), (row,), results, program.regions, engine, counted)
    is_scatter = instr.opcode == "scatter"
    if instr.opcode not in MOVES and not is_scatter:
        return body.work()
    is_in_place = instr.opcode in _UPDATES and _is_in_place(program, instr)
    return body.scattered(is_in_place) if is_scatter else body.moved(is_in_place)


_REGISTER_SHAPES = frozenset({Shape.NULLARY, Shape.UNARY, Shape.BINARY, Shape.TERNARY})


def _is_of_sequencer(opcodes: Iterable[str], types: Iterable[Typed]) -> bool:
    """Whether registers of a sequencer do it: counters of loops, starts of slices, predicates.

    Source: the architecture guides, register arithmetic and branches run in the sequencer.
    """
    return all(
        view.elements == 1 and (view.dtype.is_integer or view.dtype is DType.PRED) for view in types
    ) and all(opcode in _SPELLED or OPCODES[opcode].shape in _REGISTER_SHAPES for opcode in opcodes)


_SPELLED = frozenset({CONSTANT, "broadcast", "reshape"})


def _by_sequencer(read: Iterable[Typed], written: Iterable[Typed]) -> Work:
    """No more than the bytes of a few registers."""
    return attrs.evolve(
        NOTHING,
        bytes_read=sum(view.size_bytes for view in read),
        bytes_written=sum(view.size_bytes for view in written),
    )


def work_of_fusion(fusion: Fusion, regions: Sequence[Region]) -> Work:
    """The work of an instruction that performs a fusion."""
    values, body = fusion.values, fusion.body
    if _is_of_sequencer((row.opcode for row in body), values):
        return _by_sequencer(values[: fusion.parameters], fusion.types(fusion.results))
    return Body(values, fusion.parameters, body, fusion.results, regions).work()


# Which instruction of an engine a row is


_TABLE_FUNCTIONS = frozenset(
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

_FREE_VIEWS = frozenset({"reshape"})
_READ_IN_PART = frozenset({"dynamic-slice", "gather", "slice"})

RECIPROCAL_CYCLES = 8
"""Lane cycles of an element's reciprocal on the Vector engine."""

MOVES = frozenset(
    {
        *("concatenate", "copy", "dynamic-slice", "dynamic-update-slice", "gather", "pad"),
        *("reshape", "reverse", "slice", "transpose"),
    }
)
"""What DMA does alone, from HBM to HBM; a transposition whose runs are short takes Tensor."""


class _Access(enum.Enum):
    """How an engine gets at an operand."""

    IMMEDIATE = "immediate"  # one number for all elements
    ROW = "row"  # one number for each partition
    ARRAY = "array"  # an element for each element


@attrs.define
class _Cost:
    """What one row takes."""

    engine: Engine
    cycles: int  # of lanes, or of the Tensor engine's array
    mode: Mode = Mode.FULL
    inputs: int = 0
    is_joined: bool = False  # has a second operation already
    is_copy: bool = False  # out of PSUM, which Scalar does as well as Vector


def product_cycles(m: int, k: int, n: int) -> int:
    """Cycles of the array for [m, k] x [k, n] in bfloat16; float32 takes more by its peak.

    A tile of 128 x 128 of one operand is loaded and up to 512 columns of the other are moved
    through it, in max(min(64, columns of the tile), columns moved) cycles; the operand that is
    loaded is the one that makes fewer. Source: cost formula of nki.isa.nc_matmul.
    """
    return -(-k // LANES) * min(_streamed(n, m), _streamed(m, n))


def _streamed(loaded: int, moved: int) -> int:
    tiles, rest = divmod(loaded, LANES)
    return tiles * _moving(moved, LANES) + (_moving(moved, rest) if rest else 0)


def _moving(columns: int, loaded: int) -> int:
    rest = columns % MOVING_COLUMNS
    return columns - rest + (max(rest, min(LEAST_CYCLES, loaded)) if rest else 0)


def reads_of_product(m: int, n: int, left_bytes: int, right_bytes: int) -> tuple[int, int]:
    """How often each operand of a product is read from HBM, as little as SBUF allows.

    Either blocks of one operand stay in half of SBUF while the other one streams past each, or
    sums of a block of the result do, and both stream.
    """
    half = SBUF_BYTES // 2
    side = math.isqrt(half // 4)  # float32 sums
    options = (
        (1, -(-left_bytes // half)),
        (-(-right_bytes // half), 1),
        (-(-n // side), -(-m // side)),
    )
    reads = min(options, key=lambda times: times[0] * left_bytes + times[1] * right_bytes)
    return max(1, reads[0]), max(1, reads[1])


class Body:
    """Rows over numbered values that one instruction performs; an unfused one has one row."""

    def __init__(
        self,
        values: Sequence[Typed],
        parameters: int,
        rows: Sequence[FusedInstr],
        results: Sequence[int],
        regions: Sequence[Region],
        engine: Engine | None = None,
        elements: int = 0,
    ) -> None:
        """`engine` and `elements` of the instruction table, for an instruction that is no fusion:
        its queue's engine does what another one would, and walks over so many elements where only
        the compiler knows how many there are.
        """
        self._values, self._parameters, self._rows = values, parameters, rows
        self._results, self._regions = tuple(results), regions
        self._engine, self._elements = engine, elements
        self._is_fused = engine is None
        count = len(values)
        self._view = list(range(count))  # what a free row gives another view of
        self._access = [
            _Access.IMMEDIATE if self._is_fused and value.elements == 1 else _Access.ARRAY
            for value in values
        ]
        self._stored = [value.dtype for value in values]
        self._maker: dict[int, int] = {}
        self._uses = [0] * count
        self._costs: list[_Cost | None] = [None] * len(rows)
        self._reads = [0] * count  # how often the values are read, by rows of products
        self._find_views()
        self._lying_in_rows = self._find_rows()
        for number, row in enumerate(rows):
            self._cost(number, row)

    # Views, and how engines get at values

    def _find_views(self) -> None:
        """Free rows: what they view; and the uses of what is viewed by rows that are not free."""
        readers: dict[int, list[FusedInstr]] = {}
        for row in self._rows:
            for value in row.operands:
                readers.setdefault(value, []).append(row)
        for number, row in enumerate(self._rows):
            for result in row.results:
                self._maker[result] = number
            if not self._is_fused:
                continue
            if self._is_view(row, readers):
                self._add_view(row.operands[0], row.results[0])
                is_only_reader = len(readers[row.operands[0]]) == 1
                if is_only_reader and row.operands[0] not in self._results:
                    self._store_as(row.results[0])
            elif row.opcode == "broadcast":
                self._access[row.results[0]] = self._access_of_broadcast(row)
            elif row.opcode == "iota":
                is_last = row.attributes["iota_dimension"] == len(self._shape(row.results[0])) - 1
                self._access[row.results[0]] = _Access.ARRAY if is_last else _Access.ROW
        for row in self._rows:
            if not self._is_free(row):
                for value in {self._view[operand] for operand in row.operands}:
                    self._uses[value] += 1
        for result in self._results:
            self._uses[self._view[result]] += 1

    def _is_view(self, row: FusedInstr, readers: Mapping[int, list[FusedInstr]]) -> bool:
        """Whether a row costs nothing: another shape, or a cast of what an engine reads or writes.

        Casts in and out of Vector and Scalar are free; an array that is only cast is copied. A
        product whose operands change places comes out transposed, and takes its operands so.
        """
        if row.opcode in _FREE_VIEWS:
            return True
        if row.opcode == "transpose":
            maker = self._maker.get(self._view[row.operands[0]])
            is_product = maker is not None and _is_product(self._rows[maker])
            reading = readers.get(row.results[0], [])
            return is_product or (bool(reading) and all(map(_is_product, reading)))
        is_cast = row.opcode in ("convert", "bitcast-convert")
        return is_cast and (
            self._view[row.operands[0]] >= self._parameters or row.results[0] in readers
        )

    def _add_view(self, operand: int, result: int) -> None:
        self._view[result] = self._view[operand]
        self._access[result] = self._access[operand]
        self._stored[result] = self._stored[operand]

    def _store_as(self, view: int) -> None:
        """What only a cast reads is written as what that gives, if it is narrower."""
        source, kind = self._view[view], self._values[view].dtype
        if source >= self._parameters and kind.size_bytes < self._stored[source].size_bytes:
            self._stored[source] = self._stored[view] = kind

    def _access_of_broadcast(self, row: FusedInstr) -> _Access:
        (operand,) = row.operands
        if self._access[operand] is _Access.IMMEDIATE:
            return _Access.IMMEDIATE
        dimensions = row.attributes["dimensions"]
        assert isinstance(dimensions, tuple), row.opcode
        return _Access.ROW if dimensions == tuple(range(len(dimensions))) else _Access.ARRAY

    def _find_rows(self) -> dict[int, int]:
        """By number of elements: as how many these count where rows lie in one partition each.

        A largest or smallest element of a row is found in its partition; instructions take as long
        for a few partitions as for all. Sums do not bind rows to partitions: Tensor adds up over
        these. Source: the architecture guides.
        """
        counted = {}
        for row in self._rows:
            if row.opcode == "reduce" and self._is_along_rows(row) and not self._is_sum(row):
                elements = self._values[row.operands[0]].elements
                kept = self._values[row.results[0]].elements
                if 0 < kept < LANES:
                    counted[elements] = elements // kept * LANES
        return counted

    def _elements_of(self, value: int) -> int:
        """The elements of a value, with those of lanes that stay empty beside it."""
        elements = self._values[value].elements
        return self._lying_in_rows.get(elements, elements)

    def _is_along_rows(self, row: FusedInstr) -> bool:
        dimensions, rank = row.attributes["dimensions"], len(self._shape(row.operands[0]))
        assert isinstance(dimensions, tuple), row.opcode
        return set(dimensions) == set(range(rank - len(dimensions), rank))

    def _is_sum(self, row: FusedInstr) -> bool:
        body = self._region(row).body
        return len(body) == 1 and body[0].opcode == "add"

    def _is_free(self, row: FusedInstr) -> bool:
        if row.opcode == CONSTANT:
            return True
        if not self._is_fused:
            return False
        return row.opcode == "broadcast" or self._view[row.results[0]] != row.results[0]

    # What each row costs

    def _cost(self, number: int, row: FusedInstr) -> None:
        if self._is_free(row):
            return
        shape = OPCODES[row.opcode].shape
        if _is_product(row):
            self._costs[number] = self._product(row)
        elif row.opcode == "reduce":
            self._costs[number] = self._reduction(row)
        elif row.opcode in MOVES - {"copy"}:
            self._costs[number] = self._rearrangement(row)
        elif shape in (Shape.UNARY, Shape.BINARY, Shape.TERNARY, Shape.MAP):
            self._costs[number] = self._elementwise(row)
        elif row.opcode == "broadcast":
            self._costs[number] = self._walk(Engine.VECTOR, row, 1)
        elif row.opcode == "iota" and self._is_fused:
            dimension = row.attributes["iota_dimension"]
            assert isinstance(dimension, int), row.opcode
            self._costs[number] = _Cost(Engine.GPSIMD, self._shape(row.results[0])[dimension])
        else:
            self._costs[number] = _Cost(self._or_queue(Engine.GPSIMD), self._walked(row))

    def _walked(self, row: FusedInstr) -> int:
        """Elements that a method walks over, as the compiler counts them."""
        return self._elements or sum(self._values[result].elements for result in row.results)

    def _or_queue(self, engine: Engine) -> Engine:
        """An instruction alone runs on the engine of its queue, if that computes."""
        if self._engine in (Engine.VECTOR, Engine.SCALAR, Engine.GPSIMD):
            return self._engine
        return engine

    def _arrays(self, row: FusedInstr) -> list[int]:
        """The different operands that have an element for each element."""
        arrays = (value for value in row.operands if self._access[value] is _Access.ARRAY)
        return list({self._view[value]: value for value in arrays}.values())

    def _walk(self, engine: Engine, row: FusedInstr, cycles: int) -> _Cost:
        """An engine that takes so many cycles for each element of the result."""
        arrays, result = self._arrays(row), row.results[0]
        widest = max(self._stored[value].size_bytes for value in (*arrays, result))
        lanes = self._elements_of(result) * cycles * max(1, widest // 4)
        return _Cost(self._or_queue(engine), lanes, self._mode(row, arrays), len(arrays))

    def _mode(self, row: FusedInstr, arrays: Sequence[int]) -> Mode:
        kinds = [self._stored[value] for value in (*arrays, row.results[0])]
        if not all(kind.is_float and kind.size_bytes <= 2 for kind in kinds):
            return Mode.FULL
        is_two_bytes = all(kind.size_bytes == 2 for kind in kinds)
        if len(arrays) <= 1:
            return Mode.NARROW if is_two_bytes else Mode.NARROW_PAIR
        is_pair = len(arrays) == 2 and row.opcode in _NARROW_PAIRS and is_two_bytes
        return Mode.NARROW_PAIR if is_pair else Mode.FULL

    def _elementwise(self, row: FusedInstr) -> _Cost:
        arrays = self._arrays(row)
        kind = self._values[row.operands[0]].dtype
        if row.opcode in _TABLE_FUNCTIONS:
            # a power is exp(y * log(x)), a table each; so is an angle of two coordinates (assumed)
            cost = self._walk(Engine.SCALAR, row, 2 if row.opcode in ("power", "atan2") else 1)
            self._join_affine(arrays)
            return cost
        if row.opcode == "divide" and not kind.is_integer and self._divides_by_array(row):
            cycles = RECIPROCAL_CYCLES + (2 if len(arrays) == 2 else 0)
            return self._walk(Engine.VECTOR, row, cycles)
        if row.opcode == "select" and self._is_causal(row):
            maker = self._alone(row.operands[0])
            assert maker is not None, row.opcode
            self._costs[maker] = None
            return self._walk(Engine.GPSIMD, row, 1)
        if row.opcode == "map":
            region = self._region(row)
            return self._walk(Engine.VECTOR, row, max(1, len(arrays)) * max(1, len(region.body)))
        is_integer_pair = len(arrays) == 2 and row.opcode in _INTEGER_PAIRS and kind.is_integer
        if is_integer_pair and kind.size_bytes >= 4:
            return self._walk(Engine.GPSIMD, row, 1)
        cost = self._walk(Engine.VECTOR, row, max(1, len(arrays)))
        if self._is_alu(row):
            self._join_alu(cost, arrays)
        if self._is_affine(row) and len(arrays) == 1 and self._is_fused:
            maker = self._maker.get(self._view[arrays[0]])
            cost.is_copy = maker is not None and _is_product(self._rows[maker])
        return cost

    def _divides_by_array(self, row: FusedInstr) -> bool:
        return self._access[row.operands[1]] is _Access.ARRAY

    def _is_alu(self, row: FusedInstr) -> bool:
        return row.opcode in _ALU or (row.opcode == "divide" and not self._divides_by_array(row))

    def _is_affine(self, row: FusedInstr) -> bool:
        return row.opcode in _AFFINE or (row.opcode == "divide" and not self._divides_by_array(row))

    def _is_causal(self, row: FusedInstr) -> bool:
        """Whether a mask compares positions: GpSimd compares and selects at once (affine_select).

        Source: nki_perf_guide.rst, which has it do causal masks.
        """
        maker = self._alone(row.operands[0])
        if maker is None or not self._is_fused or self._rows[maker].opcode != "compare":
            return False
        is_filled = any(self._access[value] is _Access.IMMEDIATE for value in row.operands[1:])
        return is_filled and all(
            self._values[value].dtype.is_integer
            and self._maker.get(value) is not None
            and self._rows[self._maker[value]].opcode in ("broadcast", "iota")
            for value in self._rows[maker].operands
        )

    def _alone(self, value: int) -> int | None:
        """The row that computes a value that nothing else reads."""
        source = self._view[value]
        return self._maker[source] if source in self._maker and self._uses[source] == 1 else None

    def _join_alu(self, cost: _Cost, arrays: Sequence[int]) -> None:
        """An operation with a number, then another one: one instruction with two ALU stages.

        tensor_scalar where both have one array, scalar_tensor_tensor where the second has two.
        """
        for value in arrays:
            maker = self._alone(value)
            earlier = None if maker is None else self._costs[maker]
            if (
                maker is not None
                and earlier is not None
                and earlier.engine is Engine.VECTOR
                and cost.engine is Engine.VECTOR
                and earlier.inputs == 1
                and not earlier.is_joined
                and self._is_alu(self._rows[maker])
                and len(arrays) <= 2
            ):
                self._costs[maker], cost.is_joined = None, True
                return

    def _join_affine(self, arrays: Sequence[int]) -> None:
        """A scale and a bias, each one number or one a row, before a function of Scalar."""
        steps = 0
        while len(arrays) == 1 and steps < 2:
            maker = self._alone(arrays[0])
            if maker is None or not self._is_affine(self._rows[maker]):
                return
            row = self._rows[maker]
            arrays = self._arrays(row)
            if len(arrays) != 1 or row.operands.count(arrays[0]) > 1:
                return
            self._costs[maker] = None
            steps += 1

    def _region(self, row: FusedInstr) -> Region:
        number = row.attributes["region"]
        assert isinstance(number, int), row.opcode
        return self._regions[number]

    def _reduction(self, row: FusedInstr) -> _Cost | None:
        """A fold: by Vector along rows, by products with ones over partitions, else by GpSimd."""
        operand, result = row.operands[0], row.results[0]
        body = self._region(row).body
        elements = self._elements_of(operand)
        if len(body) != 1 or len(row.results) > 1:
            cycles = elements * len(row.results) * max(1, len(body))
            return _Cost(self._or_queue(Engine.GPSIMD), cycles)
        is_sum = self._is_sum(row)
        if self._is_along_rows(row):
            if is_sum and self._sums_for_nothing(operand):
                return None
            cost = self._walk(Engine.VECTOR, row, 1)
            cost.cycles = elements * max(1, self._stored[operand].size_bytes // 4)
            is_narrow = self._stored[operand].is_float and self._stored[operand].size_bytes == 2
            is_pair = is_narrow and self._stored[result].size_bytes == 2
            is_quick = is_pair and body[0].opcode in ("add", "maximum")
            cost.mode, cost.inputs = Mode.NARROW_PAIR if is_quick else Mode.FULL, 0
            return cost
        kind = self._stored[operand]
        if is_sum and kind.is_float:
            kept = self._values[result].elements
            cycles = product_cycles(1, elements // max(1, kept), kept)
            return _Cost(Engine.TENSOR, cycles)
        return _Cost(self._or_queue(Engine.VECTOR), 2 * elements * max(1, kind.size_bytes // 4))

    def _sums_for_nothing(self, operand: int) -> bool:
        """Whether Scalar adds up along rows what it computes (activation_reduce).

        A square is a function of its own: it goes there if it is summed.
        """
        source = self._view[operand]
        maker = self._maker.get(source)
        cost = None if maker is None else self._costs[maker]
        if maker is None or cost is None or not self._is_fused:
            return False
        row, is_alone = self._rows[maker], self._uses[source] == 1
        is_square = row.opcode == "multiply" and len({self._view[v] for v in row.operands}) == 1
        if is_square and is_alone:
            lanes = self._elements_of(row.results[0])
            self._costs[maker] = _Cost(Engine.SCALAR, lanes, cost.mode, 1)
            return True
        return cost.engine is Engine.SCALAR

    def _product(self, row: FusedInstr) -> _Cost:
        batch, m, k, n = self._sizes_of_product(row)
        left, right = (
            self._values[operand].size_bytes // max(1, batch) for operand in row.operands[:2]
        )
        times = reads_of_product(m, n, left, right)
        for operand, reads in zip(row.operands, times, strict=False):
            self._reads[operand] = max(self._reads[operand], reads)
        return _Cost(Engine.TENSOR, batch * product_cycles(m, k, n))

    def _sizes_of_product(self, row: FusedInstr) -> tuple[int, int, int, int]:
        """(products, rows, sums, columns) of a product."""
        left, right = (self._shape(operand) for operand in row.operands[:2])
        result = self._values[row.results[0]].elements
        if row.opcode == "convolution":
            labels = read_labels(str(row.attributes["dim_labels"]))
            groups = row.attributes["feature_groups"]
            assert isinstance(groups, int), row.opcode
            features = right[labels.kernel_dimensions[1]]
            sums = math.prod(right) // max(1, features)
            return groups, result // max(1, features), sums, features // max(1, groups)
        dimensions = {name: row.attributes[name] for name in _DOT}
        batch = math.prod(_sizes(left, dimensions["lhs_batch"]))
        k = math.prod(_sizes(left, dimensions["lhs_contracting"]))
        m = math.prod(left) // max(1, batch * k)
        if row.opcode == "dot":
            return batch, m, k, math.prod(right) // max(1, batch * k)
        # ragged: as if every index of the ragged dimension were in a group
        return batch, m, k, result // max(1, batch * m)

    def _rearrangement(self, row: FusedInstr) -> _Cost:
        """A move inside of a fusion: Vector copies, and Tensor transposes."""
        elements = self._values[row.results[0]].elements
        if row.opcode == "transpose" and (cycles := self._transposing_cycles(row)):
            return _Cost(Engine.TENSOR, cycles)
        return _Cost(Engine.VECTOR, elements)

    def _transposing_cycles(self, row: FusedInstr) -> int:
        """A tile of 128 x 128 at a time goes through the array, 128 cycles each (nc_transpose)."""
        shape, dimensions = self._permuted(row)
        if not shape or dimensions[-1] == len(shape) - 1:
            return 0
        last, to_last = shape[-1], shape[dimensions[-1]]
        others = math.prod(shape) // max(1, last * to_last)
        return -(-last // LANES) * -(-to_last // LANES) * others * LANES

    def _permuted(self, row: FusedInstr) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The shape that a transposition has and how it permutes it, without dimensions of one."""
        shape, dimensions = self._shape(row.operands[0]), row.attributes["dimensions"]
        assert isinstance(dimensions, tuple), row.opcode
        kept = [dimension for dimension, size in enumerate(shape) if size != 1]
        number = {dimension: place for place, dimension in enumerate(kept)}
        order = (number[dimension] for dimension in dimensions if dimension in number)
        return tuple(shape[dimension] for dimension in kept), tuple(order)

    def _shape(self, value: int) -> tuple[int, ...]:
        return self._values[value].shape

    # All rows together

    def work(self) -> Work:
        """The work of all rows: operands are loaded once, results stored once."""
        level, chains, is_product = self._levels()
        phases = self._phases(level, chains)
        tile, passes = self._tile(level)
        read, dma_read = self._loaded(passes)
        written = sum(self._values[result].size_bytes for result in self._results)
        tables = {row.opcode for row in self._rows if row.opcode in _TABLE_FUNCTIONS}
        return Work(
            phases,
            bytes_read=read,
            bytes_written=written,
            dma_read=dma_read,
            dma_written=written,
            tile=tile,
            starts=2 if self._parameters and read else 1,
            tables=max(0, len(tables) - 1),
            overlaps=is_product,
        )

    def _levels(self) -> tuple[list[int], list[tuple[int, ...]], bool]:
        """The phase of each row, the longest chain of instructions to it, whether there are
        products.

        What uses the result of a reduction along rows waits until whole rows are reduced.
        """
        level = [0] * len(self._values)
        chain = [_NO_CHAIN] * len(self._values)
        of_row, chains, is_product = [], [], False
        for number, row in enumerate(self._rows):
            here = max((level[operand] for operand in row.operands), default=0)
            before = (chain[operand] for operand in row.operands if level[operand] == here)
            longest = max(before, key=sum, default=_NO_CHAIN)
            cost = self._costs[number]
            if cost is not None:
                at = _ORDER.index(cost.engine)
                longest = (*longest[:at], longest[at] + 1, *longest[at + 1 :])
            of_row.append(here)
            chains.append(longest)
            is_fold = OPCODES[row.opcode].shape is Shape.FOLD if row.opcode != CONSTANT else False
            is_product = is_product or _is_product(row)
            for result in row.results:
                level[result] = here + is_fold
                chain[result] = _NO_CHAIN if is_fold else longest
        return of_row, chains, is_product

    def _phases(self, level: Sequence[int], chains: Sequence[tuple[int, ...]]) -> tuple[Phase, ...]:
        phases = []
        for number in range(max(level, default=0) + 1):
            lanes: dict[tuple[Engine, Mode], int] = {}
            passes: dict[DType, int] = {}
            copied = 0
            rows = [row for row, here in enumerate(level) if here == number]
            for row in rows:
                cost = self._costs[row]
                if cost is None:
                    continue
                if cost.engine is Engine.TENSOR:
                    kind = self._stored[self._rows[row].operands[0]]
                    passes[kind] = passes.get(kind, 0) + cost.cycles
                    if self._needs_copy(self._rows[row]):
                        copied += self._values[self._rows[row].results[0]].elements
                    continue
                if cost.is_copy:
                    copied += cost.cycles
                    continue
                walked = (cost.engine, cost.mode)
                lanes[walked] = lanes.get(walked, 0) + cost.cycles
            if copied:
                copying = (_quieter(lanes), Mode.FULL)
                lanes[copying] = lanes.get(copying, 0) + copied
            longest = max((chains[row] for row in rows), key=sum, default=_NO_CHAIN)
            chain = {engine: count for engine, count in zip(_ORDER, longest, strict=True) if count}
            if lanes or passes or chain:
                phases.append(Phase(lanes, passes, chain))
        return tuple(phases)

    def _needs_copy(self, row: FusedInstr) -> bool:
        """Whether a product is copied from PSUM to SBUF; one row that reads it can do that."""
        result = row.results[0]
        return self._uses[result] != 1 or result in map(self._view.__getitem__, self._results)

    def _tile(self, level: Sequence[int]) -> tuple[Fraction, int]:
        """The share of the whole that a tile is, and how often operands are read.

        A tile has 512 columns, or whole rows where rows are reduced and read again: of 128 rows, or
        of as many as fit into half of SBUF. If not even one row fits, every phase reads operands.
        """
        most = max((value.elements for value in self._values), default=1)
        tile, row = Fraction(LANES * TILE_COLUMNS, max(1, most)), Fraction(0)
        for number, instr in enumerate(self._rows):
            if instr.opcode == "reduce" and level[number] < max(level):
                kept = max(1, self._values[instr.results[0]].elements)
                tile, row = max(tile, Fraction(LANES, kept)), max(row, Fraction(1, kept))
        room = Fraction(SBUF_BYTES // 2, max(1, self._live_bytes()))
        passes = max(level, default=0) + 1 if row > room else 1
        return min(Fraction(1), tile, room), passes

    def _live_bytes(self) -> int:
        """Bytes of values that are in SBUF at a time, at most, of a tile that is everything."""
        last = {}
        for number, row in enumerate(self._rows):
            for operand in row.operands:
                last[self._view[operand]] = number
        for result in self._results:
            last[self._view[result]] = len(self._rows)
        sizes = [
            value.elements * kind.size_bytes
            for value, kind in zip(self._values, self._stored, strict=True)
        ]
        live = most = sum(sizes[value] for value in range(self._parameters))
        ends: dict[int, list[int]] = {}
        for value, number in last.items():
            ends.setdefault(number, []).append(value)
        for number, row in enumerate(self._rows):
            if self._costs[number] is not None:
                live += sum(sizes[result] for result in row.results)
                most = max(most, live)
            live -= sum(
                sizes[value]
                for value in ends.get(number, ())
                if value < self._parameters or self._costs[self._maker[value]] is not None
            )
        return most

    def _loaded(self, passes: int) -> tuple[int, int]:
        """Bytes that are read from HBM, and as how many they count for DMA."""
        read: set[int] = set()
        in_part: dict[int, list[FusedInstr]] = {}
        times = list(self._reads)
        for row in reversed(self._rows):
            for place, operand in enumerate(row.operands):
                if row.opcode in _READ_IN_PART and place == 0:
                    in_part.setdefault(operand, []).append(row)
                else:
                    read.add(operand)
                for result in row.results:
                    times[operand] = max(times[operand], times[result])
        bytes_read = dma_read = 0
        for value in range(self._parameters):
            size = self._values[value].size_bytes
            if value in read:
                often = max(times[value], passes if self._is_large(value) else 1, 1)
                bytes_read += size * often
                dma_read += size * often
            for row in in_part.get(value, ()) if value not in read else ():
                part = min(size, self._values[row.results[0]].size_bytes)
                bytes_read += part
                dma_read += _rounded(part, self._run(row))
        return bytes_read, dma_read

    def _is_large(self, value: int) -> bool:
        return 2 * self._values[value].elements > max(item.elements for item in self._values)

    # Moves

    def moved(self, is_in_place: bool) -> Work:
        """A move that DMA does alone: one DMA, from memory to memory."""
        (row,) = self._rows
        result = self._values[row.results[0]]
        run = self._run(row)
        operands = [self._values[operand] for operand in row.operands]
        whole = 0  # of an update that is not in place: the array is copied first
        if row.opcode == "dynamic-update-slice":
            size = operands[1].size_bytes
            whole = 0 if is_in_place else operands[0].size_bytes
            read = written = size
        elif row.opcode in _READ_IN_PART:
            read = written = result.size_bytes
        else:
            read = sum(operand.size_bytes for operand in operands)
            written = result.size_bytes
        starts, phases = 1, tuple[Phase, ...]()
        dma_read, dma_written = _rounded(read, run) + whole, _rounded(written, run) + whole
        if row.opcode == "concatenate":
            along = row.attributes["dimension"]
            assert isinstance(along, int), row.opcode
            dma_read = dma_written = sum(
                _rounded(view.size_bytes, math.prod(view.shape[along:]) * view.dtype.size_bytes)
                for view in operands
            )
        if run < min(DMA_ROW_BYTES, result.size_bytes) and row.opcode == "transpose":
            phases = self._through_array(row)
            starts, dma_read, dma_written = 2, read, written
        if row.opcode == "gather":  # GpSimd writes the descriptors once it has the indices
            starts, indices = 2, operands[1].elements
            phases = (Phase({(Engine.GPSIMD, Mode.FULL): indices}, {}, {Engine.GPSIMD: 1}),)
            read += operands[1].size_bytes
            dma_read += operands[1].size_bytes
        tile = min(Fraction(1), Fraction(LANES * TILE_COLUMNS, max(1, result.elements)))
        return Work(phases, read + whole, written + whole, dma_read, dma_written, tile, starts)

    def scattered(self, is_in_place: bool) -> Work:
        """Windows are fetched, joined with updates by GpSimd and put back, by DMA."""
        (row,) = self._rows
        arrays = len(row.results)
        operands = [self._values[operand] for operand in row.operands]
        whole = 0 if is_in_place else sum(view.size_bytes for view in operands[:arrays])
        indices = operands[min(arrays, len(operands) - 1)]
        updates = sum(view.size_bytes for view in operands[arrays + 1 :])
        run = updates // max(1, self._windows(row))
        elements = sum(view.elements for view in operands[arrays + 1 :])
        chain = {Engine.GPSIMD: 1}
        most = max(view.elements for view in operands)
        return Work(
            (Phase({(Engine.GPSIMD, Mode.FULL): elements}, {}, chain),),
            bytes_read=whole + indices.size_bytes + 2 * updates,
            bytes_written=whole + updates,
            dma_read=whole + indices.size_bytes + updates + _rounded(updates, run),
            dma_written=whole + _rounded(updates, run),
            tile=min(Fraction(1), Fraction(LANES * TILE_COLUMNS, max(1, most))),
            starts=3,  # indices, windows and updates, results
        )

    def _windows(self, row: FusedInstr) -> int:
        """How many windows of each array a scatter writes."""
        updates = self._shape(row.operands[-1])
        of_window = row.attributes["update_window_dims"]
        assert isinstance(of_window, tuple), row.opcode
        return math.prod(size for at, size in enumerate(updates) if at not in of_window)

    def _through_array(self, row: FusedInstr) -> tuple[Phase, ...]:
        """A transposition by the Tensor engine, far quicker than DMA element by element."""
        result = self._values[row.results[0]]
        lanes = {(Engine.VECTOR, Mode.FULL): result.elements * max(1, result.dtype.size_bytes // 4)}
        passes = {result.dtype: self._transposing_cycles(row)}
        return (Phase(lanes, passes, {Engine.TENSOR: 1, Engine.VECTOR: 1}),)

    def _run(self, row: FusedInstr) -> int:
        """Bytes that lie one after the other where they are read and where they are written."""
        result, operand = self._values[row.results[0]], self._values[row.operands[0]]
        size = result.dtype.size_bytes
        match row.opcode:
            case "slice":
                strides = row.attributes["stride"]
                assert isinstance(strides, tuple), row.opcode
                if any(step > 1 for step in strides[-1:]):
                    return size
                return size * _contiguous(result.shape, operand.shape)
            case "dynamic-slice":
                return size * _contiguous(result.shape, operand.shape)
            case "dynamic-update-slice":
                return size * _contiguous(self._shape(row.operands[1]), operand.shape)
            case "pad":
                return size * _contiguous(operand.shape, result.shape)
            case "reverse":
                dimensions = row.attributes["dimensions"]
                assert isinstance(dimensions, tuple), row.opcode
                return size * math.prod(operand.shape[max(dimensions, default=-1) + 1 :])
            case "transpose":
                shape, order = self._permuted(row)
                kept = len(shape)
                while kept and order[kept - 1] == kept - 1:
                    kept -= 1
                return size * math.prod(shape[kept:])
            case "gather":
                windows = row.attributes["slice_sizes"]
                assert isinstance(windows, tuple), row.opcode
                return size * _contiguous(windows, operand.shape)
        return result.size_bytes


_DOT = ("lhs_batch", "rhs_batch", "lhs_contracting", "rhs_contracting")
_ORDER = (Engine.TENSOR, Engine.VECTOR, Engine.SCALAR, Engine.GPSIMD)
_NO_CHAIN = (0,) * len(_ORDER)


def _is_product(row: FusedInstr) -> bool:
    return row.opcode != CONSTANT and OPCODES[row.opcode].shape is Shape.CONTRACT


def _sizes(shape: Sequence[int], dimensions: AttributeValue) -> Iterable[int]:
    assert isinstance(dimensions, tuple), dimensions
    return (shape[dimension] for dimension in dimensions)


def _contiguous(part: Sequence[int], whole: Sequence[int]) -> int:
    """Elements of a box that lie one after the other in the array that it is cut out of."""
    elements = 1
    for size, full in zip(reversed(part), reversed(whole), strict=True):
        elements *= size
        if size != full:
            break
    return elements


def _rounded(size: int, run: int) -> int:
    """Bytes as DMA counts them, if they come in runs of so many."""
    return size if run >= DMA_ROW_BYTES else -(-size // max(1, run)) * DMA_ROW_BYTES


def _quieter(lanes: Mapping[tuple[Engine, Mode], int]) -> Engine:
    """Which of Vector and Scalar has less to do."""
    busy = dict.fromkeys((Engine.SCALAR, Engine.VECTOR), 0)
    for (engine, _), cycles in lanes.items():
        if engine in busy:
            busy[engine] += cycles
    return min(busy, key=lambda engine: busy[engine])
