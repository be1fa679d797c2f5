"""Results over operands: what the rule allows is safe by brute force, element by element."""

import itertools
import random
from collections import Counter

import numpy as np
import pytest

import ncc_compiler
import ncc_runtime
from ncc_runtime.neff.in_place import may_overwrite
from ncc_runtime.neff.isa import FUSION
from ncc_runtime.neff.program import FusedInstr, Fusion, ValueType
from ncc_runtime.neff.shared.dtypes import DType

F32 = DType.F32
SHAPES = ((2, 3), (3, 3), (4,), (2, 2, 2), (1, 4))


class Draw:
    """A random fusion of a few rows, whose first parameter is the operand that is written over."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        shape = self._random.choice(SHAPES)
        self.values = [ValueType(F32, shape), ValueType(F32, shape), ValueType(F32, shape[:1])]
        self.body: list[FusedInstr] = []
        rows = self._random.randint(1, 6)
        while len(self.body) < rows:
            self._row()
        parameters = 3
        over = [
            value
            for value in range(parameters, len(self.values))
            if self.values[value].shape == shape
        ]
        made = range(parameters, len(self.values))
        first = self._random.choice(over or list(made))
        others = self._random.sample(list(made), self._random.randint(0, min(2, len(made))))
        results = tuple(dict.fromkeys((first, *others)))
        self.fusion = Fusion("f", tuple(self.values), parameters, tuple(self.body), results)

    def _row(self) -> None:
        operand = self._random.randrange(len(self.values))
        shape = self.values[operand].shape
        alike = [value for value, kind in enumerate(self.values) if kind.shape == shape]
        match self._random.choice(["negate", "add", "reduce", "broadcast", "reorder", "dot"]):
            case "negate":
                self._append("negate", (operand,), shape)
            case "add":
                self._append("add", (operand, self._random.choice(alike)), shape)
            case "reduce" if shape:
                dimensions = tuple(sorted(self._random.sample(range(len(shape)), 1)))
                kept = tuple(size for at, size in enumerate(shape) if at not in dimensions)
                self._append("reduce", (operand,), kept, dimensions)
            case "broadcast":
                whole = self.values[0].shape
                places = [
                    places
                    for places in itertools.permutations(range(len(whole)), len(shape))
                    if tuple(whole[at] for at in places) == shape
                ]
                if places:
                    self._append("broadcast", (operand,), whole, self._random.choice(places))
            case "dot":
                pairs = [
                    (operand, other)
                    for other, kind in enumerate(self.values)
                    if len(shape) == len(kind.shape) == 2 and shape[1] == kind.shape[0]
                ]
                if pairs:
                    left, right = self._random.choice(pairs)
                    columns = self.values[right].shape[1]
                    self._append("dot", (left, right), (shape[0], columns))
            case "reorder":
                if len(shape) == 2 and self._random.random() < 0.5:
                    self._append("transpose", (operand,), shape[::-1], (1, 0))
                else:
                    self._append("reshape", (operand,), shape[::-1])

    def _append(
        self,
        opcode: str,
        operands: tuple[int, ...],
        shape: tuple[int, ...],
        dimensions: tuple[int, ...] | None = None,
    ) -> None:
        self.values.append(ValueType(F32, shape))
        attributes = {} if dimensions is None else {"dimensions": dimensions}
        self.body.append(FusedInstr(opcode, (len(self.values) - 1,), operands, attributes))


def read_in_the_last_pass(fusion: Fusion) -> list[np.ndarray]:
    """Of each value, by element, which elements of the first parameter its last pass reads.

    What a reduction gives is complete before that pass begins, and needs none of them.
    """

    def none(shape: tuple[int, ...]) -> np.ndarray:
        found = np.empty(shape, object)
        found[...] = frozenset()
        return found

    first = none(fusion.values[0].shape)
    for number, place in enumerate(np.ndindex(first.shape)):
        first[place] = frozenset({number})
    read = [first, *(none(kind.shape) for kind in fusion.values[1 : fusion.parameters])]
    for row in fusion.body:
        operands, shape = [read[k] for k in row.operands], fusion.values[row.results[0]].shape
        match row.opcode:
            case "add":
                either = none(shape)
                either[...] = operands[0] | operands[1]
                read.append(either)
            case "negate":
                read.append(operands[0])
            case "reduce":
                read.append(none(shape))
            case "dot":
                product = none(shape)
                for i, j in np.ndindex(shape):
                    product[i, j] = frozenset().union(*operands[0][i], *operands[1][:, j])
                read.append(product)
            case "reshape":
                read.append(operands[0].reshape(shape))
            case "transpose":
                read.append(operands[0].transpose(row.attributes["dimensions"]))
            case "broadcast":
                dimensions = row.attributes["dimensions"]
                spread = [shape[at] if at in dimensions else 1 for at in range(len(shape))]
                ordered = operands[0].transpose(np.argsort(dimensions).astype(int))
                read.append(np.broadcast_to(ordered.reshape(spread), shape))
    return read


def is_safe(fusion: Fusion) -> bool:
    """Whether the first parameter's element k is read in the turn that writes element k only."""
    read = read_in_the_last_pass(fusion)
    return all(
        needed <= {number}
        for result in fusion.results
        for number, needed in enumerate(read[result].ravel().tolist())
    )


def test_a_fusion_that_may_write_over_an_operand_has_read_what_it_needs() -> None:
    found: Counter[tuple[bool, bool]] = Counter()
    updated = 0
    for seed in range(1500):
        fusion = Draw(seed).fusion
        results, operands = fusion.types(fusion.results), fusion.types(range(fusion.parameters))
        allowed, safe = may_overwrite(FUSION, results, operands, 0, 0, fusion), is_safe(fusion)
        assert safe or not allowed, fusion
        found[allowed, safe] += 1
        updated += allowed and products_beside(fusion)
    assert found[True, True] > 200  # it is used
    assert found[False, False] > 30  # and there is what it must refuse
    assert updated > 20  # an operand less what a product of others gives


def products_beside(fusion: Fusion) -> bool:
    return any(row.opcode == "dot" for row in fusion.body)


def test_a_cast_that_makes_one_element_of_several_is_not_done_in_place() -> None:
    whole, packed = ValueType(DType.U8, (4, 4)), ValueType(DType.F32, (4,))
    spread = ValueType(DType.F32, (4, 4))
    body = (
        FusedInstr("bitcast-convert", (1,), (0,), {}),
        FusedInstr("broadcast", (2,), (1,), {"dimensions": (1,)}),
        FusedInstr("convert", (3,), (2,), {}),
    )
    fusion = Fusion("f", (whole, packed, spread, whole), 1, body, (3,))
    assert not may_overwrite(FUSION, [whole], [whole], 0, 0, fusion)


@pytest.mark.parametrize("ranks", [1, 3])
def test_results_that_change_places_with_operands_are_read_before_any_is_written(
    ranks: int,
) -> None:
    text = f"""HloModule m, num_partitions={ranks},
        input_output_alias={{ {{0}}: (0, {{}}, may-alias), {{1}}: (1, {{}}, may-alias) }}
      ENTRY e {{
        x = s32[4,6] parameter(0)
        y = f32[4,6] parameter(1)
        a = s32[4,6] bitcast-convert(y)
        b = f32[4,6] bitcast-convert(x)
        c = s32[4,6] convert(b)
        d = s32[4,6] add(a, c)
        ROOT r = (s32[4,6], f32[4,6], s32[4,6]) tuple(a, b, d)
      }}"""
    neff = ncc_compiler.compile_text(text)
    assert [neff.program.address(tensor) for tensor in neff.program.outputs[:2]] == [
        neff.program.address(tensor) for tensor in neff.program.inputs
    ]
    x = np.arange(24 * ranks, dtype=np.int32).reshape(ranks, 4, 6)
    y = -x.astype(np.float32)
    for shuffle in (None, 1):
        a, b, _ = ncc_runtime.load(neff).run([x, y], checked=True, shuffle_seed=shuffle).outputs
        assert (a.tobytes(), b.tobytes()) == (y.tobytes(), x.tobytes())


def test_a_row_written_in_place_makes_all_of_the_result_its_own() -> None:
    text = """HloModule m
      branch {
        p = (s32[2,2]) parameter(0)
        y = s32[2,2] get-tuple-element(p), index=0
        t = s32[2,2] transpose(y), dimensions={1,0}
        s = s32[1,1] slice(t), slice={[0:1], [1:2]}
        c = s32[] constant(0)
        u = s32[2,2] dynamic-update-slice(y, s, c, c)
        ROOT r = (s32[2,2]) tuple(u)
      }
      ENTRY e {
        x = s32[2,2] parameter(0)
        a = s32[2,2] add(x, x)
        n = s32[] constant(0)
        one = (s32[2,2]) tuple(a)
        w = (s32[2,2]) conditional(n, one), branch_computations={branch}
        ROOT g = s32[2,2] get-tuple-element(w), index=0
      }"""
    program = ncc_compiler.compile_text(text).program
    (update,) = (
        row
        for table in program.queues.values()
        for row in (table[number] for number in range(len(table)))
        if row.opcode == "dynamic-update-slice"
    )
    assert program.address(update.operands[0]) == program.address(update.results[0])
    x = np.array([[[1, 2], [3, 4]]], np.int32)
    (found,) = ncc_runtime.load(ncc_compiler.compile_text(text)).run([x], checked=True).outputs
    assert found.tolist() == [[[6, 4], [6, 8]]]
