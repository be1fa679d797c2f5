"""Changed definitions of programs with fusions, results in place and donated inputs.

Each is refused by a message, or is a program: it is listed and read back, runs, and gives the same
bits in any order of its queues. Bytes that a change makes wrong are another matter, and checked by
hashes (`test_neff_container.py`).
"""

import copy
import json
import random
from collections import Counter
from typing import Any

import ncc_runtime
from ncc_compiler.driver import compile_text
from ncc_runtime.errors import NccError
from ncc_runtime.neff import container
from ncc_runtime.neff.check import check
from ncc_runtime.neff.document import DEFINITION, files_of, program_from
from ncc_runtime.neff.listing import parse_program, print_program
from ncc_runtime.neff.program import Program
from ncc_runtime.report.rates import rates_of
from tests.example_count import examples

UPDATE = """HloModule update, replica_count=2,
  input_output_alias={ {0}: (0, {}, may-alias), {1}: (1, {}, may-alias) }
add { a = f32[] parameter(0) b = f32[] parameter(1) ROOT c = f32[] add(a, b) }
ENTRY e {
 w = f32[16,8] parameter(0)
 m = f32[16,8] parameter(1)
 x = f32[4,16] parameter(2)
 i = s32[] parameter(3)
 y = f32[4,8] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
 t = f32[4,8] tanh(y)
 g = f32[16,8] dot(x, t), lhs_contracting_dims={0}, rhs_contracting_dims={0}
 r = f32[16,8] all-reduce(g), replica_groups={{0,1}}, to_apply=add
 c = f32[] constant(0.9)
 cb = f32[16,8] broadcast(c), dimensions={}
 mm = f32[16,8] multiply(m, cb)
 m2 = f32[16,8] add(mm, r)
 w2 = f32[16,8] subtract(w, m2)
 row = f32[1,8] slice(t), slice={[0:1],[0:8]}
 z = s32[] constant(0)
 w3 = f32[16,8] dynamic-update-slice(w2, row, i, z)
 zero = f32[] constant(0)
 s = f32[4] reduce(t, zero), dimensions={1}, to_apply=add
 ROOT o = (f32[16,8], f32[16,8], f32[4]) tuple(w3, m2, s)
}
"""
PARTS = ("fusions", "fusions", "fusions", "aliases", "tensors", "var", "attributes", "outputs")
WORDS = ("negate", "reshape", "reduce", "iota", "f32", "pred", "bf16")


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Of everything inside of a JSON value."""
    items: Any = ()
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list):
        items = enumerate(value)
    found = []
    for key, inner in items:
        found += [(*path, key), *places(inner, (*path, key))]
    return found


def at(value: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        value = value[key]
    return value


def mutate(part: Any, draw: random.Random) -> None:
    """Change one number, word or list."""
    paths = places(part)
    path = draw.choice(paths)
    parent, key, value = at(part, path[:-1]), path[-1], at(part, path)
    match value:
        case bool() | None:
            parent[key] = draw.choice([True, 0, "1"])
        case int():
            near = (value + 1, value - 1, value + 64, 2 * value)
            parent[key] = draw.choice([*near, 0, 1, -1, 2**40, draw.randrange(20)])
        case str():
            alike = [at(part, other) for other in paths if other[-1] == key]
            parent[key] = draw.choice([*(word for word in alike if isinstance(word, str)), *WORDS])
        case list() if value and draw.random() < 0.5:
            value.insert(draw.randrange(len(value)), copy.deepcopy(draw.choice(value)))
        case list() if value:
            del value[draw.randrange(len(value))]
        case dict() if isinstance(parent, list):
            other = draw.randrange(len(parent))
            parent[key], parent[other] = parent[other], parent[key]


def outcome(program: Program) -> str:
    """What becomes of a program that can be read; an AssertionError if that is no good end."""
    broken = check(program)
    if broken:
        return broken[0].split()[0]
    assert parse_program(print_program(program)) == program
    packed = container.pack(program)
    assert container.unpack(packed, "mutant.neff") == program
    try:
        model = ncc_runtime.load(packed, "trn1.32xlarge")
        run = model.run(seed=1, checked=True)
        rates_of(run.trace, "3 tokens")
        for seed in range(3):
            other = model.run(seed=1, shuffle_seed=seed, clock=False)
            for one, again in zip(run.outputs, other.outputs, strict=True):
                assert one.tobytes() == again.tobytes()
    except NccError as error:
        return type(error).__name__
    return "runs"


def test_a_changed_definition_is_refused_or_is_a_program() -> None:
    program = compile_text(UPDATE).program
    assert program.fusions
    assert program.donated()
    files = files_of(program)
    found: Counter[str] = Counter()
    for seed in range(examples(150)):
        draw = random.Random(seed)
        document = json.loads(files[DEFINITION])
        mutate(document[draw.choice(PARTS)], draw)
        try:
            mutant = program_from({**files, DEFINITION: json.dumps(document).encode()})
        except NccError:
            found["unreadable"] += 1
            continue
        found[outcome(mutant)] += 1
    assert {"neff-F1", "neff-F2", "unreadable", "runs"} <= set(found), found
    assert len(found) > 6, found
