"""Slow: a `.neff` damaged in every byte or in its numbers, `nccc compile` killed at any moment."""

import itertools
import random
import subprocess
import sys
import time
from pathlib import Path

import attrs
import numpy as np
import pytest

import ncc_runtime
from ncc_compiler.cli import main
from ncc_compiler.driver import compile_file
from ncc_runtime.errors import NccError, NeffError
from ncc_runtime.neff.container import HEADER_BYTES, Header, header_bytes, load, pack, unpack
from ncc_runtime.neff.listing import parse_program
from ncc_runtime.neff.program import Program
from ncc_runtime.neff.table import COLUMNS as COLUMN_TYPES

pytestmark = pytest.mark.slow

LISTING = Path(__file__).parent / "data" / "neff" / "step.listing"
KILLS = 100
CHANGES = 200
COMPILE = [
    *(sys.executable, "-c", "import sys; from ncc_compiler.cli import main; sys.exit(main())"),
    *("compile", "-O2", "--pass-option", f"fold-constants.limit_bytes={1 << 24}"),
]


@pytest.fixture(scope="module")
def packed() -> bytes:
    return pack(parse_program(LISTING.read_text()))


def refusal(path: Path) -> str:
    """The line with which a file is refused; nothing else may be raised."""
    with pytest.raises(NeffError) as error:
        load(path)
    text = str(error.value)
    assert text.startswith(f"{path}: ")
    assert "\n" not in text
    return text


def test_a_changed_byte_anywhere_in_a_file_is_refused_in_one_line(
    packed: bytes, tmp_path: Path
) -> None:
    path = tmp_path / "m.neff"
    patterns = random.Random(1)
    for at in range(len(packed)):
        damaged = bytearray(packed)
        damaged[at] ^= patterns.randrange(1, 256)
        path.write_bytes(damaged)
        refusal(path)


def test_a_file_cut_off_at_any_length_is_refused_in_one_line(packed: bytes, tmp_path: Path) -> None:
    path = tmp_path / "m.neff"
    path.write_bytes(packed)
    for length in reversed(range(len(packed))):
        with path.open("r+b") as stream:
            stream.truncate(length)
        refusal(path)


def test_a_changed_byte_under_the_right_hash_is_refused_in_one_line_or_another_program(
    packed: bytes,
) -> None:
    whole, patterns = parse_program(LISTING.read_text()), random.Random(2)
    header, refused = Header(whole.name, whole.ranks, 0b10), 0
    for at in range(len(packed) - HEADER_BYTES):
        body = bytearray(packed[HEADER_BYTES:])
        body[at] ^= patterns.randrange(1, 256)
        data = header_bytes(header, bytes(body)) + bytes(body)
        message = ""
        try:
            assert unpack(data, "m.neff") != whole
        except NeffError as error:
            message = str(error)
        assert "\n" not in message
        refused += bool(message)
    assert refused > 0.9 * (len(packed) - HEADER_BYTES)


COLUMNS = [name for name in COLUMN_TYPES if name != "start"]


def with_a_changed_number(program: Program, draw: random.Random) -> Program:
    """One cell of the columns of an engine is another number: near, of another row, or an end."""
    engine = draw.choice([one for one, table in program.queues.items() if len(table)])
    table, name = program.queues[engine], draw.choice(COLUMNS)
    column = getattr(table, name).copy()
    info, at = np.iinfo(column.dtype), draw.randrange(len(column))
    near = int(column[at]) + draw.choice([-1, 1])
    number = draw.choice([near, int(draw.choice(column)), int(info.max), int(info.min), 1 << 20])
    column[at] = min(max(number, info.min), info.max)
    column.setflags(write=False)
    changed = attrs.evolve(table, **{name: column})
    return attrs.evolve(program, queues={**program.queues, engine: changed})


@pytest.mark.parametrize("name", ["moe_dispatch", "argmax", "zero2_step"])
def test_a_changed_number_of_a_queue_is_refused_or_a_program_that_runs(name: str) -> None:
    """It runs as its instructions say: in any order that they allow the outputs are the same."""
    model = Path(__file__).parents[1] / "ir_examples" / f"{name}.ir"
    whole, draw, ran = unpack(compile_file(model).data, name), random.Random(4), 0
    for number in range(CHANGES):
        data = pack(with_a_changed_number(whole, draw))
        try:
            run = ncc_runtime.load(data).run(seed=1, checked=True, shuffle_seed=number)
            again = ncc_runtime.load(data).run(seed=1, clock=False, verify=False)
        except NccError:
            continue
        ran += 1
        for one, other in zip(run.outputs, again.outputs, strict=True):
            assert one.tobytes() == other.tobytes()
    assert 0 < ran < CHANGES


def model_of(folder: Path, offset: int) -> tuple[Path, bytes]:
    """A model with a constant of megabytes, and the file it becomes."""
    model = folder / f"m{offset}.ir"
    model.write_text(
        "ENTRY %m { %x = f32[1048576] parameter(0)\n"
        "%i = f32[1048576] iota(), iota_dimension=0\n"
        f"%c = f32[] constant({offset}) %b = f32[1048576] broadcast(%c), dimensions={{}}\n"
        "%k = f32[1048576] add(%i, %b) ROOT %r = f32[1048576] add(%x, %k) }"
    )
    target = folder / f"m{offset}.neff"
    subprocess.run([*COMPILE, model, "--ranks", "2", "-o", target], check=True, capture_output=True)
    return model, target.read_bytes()


def kill_at_a_random_moment(
    writer: subprocess.Popen[bytes], folder: Path, moments: random.Random, took_s: float
) -> None:
    """Any moment of a compilation, or, as writing is short, every other time one of that."""
    if moments.random() < 0.5:
        time.sleep(moments.uniform(0, 1.1 * took_s))
    else:
        before = set(folder.iterdir())
        while writer.poll() is None and set(folder.iterdir()) == before:
            pass
        time.sleep(moments.uniform(0, 0.01))
    writer.kill()
    writer.wait()


def test_killing_nccc_at_any_moment_leaves_the_old_file_or_the_new(tmp_path: Path) -> None:
    models, out = tmp_path / "models", tmp_path / "out"
    models.mkdir()
    out.mkdir()
    start = time.monotonic()
    sources, versions = zip(*(model_of(models, offset) for offset in (0, 1)), strict=True)
    took_s = (time.monotonic() - start) / 2
    target, moments, most_left = out / "m.neff", random.Random(3), 0
    target.write_bytes(versions[0])
    for number in itertools.count():
        # However busy the machine is, some kill has to come while a file is being written.
        if number >= KILLS and most_left > 0:
            break
        command = [*COMPILE, sources[number % 2], "--ranks", "2", "-o", target]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL) as writer:
            kill_at_a_random_moment(writer, out, moments, took_s)
        most_left = max(most_left, len(list(out.iterdir())) - 1)
        assert target.read_bytes() in versions
    assert main(["compile", str(sources[0]), "--ranks", "2", "-o", str(target)]) == 0
    assert [entry.name for entry in out.iterdir()] == ["m.neff"]
