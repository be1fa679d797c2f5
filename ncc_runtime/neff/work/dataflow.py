"""How values go through the rows of an instruction: views, makers, readers, and how engines get at
each value.
"""

import enum
from collections.abc import Mapping, Sequence

from ncc_runtime.neff.isa import Engine
from ncc_runtime.neff.program import CONSTANT, FusedInstr, Region, Typed
from ncc_runtime.neff.shared.dtypes import DType
from ncc_runtime.neff.work.tensor_engine import is_product_row, wider
from ncc_runtime.neff.work.work import PARTITIONS

_FREE_VIEWS = frozenset({"reshape"})


class Access(enum.Enum):
    """How an engine gets at an operand."""

    IMMEDIATE = "immediate"  # one number for all elements
    ROW = "row"  # one number for each partition
    ARRAY = "array"  # an element for each element


class Dataflow:
    """Rows over numbered values that one instruction performs; an unfused one has one row.

    - `view[v]`: the value that v is another view of, made by free rows; v if it is none
    - `access[v]`, `stored[v]`: how engines get at v, and the dtype that it has in SBUF
    - `maker[v]`: the row that computes v; parameters have none
    - `uses[v]`: rows that are not free and results that read v or a view of it
    """

    def __init__(
        self,
        values: Sequence[Typed],
        parameters: int,
        rows: Sequence[FusedInstr],
        results: Sequence[int],
        regions: Sequence[Region],
        queue: Engine | None = None,
        counted: int = 0,
    ) -> None:
        """`queue` is the engine whose queue an instruction stands in that is no fusion: that engine
        does what another one would. `counted` are the elements that it walks over where only the
        compiler knows how many there are, or 0.
        """
        self.values, self.parameters, self.rows = values, parameters, rows
        self.results, self.regions = tuple(results), regions
        self.queue, self.counted = queue, counted
        self.is_fused = queue is None
        count = len(values)
        self.view = list(range(count))  # what a free row gives another view of
        self.access = [
            Access.IMMEDIATE if self.is_fused and value.elements == 1 else Access.ARRAY
            for value in values
        ]
        self.stored = [value.dtype for value in values]
        self.maker: dict[int, int] = {}
        self.uses = [0] * count
        self._find_views()
        self._lying_in_rows = self._find_rows()

    # Views, and how engines get at values

    def _find_views(self) -> None:
        """Free rows: what they view; and the uses of what is viewed by rows that are not free."""
        readers: dict[int, list[FusedInstr]] = {}
        for row in self.rows:
            for value in row.operands:
                readers.setdefault(value, []).append(row)
        for number, row in enumerate(self.rows):
            for result in row.results:
                self.maker[result] = number
            if not self.is_fused:
                continue
            if self._is_view(row, readers):
                self._add_view(row.operands[0], row.results[0])
                is_only_reader = len(readers[row.operands[0]]) == 1
                if is_only_reader and row.operands[0] not in self.results:
                    self._store_as(row.results[0])
            elif row.opcode == "broadcast":
                self.access[row.results[0]] = self._access_of_broadcast(row)
            elif row.opcode == "iota":
                is_last = row.attributes["iota_dimension"] == len(self.shape(row.results[0])) - 1
                self.access[row.results[0]] = Access.ARRAY if is_last else Access.ROW
        for row in self.rows:
            if not self.is_free(row):
                for value in {self.view[operand] for operand in row.operands}:
                    self.uses[value] += 1
        for result in self.results:
            self.uses[self.view[result]] += 1

    def _is_view(self, row: FusedInstr, readers: Mapping[int, list[FusedInstr]]) -> bool:
        """Whether a row costs nothing: another shape, or a cast of what an engine reads or writes.

        Casts in and out of Vector and Scalar are free; an array that is only cast is copied. A
        product whose operands change places comes out transposed, and takes its operands so.
        """
        if row.opcode in _FREE_VIEWS:
            return True
        if row.opcode == "transpose":
            maker = self.maker.get(self.view[row.operands[0]])
            is_product = maker is not None and is_product_row(self.rows[maker])
            reading = readers.get(row.results[0], [])
            return is_product or (bool(reading) and all(map(is_product_row, reading)))
        is_cast = row.opcode in ("convert", "bitcast-convert")
        return is_cast and (
            self.view[row.operands[0]] >= self.parameters or row.results[0] in readers
        )

    def _add_view(self, operand: int, result: int) -> None:
        self.view[result] = self.view[operand]
        self.access[result] = self.access[operand]
        self.stored[result] = self.stored[operand]

    def _store_as(self, view: int) -> None:
        """What only a cast reads is written as what that gives, if it is narrower."""
        source, kind = self.view[view], self.values[view].dtype
        if source >= self.parameters and kind.size_bytes < self.stored[source].size_bytes:
            self.stored[source] = self.stored[view] = kind

    def _access_of_broadcast(self, row: FusedInstr) -> Access:
        (operand,) = row.operands
        if self.access[operand] is Access.IMMEDIATE:
            return Access.IMMEDIATE
        dimensions = row.attributes["dimensions"]
        assert isinstance(dimensions, tuple), row.opcode
        return Access.ROW if dimensions == tuple(range(len(dimensions))) else Access.ARRAY

    def _find_rows(self) -> dict[int, int]:
        """By number of elements: as how many these count where rows lie in one partition each.

        A largest or smallest element of a row is found in its partition; instructions take as long
        for a few partitions as for all. Sums do not bind rows to partitions: Tensor adds up over
        these. Source: the architecture guides.
        """
        counted = {}
        for row in self.rows:
            if row.opcode == "reduce" and self.is_along_rows(row) and not self.is_sum(row):
                elements = self.values[row.operands[0]].elements
                kept = self.values[row.results[0]].elements
                if 0 < kept < PARTITIONS:
                    counted[elements] = elements // kept * PARTITIONS
        return counted

    def elements_of(self, value: int) -> int:
        """The elements of a value, with those of lanes that stay empty beside it."""
        elements = self.values[value].elements
        return self._lying_in_rows.get(elements, elements)

    def is_along_rows(self, row: FusedInstr) -> bool:
        """Whether a reduction folds the last dimensions."""
        dimensions, rank = row.attributes["dimensions"], len(self.shape(row.operands[0]))
        assert isinstance(dimensions, tuple), row.opcode
        return set(dimensions) == set(range(rank - len(dimensions), rank))

    def is_sum(self, row: FusedInstr) -> bool:
        """Whether a reduction adds up one array."""
        body = self.region(row).body
        return len(body) == 1 and body[0].opcode == "add"

    def is_free(self, row: FusedInstr) -> bool:
        """Whether no engine does anything for a row."""
        if row.opcode == CONSTANT:
            return True
        if not self.is_fused:
            return False
        return row.opcode == "broadcast" or self.view[row.results[0]] != row.results[0]

    def arrays(self, row: FusedInstr) -> list[int]:
        """The different operands that have an element for each element."""
        arrays = (value for value in row.operands if self.access[value] is Access.ARRAY)
        return list({self.view[value]: value for value in arrays}.values())

    def multiplied_as(self, row: FusedInstr) -> DType:
        """The dtype that a product is computed in: the wider one of its operands.

        A float that is cast counts as the narrower of what lies in SBUF and what it is cast to, an
        integer as what it is cast to: the array multiplies floats.
        """
        kinds = []
        for operand in row.operands[:2]:
            stored, kind = self.stored[operand], self.values[operand].dtype
            is_cast_first = kind.is_float and (
                not stored.is_float or kind.size_bytes < stored.size_bytes
            )
            kinds.append(kind if is_cast_first else stored)
        return wider(*kinds)

    def alone(self, value: int) -> int | None:
        """The row that computes a value that nothing else reads."""
        source = self.view[value]
        return self.maker[source] if source in self.maker and self.uses[source] == 1 else None

    def region(self, row: FusedInstr) -> Region:
        """The computation with scalars that a row applies."""
        number = row.attributes["region"]
        assert isinstance(number, int), row.opcode
        return self.regions[number]

    def shape(self, value: int) -> tuple[int, ...]:
        """The shape of a value."""
        return self.values[value].shape
