"""Fusions: rows over numbered values, each of which an instruction could do alone."""

from collections.abc import Iterator

from ncc_runtime.neff.isa import OPCODES, Shape
from ncc_runtime.neff.program import CONSTANT, FusedInstr, Fusion, Program
from ncc_runtime.neff.rules.regions import is_spelled
from ncc_runtime.neff.rules.rule import rule
from ncc_runtime.neff.rules.signature import Signature
from ncc_runtime.neff.rules.types import attribute_names, counts, type_breaches
from ncc_runtime.neff.table import NONE


@rule("neff-F1")
def values_are_defined(program: Program) -> Iterator[str]:
    """First stage: every value is a parameter or the result of one row, before it is read."""
    for number, fusion in enumerate(program.fusions):
        yield from (f"fusion f{number}{breach}" for breach in _undefined(fusion))
        for position, row in enumerate(fusion.body):
            if not NONE <= row.origin < len(program.origins):
                place = f"fusion f{number}, row {position}"
                yield f"{place}: origin {row.origin}, there are {len(program.origins)}"


def _undefined(fusion: Fusion) -> Iterator[str]:
    defined = fusion.parameters
    for position, row in enumerate(fusion.body):
        for operand in row.operands:
            if not 0 <= operand < defined:
                yield f", row {position}: reads v{operand}"
        expected = tuple(range(defined, defined + len(row.results)))
        if row.results != expected or not expected:
            results = ", ".join(f"v{value}" for value in row.results) or "nothing"
            yield f", row {position}: computes {results}, next is v{defined}"
        defined += len(row.results)
    if defined != len(fusion.values):
        yield f": {len(fusion.values)} values, parameters and rows make {defined}"
    for value in fusion.results:
        if not fusion.parameters <= value < defined:
            yield f": gives v{value}, which no row computes"
    if not fusion.results:
        yield ": gives nothing"


@rule("neff-F2")
def _rows_are_instructions(program: Program) -> Iterator[str]:
    known = set()
    for number, fusion in enumerate(program.fusions):
        for position, row in enumerate(fusion.body):
            results, operands = fusion.types(row.results), fusion.types(row.operands)
            attributes = tuple(sorted(row.attributes.items()))
            key = row.opcode, row.constant, attributes, results, operands
            if key not in known:
                known.add(key)
                for breach in _breaches(program, fusion, row):
                    yield f"fusion f{number}, row {position}: {row.opcode}: {breach}"


_ALONE = (Shape.CONTROL, Shape.FUSED, Shape.SIZED)
"""What no row of a fusion can be."""


def _breaches(program: Program, fusion: Fusion, row: FusedInstr) -> Iterator[str]:
    results = fusion.types(row.results)
    if row.opcode == CONSTANT:
        is_scalar = len(results) == 1 and not results[0].shape and not row.operands
        if not is_scalar or row.attributes or not is_spelled(row.constant, results[0].dtype):
            yield f"{row.constant!r} is no {', '.join(kind.type_text for kind in results)}"
        return
    if row.constant is not None:
        yield f"has the value {row.constant!r}"
    if row.opcode not in OPCODES or OPCODES[row.opcode].shape in _ALONE:
        yield "is no operation on arrays"
        return
    operands = fusion.types(row.operands)
    signature = Signature(row.opcode, results, operands, row.attributes, program.regions)
    for breaches in (counts, attribute_names, type_breaches):
        yield from breaches(signature)


RULES = (_rows_are_instructions,)
