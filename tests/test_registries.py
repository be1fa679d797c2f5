"""Every op and every opcode has every face; who adds one is told what is still missing."""

import re
from collections.abc import Collection
from pathlib import Path

import pytest

from ncc_compiler.ir import infer, ops
from ncc_runtime.neff.isa import ENGINES, OPCODES, Shape
from ncc_runtime.neff.rules.types import TYPE_RULES

ROOT = Path(__file__).parents[1]
CONTROL = {name for name, row in OPCODES.items() if row.shape is Shape.CONTROL}


def rows_of(document: str) -> list[str]:
    """First cells, in code style, of the tables of a document."""
    text = (ROOT / "docs" / document).read_text()
    return re.findall(r"^\| `([^`]+)` \|", text, re.MULTILINE)


def test_every_opcode_is_documented_once() -> None:
    rows = rows_of("isa.md")
    assert sorted(row for row in rows if row in OPCODES) == sorted(OPCODES)


def test_every_engine_is_documented() -> None:
    assert {engine.value for engine in ENGINES} <= set(rows_of("isa.md"))


def test_the_isa_document_lists_no_opcode_that_is_none() -> None:
    engines = {engine.value for engine in ENGINES}
    assert set(rows_of("isa.md")) - engines - set(OPCODES) == set()


@pytest.mark.parametrize(
    ("face", "keys"),
    [("type rule (neff/rules/types.py)", TYPE_RULES.keys() | CONTROL)],
)
def test_every_opcode_has_every_face(face: str, keys: Collection[str]) -> None:
    assert set(OPCODES) == set(keys), face


@pytest.mark.parametrize(
    ("face", "keys"),
    [("shape rule (ir/infer.py)", infer.RULES.keys())],
)
def test_every_op_has_every_face(face: str, keys: Collection[str]) -> None:
    assert set(ops.OPS) == set(keys), face
