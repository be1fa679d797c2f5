"""The `.neff` file: reproducible bytes, atomic writes, and no damage that goes unnoticed."""

import hashlib
import io
import os
import shutil
import signal
import struct
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable
from pathlib import Path

import attrs
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ncc_runtime.errors import NeffError
from ncc_runtime.neff.check import check
from ncc_runtime.neff.container import Header, header_bytes, load, pack, save, unpack
from ncc_runtime.neff.document import DEFINITION, files_of
from ncc_runtime.neff.listing import parse_program
from ncc_runtime.neff.program import Program
from tests.draws_neff import programs
from tests.example_count import examples

LISTING = Path(__file__).parents[1] / "data" / "neff" / "step.listing"
LOOP = {"kind": "loop", "name": "l", "predicate": 0, "index": 0, "of": 1, "trip_count": None}
STEP = Header("step", 4, 0b10)
HEADER = struct.Struct("<5Q128sI32s16s256sI64sQI32s436s")


@pytest.fixture(scope="module")
def program() -> Program:
    return parse_program(LISTING.read_text())


@pytest.fixture(scope="module")
def packed(program: Program) -> bytes:
    return pack(program)


def names_in(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


def refusal(data: bytes) -> str:
    """The one line with which these bytes are refused."""
    with pytest.raises(NeffError) as error:
        unpack(data, "m.neff")
    text = str(error.value)
    assert text.startswith("m.neff: ")
    assert "\n" not in text
    return text.removeprefix("m.neff: ")


def sealed(files: dict[str, bytes] | list[tuple[str, bytes]], header: Header = STEP) -> bytes:
    """A file whose hashes are right, whatever is in it."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name, contents in files.items() if isinstance(files, dict) else files:
            member = tarfile.TarInfo(name)
            member.size = len(contents)
            tar.addfile(member, io.BytesIO(contents))
    return header_bytes(header, stream.getvalue()) + stream.getvalue()


@given(program=programs())
@settings(max_examples=examples(60))
def test_a_file_holds_its_program(program: Program) -> None:
    data = pack(program)
    assert unpack(data, "m.neff") == program
    assert pack(unpack(data, "m.neff")) == data


def test_random_programs_obey_the_rules() -> None:
    @given(program=programs())
    @settings(max_examples=examples(60))
    def obeys(program: Program) -> None:
        assert check(program) == ()

    obeys()


def test_the_header_has_the_documented_fields(packed: bytes) -> None:
    fields = HEADER.unpack_from(packed)
    data = packed[1024:]
    assert fields[:5] == (1, 1024, len(data), 1, 6)
    assert (fields[6], fields[10], fields[13]) == (4, 4, 0)
    assert fields[7] == hashlib.sha256(data).digest()
    assert fields[9].rstrip(b"\0") == b"step"
    assert fields[12] == 0b10  # streams other than 0, no coalesced operators
    assert fields[14] == hashlib.sha256(packed[:556] + bytes(32) + packed[588:1024]).digest()
    assert fields[15] == bytes(436)


def test_a_long_name_is_cut_between_characters(program: Program) -> None:
    data = pack(attrs.evolve(program, name="ü" * 200))
    assert HEADER.unpack_from(data)[9] == ("ü" * 127).encode() + b"\0\0"
    assert unpack(data, "m.neff").name == "ü" * 200


def test_behind_the_header_is_a_plain_tar(packed: bytes) -> None:
    with tarfile.open(fileobj=io.BytesIO(packed[1024:])) as tar:
        assert tar.getnames()[0] == "sg00/def.json"
        assert {(m.mtime, m.uid, m.gid, m.uname, m.mode) for m in tar} == {(0, 0, 0, "", 0o644)}


@pytest.mark.skipif(shutil.which("tar") is None, reason="this machine has no tar command")
def test_tail_and_tar_read_a_file(packed: bytes, tmp_path: Path) -> None:
    (tmp_path / "m.neff").write_bytes(packed)
    command = "tail -c +1025 m.neff | tar t"
    listed = subprocess.run(command, shell=True, cwd=tmp_path, capture_output=True, check=True)
    assert listed.stdout.decode().split()[:2] == ["sg00/def.json", "sg00/GpSimd.bin"]


def test_a_changed_byte_anywhere_is_noticed(packed: bytes) -> None:
    for at in range(len(packed)):
        damaged = bytearray(packed)
        damaged[at] ^= 1 << at % 8
        refusal(bytes(damaged))


def test_a_file_cut_off_anywhere_is_noticed(packed: bytes) -> None:
    for length in range(0, len(packed), 7):
        refusal(packed[:length])


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda _: b"", "0 bytes, a .neff starts with a header of 1024"),
        (lambda _: b"#!/bin/sh\n" * 200, "not a .neff file: header_size is "),
        (lambda data: data[:-1], "cut off: 20479 of 20480 bytes"),
        (lambda data: data + b"\0", "1 bytes too many"),
        (lambda data: data[:600] + b"\1" + data[601:], "the header is damaged"),
        (lambda data: data[:-1] + b"\1", "the data is damaged"),
    ],
)
def test_damage_is_named(change: Callable[[bytes], bytes], reason: str, packed: bytes) -> None:
    data = change(packed)
    assert reason in refusal(data).replace(str(len(packed) - 1024), "20480").replace(
        str(len(packed) - 1025), "20479"
    )


def resealed_header(packed: bytes, at: int, value: bytes) -> bytes:
    head = packed[:at] + value + packed[at + len(value) : 1024]
    seal = hashlib.sha256(head[:556] + bytes(32) + head[588:]).digest()
    return head[:556] + seal + head[588:] + packed[1024:]


@pytest.mark.parametrize(
    ("at", "value", "reason"),
    [
        (24, struct.pack("<Q", 2), "neff version 2.6 (package 1), this reads 1.6"),
        (32, struct.pack("<Q", 7), "(package 1): made by a newer version; update ncc"),
        (32, struct.pack("<Q", 0), "made by an older version; compile the model again"),
        (24, struct.pack("<Q", 0), "made by an older version"),
        (544, struct.pack("<Q", 1 << 20), "features this version does not know: bit 20 (0x100000)"),
        (552, struct.pack("<I", 2), "byte 552 is not what this version writes"),
        (168, struct.pack("<I", 9), "byte 168 is not what this version writes"),
        (1023, b"\1", "byte 556 is not what this version writes"),
        (204, b"\1", "byte 204 is not what this version writes"),
    ],
)  # fmt: skip
def test_a_header_with_the_right_hash_must_also_make_sense(
    at: int, value: bytes, reason: str, packed: bytes
) -> None:
    assert reason in refusal(resealed_header(packed, at, value))


def edited(
    program: Program, edit: Callable[[dict[str, object]], None], feature_bits: int = 0b10
) -> bytes:
    files = files_of(program)
    document = msgspec.json.decode(files[DEFINITION])
    edit(document)
    files[DEFINITION] = msgspec.json.encode(document, order="sorted")
    return sealed(files, Header(program.name, program.ranks, feature_bits))


def _set(*path: str | int, to: object) -> Callable[[dict[str, object]], None]:
    def edit(document: dict[str, object]) -> None:
        place: object = document
        for step in path[:-1]:
            place = place[step]  # type: ignore[index]
        place[path[-1]] = to  # type: ignore[index]

    return edit


@pytest.mark.parametrize(
    ("edit", "reason"),
    [
        (_set("hbm_bytes", to="2048"), "Expected `int`, got `str` - at `$.hbm_bytes`"),
        (_set("hbm_bytes", to=2.5), "Expected `int`, got `float`"),
        (_set("hbm_bytes", to=True), "Expected `int`, got `bool`"),
        (_set("replica_count", to=-1), "'replica_count' must be >= 1"),
        (_set("replica_count", to=2**62), "neff-N1"),
        (_set("var", 0, "size", to=2**80), "'size_bytes' must be <= 9223372036854775807"),
        (_set("var", 0, "type", to="virtual"), "Invalid enum value 'virtual' - at `$.var[0].type`"),
        (_set("var", 0, "address", to=7), "neff-M1"),
        (_set("var", 1, "var_id", to=0), "var 1 has var_id 0"),
        (_set("var", 2, "file_name", to="../../etc/passwd"), "passwd', which is missing"),
        (_set("var", 2, "file_name", to=None), "neff-M4"),
        (_set("tensors", 0, "shape", to=[2**40, 2**40]), "neff-M3"),
        (_set("tensors", 0, "shape", to=[-1]), "must be >= 0"),
        (_set("tensors", 0, "dtype", to="f33"), "Invalid enum value 'f33'"),
        (_set("inputs", to=[0, 99]), "neff-N2"),
        (_set("cc", 0, "groups", to=[[0, 1], [2, 2**70]]), "neff-P3"),
        (_set("cc", 0, "groups", to=[[0, 1], [2, 5]]), "neff-P3"),
        (_set("cc", 0, "channel_id", to=2**70), "'channel_id' must be < 9223372036854775808"),
        (_set("cc", 0, "op", to="all-to-none"), "Invalid enum value"),
        (_set("cc", 2, "pairs", to=[[0, 1, 2]]), "Expected `array` of length 2"),
        (_set("cc", 0, "surprise", to=1), "is not what this version writes"),
        (_set("attributes", 0, to={"lhs_batch": 0.5}), "Expected `bool | int | str | array`"),
        (_set("blocks", to=[{**LOOP, "kind": "while"}]), "value 'while' - at `$.blocks[0].kind`"),
        (_set("blocks", to=[{**LOOP, "trip_count": "3"}]), "Expected `int | null`, got `str`"),
        (_set("blocks", to=[{**LOOP, "predicate": 99}]), "neff-N2"),
        (_set("blocks", to=[LOOP]), "neff-C1"),
        (_set("regions", 0, "body", 0, "operands", to=[0, 9]), "neff-N7"),
        (_set("engines", to=[]), "neff-N3"),
        (_set("engines", 0, "instructions", to=10**15), "instructions over"),
        (_set("engines", 0, "instructions", to=-1), "instructions over"),
        (_set("engines", 0, "opcodes", to=["halt"]), "neff-N4"),
        (_set("engines", 0, "engine", to="Tensor"), "neff-N3"),
    ],
)  # fmt: skip
def test_nonsense_with_the_right_hash_is_refused(
    edit: Callable[[dict[str, object]], None], reason: str, program: Program
) -> None:
    assert reason in refusal(edited(program, edit))


def test_what_a_block_says_by_default_must_be_said() -> None:
    program = parse_program((LISTING.parent / "loop.listing").read_text())

    def forget(document: dict[str, object]) -> None:
        blocks = document["blocks"]
        assert isinstance(blocks, list)
        del blocks[0]["index"]

    assert unpack(edited(program, lambda _: None, 0), "m.neff") == program
    assert "is not what this version writes" in refusal(edited(program, forget, 0))


def test_a_missing_key_is_refused(program: Program) -> None:
    def forget(document: dict[str, object]) -> None:
        del document["origins"]

    assert "missing required field `origins`" in refusal(edited(program, forget))


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        (b"", "Input data was truncated"),
        (b"[" * 200_000, "def.json: "),
        (b'{"a":' * 200_000, "def.json: "),
        (b'{"hbm_bytes":NaN}', "JSON is malformed"),
        (b'{"name":"\xff"}', "def.json: "),
        (b"null", "Expected `object`, got `null`"),
    ],
)
def test_a_definition_that_is_no_json_object_is_refused(document: bytes, reason: str) -> None:
    assert reason in refusal(sealed({DEFINITION: document}))


def test_a_repeated_key_is_refused(program: Program) -> None:
    files = files_of(program)
    files[DEFINITION] = files[DEFINITION][:-1] + b',"name":"step"}'
    assert "is not what this version writes" in refusal(sealed(files))


def test_files_too_many_missing_or_twice_are_refused(program: Program) -> None:
    files = list(files_of(program).items())
    assert "is not what this version writes" in refusal(sealed([*files, ("../evil", b"x")]))
    assert "is not what this version writes" in refusal(sealed([*files, files[1]]))
    assert "is missing" in refusal(sealed(files[1:]))
    assert "which is missing" in refusal(sealed(files[:-1]))


def test_a_tar_of_another_kind_is_refused(program: Program) -> None:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as tar:
        member = tarfile.TarInfo("sg00/" + "d" * 300)
        tar.addfile(member)
    data = stream.getvalue()
    assert "sg00/def.json is missing" in refusal(header_bytes(Header("", 1, 0), data) + data)


def test_columns_of_nonsense_are_refused(program: Program) -> None:
    name = "sg00/Vector.bin"
    files = files_of(program)

    @given(noise=st.binary(min_size=1, max_size=8), at=st.integers(0, len(files[name]) - 8))
    @settings(max_examples=examples(200))
    def never_crash(noise: bytes, at: int) -> None:
        damaged = files[name][:at] + noise + files[name][at + len(noise) :]
        data = sealed({**files, name: damaged})
        message = ""
        try:
            unpack(data, "m.neff")
        except NeffError as error:
            message = str(error)
        assert "\n" not in message

    never_crash()


def test_load_reads_what_save_wrote(program: Program, packed: bytes, tmp_path: Path) -> None:
    save(packed, tmp_path / "m.neff")
    assert load(tmp_path / "m.neff") == program
    assert names_in(tmp_path) == ["m.neff"]


def test_a_saved_file_has_the_rights_of_any_new_file(tmp_path: Path) -> None:
    save(b"new", tmp_path / "m.neff")
    (tmp_path / "other").touch()
    assert (tmp_path / "m.neff").stat().st_mode == (tmp_path / "other").stat().st_mode


def test_load_refuses_what_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(NeffError, match="is a directory"):
        load(tmp_path)
    with pytest.raises(NeffError, match="no such file"):
        load(tmp_path / "absent.neff")
    with pytest.raises(NeffError, match=r"not a \.neff file"):
        load("/dev/zero")


def test_save_follows_a_symbolic_link(tmp_path: Path) -> None:
    (tmp_path / "real").write_bytes(b"old")
    (tmp_path / "link").symlink_to("real")
    save(b"new", tmp_path / "link")
    assert (tmp_path / "real").read_bytes() == b"new"
    assert (tmp_path / "link").is_symlink()


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("folder", "cannot be written: is a directory"),
        ("absent/m.neff", "cannot be written: no such file or directory"),
        ("file/m.neff", "cannot be written: not a directory"),
        ("loop", "cannot be written: too many levels of symbolic links"),
        ("x" * 300, "cannot be written: file name too long"),
    ],
)
def test_save_says_why_it_cannot_and_leaves_nothing(name: str, reason: str, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to("loop")
    before = names_in(tmp_path)
    with pytest.raises(NeffError, match=reason):
        save(b"new", tmp_path / name)
    assert names_in(tmp_path) == before


def test_save_writes_to_what_is_no_file(tmp_path: Path) -> None:
    save(b"gone", "/dev/null")
    assert Path("/dev/null").is_char_device()


def test_a_failed_write_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "m.neff").write_bytes(b"old")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(NeffError, match="cannot be written: no space left on device"):
        save(b"new", tmp_path / "m.neff")
    assert (tmp_path / "m.neff").read_bytes() == b"old"
    assert names_in(tmp_path) == ["m.neff"]


def test_killing_the_writer_leaves_the_old_file_or_the_new(tmp_path: Path) -> None:
    target = tmp_path / "m.neff"
    versions = [bytes([k]) * 4_000_000 for k in range(2)]
    target.write_bytes(versions[0])
    script = (
        "import sys; from ncc_runtime.neff.container import save\n"
        "print('ready', flush=True)\n"
        "while True:\n"
        "    for k in range(2): save(bytes([k]) * 4_000_000, sys.argv[1])\n"
    )
    for wait_s in (0.0, 0.013, 0.029):
        command = [sys.executable, "-c", script, str(target)]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as writer:
            assert writer.stdout is not None
            writer.stdout.readline()
            time.sleep(wait_s)
            writer.send_signal(signal.SIGKILL)
        assert target.read_bytes() in versions
