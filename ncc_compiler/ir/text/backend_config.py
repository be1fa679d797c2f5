"""Ops that HLO lacks, most of them collectives, between custom calls of a text and the graph's ops.

    ncc.reduce(x), replica_groups={{0,1},{2,3}}, root=1, reduction=add

is an op of the graph and stands in a text, so that XLA's parser takes it, as

    custom-call(x), custom_call_target="ncc.reduce",
        backend_config={"replica_groups":[[0,1],[2,3]],"root":1,"reduction":"add"}

On the way in each key becomes an attribute that lies where the key's value lies, character for
character, so that complaints about it find their place.
"""

import json
import re
from collections.abc import Mapping

import attrs

from ncc_compiler.ir.attributes import spell_attribute
from ncc_compiler.ir.graph import Attribute
from ncc_compiler.ir.op_tables.collectives import NCC
from ncc_compiler.ir.op_tables.op_row import OpDef
from ncc_compiler.ir.ops import OPS
from ncc_compiler.ir.text.reading import TextReader, suggestion
from ncc_compiler.syntax import tree
from ncc_runtime.input_files import json_of
from ncc_runtime.neff.shared.groups import ExplicitGroups

CUSTOM_CALL, TARGET, CONFIG = "custom-call", "custom_call_target", "backend_config"
IS_A_CONFIG = "custom-call-C3"

_QUOTE = r'\\?"'
_WORD = rf"{_QUOTE}[^\"\\]*{_QUOTE}"
_LIST = r"\[(?:[^\[\]]|\[[^\[\]]*\])*\]"
_ENTRY = re.compile(
    rf"{_QUOTE}(?P<key>\w+){_QUOTE}\s*:\s*(?P<value>{_WORD}|{_LIST}|[^\s,{{}}\[\]\"]+)"
)


def _is_ncc(op: str) -> bool:
    """Whether the graph has an op of this name that is a custom call in a text."""
    return op.startswith(NCC) and op in OPS


def as_collective(written: tree.Instruction, reading: TextReader) -> tree.Instruction | None:
    """The instruction; a custom call of such a target becomes its op. None after a complaint."""
    name = written.op.text
    if _is_ncc(name):
        hint = f'write {CUSTOM_CALL}(…), {TARGET}="{name}"'
        place = (written.op.start, written.op.end)
        reading.complain("op-C1", f"{name} is no op of HLO", place, hint)
        return None
    if name != CUSTOM_CALL:
        return written
    target = next((row for row in written.attributes if row.key == TARGET), None)
    row = OPS.get(target.value.strip('"')) if target else None
    if row is None or not _is_ncc(row.name):
        return written
    attributes: list[tree.Attribute] = []
    for attribute in written.attributes:
        if attribute.key == CONFIG:
            entries = _entries(attribute, row, reading)
            if entries is None:
                return None
            attributes += entries
        elif attribute.key != TARGET:
            attributes.append(attribute)
    op = tree.Word(row.name, written.op.start, written.op.end)
    return attrs.evolve(written, op=op, attributes=tuple(attributes))


def _entries(
    config: tree.Attribute, row: OpDef, reading: TextReader
) -> list[tree.Attribute] | None:
    """An attribute for each key of the configuration, or None after a complaint."""
    try:
        known = json_of(config.value)
        if isinstance(known, str):  # XLA also prints the object as a quoted string
            known = json_of(known)
        if not isinstance(known, dict):
            raise ValueError(f"it is {str(known)[:40]}")
    except ValueError as error:
        _complain(reading, config, f"{CONFIG} of {row.name} is no JSON object: {error}", row)
        return None
    wrong = next((key for key in known if row.attribute(key) is None), None)
    if wrong is not None:
        fact = f"{row.name} has no attribute {wrong} in its {CONFIG}"
        names = [attribute.name for attribute in row.attributes]
        hint = suggestion(wrong, names) or f"it has {', '.join(names)}"
        _complain(reading, config, fact, row, hint)
        return None
    entries = {match["key"]: match for match in _ENTRY.finditer(config.value)}
    if entries.keys() != known.keys():
        _complain(reading, config, f"{CONFIG} of {row.name} holds more than plain values", row)
        return None
    return [_attribute(config, key, match) for key, match in entries.items()]


_EXAMPLES: Mapping[str, object] = {"dimensions": [0], "reduction": "add", "root": 0}


def _complain(
    reading: TextReader, config: tree.Attribute, fact: str, row: OpDef, hint: str = ""
) -> None:
    example = json.dumps({a.name: _EXAMPLES[a.name] for a in row.attributes if a.required})
    place = (config.value_start, config.end)
    reading.complain(IS_A_CONFIG, fact, place, hint or f"for example {CONFIG}={example}")


def _attribute(config: tree.Attribute, key: str, match: re.Match[str]) -> tree.Attribute:
    """The entry as an attribute in HLO's spelling, of the same length as in the text."""
    start, end = match.span("value")
    text = match["value"]
    if text.startswith("["):
        text = text.replace("[", "{").replace("]", "}")
    else:
        quote = len(text) - len(text.lstrip('\\"'))
        text, start = text[quote : len(text) - quote], start + quote
    at = config.value_start
    return tree.Attribute(key, text, at + match.start(), at + start, at + end)


def spelled(op: str, attributes: Mapping[str, Attribute]) -> tuple[str, Mapping[str, str]]:
    """The op and the attributes as a text has them."""
    if not _is_ncc(op):
        return op, {key: spell_attribute(value) for key, value in attributes.items()}
    row = OPS[op]
    config = {key: _plain(value) for key, value in attributes.items() if row.attribute(key)}
    call = {TARGET: f'"{op}"'}
    if config:
        call[CONFIG] = json.dumps(config, separators=(",", ":"))
    rest = {key: value for key, value in attributes.items() if key not in config}
    return CUSTOM_CALL, call | {key: spell_attribute(value) for key, value in rest.items()}


def _plain(value: Attribute) -> object:
    """An attribute as a value of JSON; groups that are not spelled out stay a text."""
    if isinstance(value, ExplicitGroups):
        return value.groups
    return value if isinstance(value, int | tuple) else spell_attribute(value)
