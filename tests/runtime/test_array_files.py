"""Files of arrays: what is read from them, and what hostile or damaged ones are told."""

import io
import json
import struct
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from ncc_runtime import array_files
from ncc_runtime.array_files import open_arrays, write_arrays
from ncc_runtime.errors import InputError


def read(path: Path) -> dict[str, np.ndarray]:
    with open_arrays(str(path)) as arrays:
        return {name: np.asarray(one) for name, one in arrays.items()}


def npz(path: Path, members: Mapping[str, bytes], **how) -> Path:
    with zipfile.ZipFile(path, "w", **how) as file:
        for name, data in members.items():
            file.writestr(f"{name}.npy", data)
    return path


def npy(header: str | bytes, data: bytes = b"", version: int = 1) -> bytes:
    text = header if isinstance(header, bytes) else header.encode("latin1")
    size = struct.pack("<H" if version == 1 else "<I", len(text))
    return b"\x93NUMPY" + bytes([version, 0]) + size + text + data


def header(descr: str = "'<f4'", shape: str = "(2,)", order: str = "False") -> str:
    return f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}}}"


ARRAYS = {
    "a": np.arange(6, dtype=">f4").reshape(2, 3),
    "b": np.asfortranarray(np.arange(6, dtype=np.int64).reshape(2, 3)),
    "params['w/1']": np.array(True),
    "empty": np.zeros((3, 0), np.complex64),
}


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_what_numpy_saves_is_read(tmp_path: Path, save) -> None:
    save(tmp_path / "x.npz", **ARRAYS)
    found = read(tmp_path / "x.npz")
    assert found.keys() == ARRAYS.keys()
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(found[name], array)
        assert found[name].dtype == array.dtype


@pytest.mark.parametrize("version", [1, 2, 3])
def test_every_version_of_a_header_is_read(tmp_path: Path, version: int) -> None:
    path = npz(tmp_path / "x.npz", {"a": npy(header(), bytes(8), version)})
    np.testing.assert_array_equal(read(path)["a"], [0, 0])


def test_types_that_numpy_lacks_come_as_their_bytes(tmp_path: Path) -> None:
    ones = np.ones(3, np.float32)
    types = {"bf16": "bfloat16", "e4": "float8_e4m3fn", "e5": "float8_e5m2", "s4": "int4"}
    arrays = {name: ones.astype(getattr(ml_dtypes, dtype)) for name, dtype in types.items()}
    np.savez(tmp_path / "x.npz", **arrays)
    found = read(tmp_path / "x.npz")
    assert [str(one.dtype) for one in found.values()] == ["|V2", "|V1", "float8_e5m2", "|V1"]
    assert all(found[name].tobytes() == arrays[name].tobytes() for name in types)


HEADERS = {
    "an open bracket": "{'descr': '<f4', 'fortran_order': False, 'shape': (2,",
    "a letter behind a number": header(shape="(1L,)"),
    "nested too deep": "[" * 5000,
    "too many signs": "-" * 9000 + "1",
    "a null": "\0",
    "no dictionary": "1",
    "too few keys": "{'descr': '<f4'}",
    "one key more": header()[:-1] + ", 'x': 1}",
    "a size of text": header(shape="('2',)"),
    "a true size": header(shape="(True,)"),
    "a negative size": header(shape="(-2,)"),
    "a size of many digits": header(shape=f"({'9' * 5000},)"),
    "a size beyond addresses": header(shape=f"({2**70},)"),
    "sizes whose product overflows": header(shape=f"({2**62}, {2**62})"),
    "many dimensions": header(shape=f"({'1,' * 100})"),
    "no tuple": header(shape="2"),
    "order of another kind": header(order="2"),
    "objects": header("'|O'"),
    "records": header("[('a', '<f4')]"),
    "an array of arrays": header("'(2,)f4'"),
    "text": header("'<U4'"),
    "times": header("'<M8[s]'"),
    "no type": header("'spam'"),
    "a type of no size": header("'V0'"),
    "a huge type": header("'V99999999999999'"),
    "a call": "__import__('os').abort()",
    "bytes that are no text": b"\xff\xfe\x00",
    "a long one": header() + " " * 20_000,
}


@pytest.mark.parametrize("text", HEADERS.values(), ids=HEADERS)
@pytest.mark.parametrize("version", [1, 2, 3])
def test_a_header_that_numpy_does_not_write_is_refused(tmp_path, text, version, recwarn) -> None:
    path = npz(tmp_path / "x.npz", {"arg0": npy(text, bytes(8), version)})
    with pytest.raises(InputError, match=r"numpy\.savez") as caught:
        read(path)
    assert str(caught.value).startswith(f"{path}: 'arg0' ")
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400
    assert not recwarn.list


@pytest.mark.parametrize(
    "member",
    [
        b"",
        b"\x93NUMPY",
        b"\x93NUMPY\x01\x00",
        b"text",
        npy(header())[:-5],
        npy(header(), b"1234567"),
    ],
)
def test_a_member_that_is_cut_is_refused(tmp_path: Path, member: bytes) -> None:
    with pytest.raises(InputError, match="'arg0'"):
        read(npz(tmp_path / "x.npz", {"arg0": member}))


def test_a_name_twice_and_other_compressions_are_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as file:
        file.writestr("a.npy", npy(header(), bytes(8)))
        with pytest.warns(UserWarning, match="Duplicate name"):
            file.writestr("a.npy", npy(header(), bytes(8)))
    with pytest.raises(InputError, match="'a' is there twice"):
        read(tmp_path / "x.npz")
    for kind in (zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2):
        path = npz(tmp_path / "y.npz", {"a": npy(header(), bytes(8))}, compression=kind)
        with pytest.raises(InputError, match="compressed in a way that numpy does not write"):
            read(path)


def patched(path: Path, at: int, value: bytes, *, local: bool = False) -> Path:
    """The file with bytes of its only member's directory entry, or local header, replaced."""
    data = bytearray(path.read_bytes())
    start = data.rfind(b"PK\1\2") if not local else 0
    data[start + at : start + at + len(value)] = value
    path.write_bytes(data)
    return path


@pytest.mark.parametrize(
    ("at", "value"),
    [
        (8, b"\1\0"),  # encrypted
        (10, b"\x63\0"),  # an unknown compression
        (16, b"abcd"),  # another sum
        (20, struct.pack("<I", 10)),  # fewer bytes compressed
        (24, struct.pack("<I", 10)),  # fewer bytes
        (24, struct.pack("<I", 10**9)),  # more bytes
        (24, b"\xff\xff\xff\xff"),  # zip64, without its sizes
        (42, struct.pack("<I", 10**6)),  # elsewhere
    ],
)
@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_a_directory_that_lies_is_refused(tmp_path, at: int, value: bytes, compression) -> None:
    member = {"arg0": npy(header(), bytes(8))}
    path = patched(npz(tmp_path / "x.npz", member, compression=compression), at, value)
    with pytest.raises(InputError, match=r"x\.npz"):
        read(path)


def test_a_bomb_is_refused_by_its_shape_before_it_is_unpacked(tmp_path: Path, monkeypatch) -> None:
    size = 1 << 28
    text = header("'|u1'", f"({size},)")
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as file, file.open("a.npy", "w") as one:
        one.write(npy(text))
        for _ in range(size >> 20):
            one.write(bytes(1 << 20))
    (tmp_path / "x.npz").write_bytes(data.getvalue())
    taken = []
    inside = zipfile.ZipExtFile.read

    def counting(self, n=-1):
        got = inside(self, n)
        taken.append(len(got))
        return got

    monkeypatch.setattr(zipfile.ZipExtFile, "read", counting)
    with open_arrays(str(tmp_path / "x.npz")) as arrays:
        assert arrays["a"].shape == (size,)
    assert sum(taken) < 1000


def test_too_many_members_are_refused(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(array_files, "_MOST_MEMBERS", 2)
    with pytest.raises(InputError, match="holds 3 arrays, more than any program takes"):
        read(npz(tmp_path / "x.npz", dict.fromkeys("abc", b"")))


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "zero.safetensors").symlink_to("/dev/zero")
    (tmp_path / "zero.npz").symlink_to("/dev/zero")
    for path in (tmp_path / "zero.safetensors", tmp_path / "zero.npz"):
        with pytest.raises(InputError, match="not a regular file"):
            read(path)


def tensors(path: Path, header: object, data: bytes = b"", length: int | None = None) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + data)
    return path


def entry(start: int, end: int, shape: object = (2,), dtype: str = "F32") -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


def test_safetensors_are_read_in_the_order_of_the_file(tmp_path: Path) -> None:
    data = np.arange(2, dtype=np.float32).tobytes() + np.ones(3, ml_dtypes.float8_e4m3fn).tobytes()
    what = {"z": entry(0, 8), "a": entry(8, 11, [3], "F8_E4M3"), "0": entry(11, 11, [0])}
    found = read(tensors(tmp_path / "x.safetensors", what, data))
    np.testing.assert_array_equal(found["z"], np.arange(2, dtype=np.float32))
    np.testing.assert_array_equal(found["a"], np.ones(3, ml_dtypes.float8_e4m3fn))
    assert found["0"].shape == (0,)


@pytest.mark.parametrize(
    ("what", "length"),
    [
        ({"a": entry(4, 12)}, None),  # a gap
        ({"a": entry(0, 8), "b": entry(0, 8)}, None),  # one over the other
        ({"a": entry(0, 8, [2**40, 2**40])}, None),
        ({"a": entry(0, 8, [-2])}, None),
        ({"a": entry(0, 80, [20])}, None),  # beyond the end
        ({"a": entry(8, 0)}, None),
        ({"a": entry(0, 8, dtype="F31")}, None),
        (b"[" * 100_000, None),
        (b"\xff\xff", None),
        (b"", None),
        ({"a": entry(0, 8)}, 2**63),
        ({"a": entry(0, 8)}, 2**40),
        ({"a": entry(0, 8)}, 3),
    ],
)
def test_a_safetensors_header_that_lies_is_refused(tmp_path: Path, what, length) -> None:
    path = tensors(tmp_path / "x.safetensors", what, bytes(8), length)
    with pytest.raises(InputError, match=r"x\.safetensors: not a safetensors file"):
        read(path)


def test_a_safetensors_type_without_an_hlo_type_is_named(tmp_path: Path) -> None:
    path = tensors(tmp_path / "x.safetensors", {"a": entry(0, 1, [2], "F4")}, bytes(1))
    with pytest.raises(InputError, match="'a' has dtype F4, which has no HLO type"):
        read(path)


def mutant(data: bytes, random: np.random.Generator) -> bytes:
    """The bytes with a few replaced, dropped, doubled or made extreme."""
    changed = bytearray(data)
    for _ in range(random.integers(1, 5)):
        at = int(random.integers(len(changed)))
        match random.integers(5):
            case 0:
                changed[at] = random.integers(256)
            case 1:
                changed[at] ^= 1 << random.integers(8)
            case 2:
                del changed[at : at + random.integers(1, 9)]
            case 3:
                changed[at:at] = changed[at : at + random.integers(1, 9)]
            case 4:
                changed[at : at + 4] = random.choice([b"\xff" * 4, bytes(4), b"\x7f\xff\xff\xff"])
        changed = changed or bytearray(1)
    return bytes(changed)


def seeds(folder: Path) -> list[bytes]:
    np.savez(folder / "a.npz", **ARRAYS)
    np.savez_compressed(folder / "b.npz", arg0=np.arange(50.0), arg1=np.ones(3, np.float16))
    write_arrays(str(folder / "c.safetensors"), [np.ones((2, 3)), np.arange(4)])
    inner = npz(folder / "d.npz", {"a": zlib.compress(bytes(100))})
    return [path.read_bytes() for path in (folder / "a.npz", folder / "b.npz", inner)] + [
        (folder / "c.safetensors").read_bytes()
    ]


def read_mutants(folder: Path, count: int) -> int:
    """How many of the mutants are refused; whatever else they raise is raised."""
    random = np.random.default_rng(count)
    originals, refused, longest = seeds(folder), 0, 0
    for k in range(count):
        data = originals[k % len(originals)]
        path = folder / ("m.safetensors" if k % len(originals) == 3 else "m.npz")
        path.write_bytes(mutant(data, random))
        try:
            read(path)
        except InputError as error:
            refused += 1
            longest = max(longest, len(str(error)))
    assert longest < 1000
    return refused


def test_a_mutant_is_read_or_refused(tmp_path: Path) -> None:
    assert read_mutants(tmp_path, 400) > 200


@pytest.mark.slow
def test_many_mutants_are_read_or_refused(tmp_path: Path) -> None:
    assert read_mutants(tmp_path, 20_000) > 10_000
