"""Files of named arrays, in and out; `.npz` or `.safetensors`.

Names, types and shapes come from the directory of a file and the headers of its members; an array
is decompressed only when it is used. So a file is refused without cost, however large it unpacks.
"""

import ast
import contextlib
import functools
import io
import json
import math
import stat
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import IO, Any, BinaryIO

import attrs
import numpy as np

from ncc_runtime.errors import InputError
from ncc_runtime.input_files import MOST_RECOGNISED_BYTES, FileRole, recognised
from ncc_runtime.neff.shared.dtypes import DType, storable
from ncc_runtime.neff.whole_file import check_target, replacing
from ncc_runtime.ranked_array import RankedArray

SUFFIXES = (".npz", ".safetensors")

_SAFETENSORS_NAMES = {
    "BOOL": DType.PRED,
    "I8": DType.S8,
    "I16": DType.S16,
    "I32": DType.S32,
    "I64": DType.S64,
    "U8": DType.U8,
    "U16": DType.U16,
    "U32": DType.U32,
    "U64": DType.U64,
    "BF16": DType.BF16,
    "F16": DType.F16,
    "F32": DType.F32,
    "F64": DType.F64,
    "F8_E4M3": DType.F8E4M3FN,
    "F8_E4M3FNUZ": DType.F8E4M3FNUZ,
    "F8_E5M2": DType.F8E5M2,
    "F8_E5M2FNUZ": DType.F8E5M2FNUZ,
    "F8_E8M0": DType.F8E8M0FNU,
    "C64": DType.C64,
}

_HEADER_BYTES = 10_000  # of a member; numpy's own limit
_PIECE_BYTES = 1 << 20
_MOST_MEMBERS = 1 << 16
_SHOWN = 60  # letters of a name that messages show


@attrs.frozen(eq=False)
class StoredArray:
    """An array of an open file; `numpy.asarray` loads it."""

    shape: tuple[int, ...]
    dtype: np.dtype
    _load: Callable[[], np.ndarray]
    load_rows: Callable[[int, int], np.ndarray] | None = None
    """Loads rows of dimension 0 from one up to another; None where all has to be loaded."""

    def rows(self, first: int, end: int) -> np.ndarray:
        """Rows of dimension 0 from one up to another, without the rest if that can be."""
        if self.load_rows is not None:
            return self.load_rows(first, end)
        return np.asarray(self)[first:end]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        loaded = self._load()
        return loaded if dtype is None else loaded.astype(dtype)


@contextlib.contextmanager
def open_arrays(path: str) -> Iterator[Mapping[str, StoredArray]]:
    """The arrays of an `.npz` or `.safetensors` file by name, not loaded yet; InputError."""
    kind = Path(path).stat().st_mode
    if not (stat.S_ISREG(kind) or stat.S_ISDIR(kind)):  # before it is opened: a pipe would wait
        raise InputError(f"{path}: not a regular file; arrays are read from one")
    with Path(path).open("rb") as raw:
        if _is_safetensors(path):
            yield safetensors_file(path, raw)
        else:
            yield _npz_arrays(path, raw)


def shown(name: str) -> str:
    """A name from a file, as messages show it."""
    return repr(name if len(name) <= _SHOWN else f"{name[:_SHOWN]}…")


def write_arrays(path: str, outputs: Sequence[np.ndarray | RankedArray]) -> None:
    """Write `out0`, `out1`, …, each [ranks, *shape]; the file appears complete or not at all."""
    named = {f"out{number}": array for number, array in enumerate(outputs)}
    check_outputs(path)
    with replacing(path) as stream:
        if _is_safetensors(path):
            write_safetensors(path, stream, named)
            return
        with zipfile.ZipFile(stream, "w", zipfile.ZIP_STORED) as file:
            for name, array in named.items():
                with file.open(f"{name}.npy", "w", force_zip64=True) as member:
                    _write_npy(member, array)


def _write_npy(member: IO[bytes], array: np.ndarray | RankedArray) -> None:
    """As numpy.save does it, but piece by piece."""
    dtype = storable(np.empty(0, array.dtype)).dtype
    descr = np.lib.format.dtype_to_descr(dtype)
    header = {"descr": descr, "fortran_order": False, "shape": array.shape}
    np.lib.format.write_array_header_1_0(member, header)
    _write_elements(member, array, dtype)


def check_outputs(path: str) -> None:
    """Refuse an output file that could not be written, before anything is computed for it."""
    check_target(path, SUFFIXES)
    if _is_safetensors(path):
        _safetensors(path)


def _is_safetensors(path: str) -> bool:
    return path.endswith(".safetensors")


_ANEW = "write it anew with numpy.savez"
_DAMAGED = f"damaged, or not of plain arrays; {_ANEW}"

_ZIP_FAULTS = (
    EOFError,
    NotImplementedError,  # a version or a compression that zipfile lacks
    OSError,  # offsets that lead before the file
    OverflowError,
    RuntimeError,
    ValueError,
    zipfile.BadZipFile,
    zlib.error,
)
"""Errors of zipfile on files that are not zip files, or damaged."""


def _npz_arrays(path: str, raw: BinaryIO) -> dict[str, StoredArray]:
    if not zipfile.is_zipfile(raw):
        raw.seek(0)
        other = recognised(raw.read(MOST_RECOGNISED_BYTES), FileRole.ARRAYS)
        what = f"{path}: not an .npz file{f', but {other}' if other else ''}"
        raise InputError(f"{what}; numpy.savez writes one, of arrays arg0, …")
    try:
        file = zipfile.ZipFile(raw)
    except _ZIP_FAULTS as error:
        raise InputError(f"{path}: {_DAMAGED}") from error
    members = file.infolist()
    if len(members) > _MOST_MEMBERS:
        raise InputError(f"{path}: holds {len(members)} arrays, more than any program takes")
    arrays: dict[str, StoredArray] = {}
    for member in members:
        name = member.filename.removesuffix(".npy")
        if name in arrays:
            raise InputError(f"{path}: {shown(name)} is there twice; {_DAMAGED}")
        arrays[name] = _npz_array(f"{path}: {shown(name)}", file, member)
    return arrays


def _npz_array(what: str, file: zipfile.ZipFile, member: zipfile.ZipInfo) -> StoredArray:
    """A member by its header, whose size must agree with the directory of the file."""
    # other compressions may ask for gigabytes before they give a byte; numpy writes these two
    if member.flag_bits & 1 or member.compress_type not in (
        zipfile.ZIP_STORED,
        zipfile.ZIP_DEFLATED,
    ):
        raise InputError(f"{what} is encrypted or compressed in a way that numpy does not write")
    try:
        with file.open(member) as stream:
            header_bytes, shape, fortran, dtype = _npy_header(what, stream)
    except _ZIP_FAULTS as error:
        raise InputError(f"{what} is {_DAMAGED}") from error
    count = math.prod(shape)
    if header_bytes + count * dtype.itemsize != member.file_size:
        raise InputError(
            f"{what} is {dtype}{list(shape)} by its header and has {member.file_size} bytes; "
            f"{_DAMAGED}"
        )

    def load() -> np.ndarray:
        data = np.empty(count * dtype.itemsize, np.uint8)
        try:
            with file.open(member) as stream:
                stream.read(header_bytes)
                at = 0
                while piece := stream.read(_PIECE_BYTES):  # to the end, where the sum is checked
                    data[at : at + len(piece)] = np.frombuffer(piece, np.uint8)
                    at += len(piece)
        except _ZIP_FAULTS as error:
            raise InputError(f"{what} is {_DAMAGED}") from error
        if at != len(data):
            raise InputError(f"{what} ends after {at} of {len(data)} bytes; {_DAMAGED}")
        return data.view(dtype).reshape(shape, order="F" if fortran else "C")

    return StoredArray(shape, dtype, load)


def _npy_header(what: str, stream: Any) -> tuple[int, tuple[int, ...], bool, np.dtype]:
    """The bytes of a header, then shape, whether the first dimension is innermost, and dtype."""
    start = stream.read(8)
    if start[:6] != b"\x93NUMPY" or start[6:] not in (b"\1\0", b"\2\0", b"\3\0"):
        raise InputError(f"{what} is no array; numpy.savez writes a file of arrays")
    size = stream.read(2 if start[6] == 1 else 4)
    length = int.from_bytes(size, "little")
    if length > _HEADER_BYTES:
        raise InputError(f"{what} has a header of {length} bytes; {_DAMAGED}")
    text = stream.read(length)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of escapes in hostile text
            header = ast.literal_eval(text.decode("latin1" if start[6] < 3 else "utf-8").strip())
            descr, shape, fortran = header["descr"], header["shape"], header["fortran_order"]
            dtype = _plain_dtype(descr)
    # the text may make Python's parser and numpy raise nearly anything, out of memory included
    except Exception as error:
        raise InputError(f"{what} has no header that numpy writes; {_DAMAGED}") from error
    if dtype is None:
        kind = shown(descr) if isinstance(descr, str) else "records"
        raise InputError(f"{what} holds {kind}, not plain numbers; {_ANEW}")
    sizes_are_plain = isinstance(shape, tuple) and all(
        type(extent) is int and 0 <= extent < 2**63 for extent in shape
    )
    if len(header) != 3 or type(fortran) is not bool or not sizes_are_plain or len(shape) > 64:
        raise InputError(f"{what} has no header that numpy writes; {_DAMAGED}")
    return len(start) + len(size) + length, shape, fortran, dtype


def _plain_dtype(descr: object) -> np.dtype | None:
    """The type of elements; None where they are no numbers."""
    if not isinstance(descr, str) or len(descr) > 8:
        return None
    if descr.lstrip("<|=") == "f1":  # how numpy spells float8_e5m2, which it cannot read back
        return DType.F8E5M2.numpy
    dtype = np.dtype(descr)
    return dtype if dtype.kind in "biufcV" and dtype.subdtype is None and dtype.itemsize else None


def _safetensors(path: str) -> ModuleType:
    try:
        import safetensors
    except ImportError as error:
        raise InputError(f"{path}: needs `pip install 'ncc[safetensors]'`") from error
    return safetensors


def safetensors_file(path: str, raw: io.BufferedReader) -> dict[str, StoredArray]:
    """The arrays of an open file by name, not loaded yet; InputError."""
    library = _safetensors(path)
    arrays = {}
    try:
        # maps the file and checks its header: arrays lie one behind the other, without a gap
        file = library.safe_open(path, framework="numpy")
        at = 8 + int.from_bytes(raw.read(8), "little")
        for name in file.offset_keys():
            array = file.get_slice(name)
            if array.get_dtype() not in _SAFETENSORS_NAMES:
                what = f"{path}: {shown(name)} has dtype {array.get_dtype()}"
                raise InputError(f"{what}, which has no HLO type")
            dtype = _SAFETENSORS_NAMES[array.get_dtype()].numpy
            arrays[name] = _part_of_file(raw, at, tuple(array.get_shape()), dtype)
            at += math.prod(arrays[name].shape) * dtype.itemsize
    except library.SafetensorError as error:
        raise InputError(f"{path}: not a safetensors file: {error}") from error
    return arrays


def _part_of_file(
    raw: io.BufferedReader, at: int, shape: tuple[int, ...], dtype: np.dtype
) -> StoredArray:
    row_bytes = math.prod(shape[1:]) * dtype.itemsize

    def read(start: int, kept: tuple[int, ...]) -> np.ndarray:
        data: np.ndarray = np.empty(math.prod(kept) * dtype.itemsize, np.uint8)
        raw.seek(start)
        if raw.readinto(data.data) != len(data):
            raise InputError(f"{raw.name}: has become shorter while it was read")
        return data.view(dtype).reshape(kept)

    def load_rows(first: int, end: int) -> np.ndarray:
        return read(at + first * row_bytes, (end - first, *shape[1:]))

    return StoredArray(shape, dtype, lambda: read(at, shape), load_rows if shape else None)


@functools.cache
def safetensors_types() -> frozenset[np.dtype]:
    """The types of elements that such a file holds as they are."""
    return frozenset(dtype.numpy for dtype in _SAFETENSORS_NAMES.values())


def safetensors_bytes(path: str, named: Mapping[str, np.ndarray]) -> bytes:
    """The contents of a `.safetensors` file; InputError, with its path, for what it cannot hold."""
    stream = io.BytesIO()
    write_safetensors(path, stream, named)
    return stream.getvalue()


def write_safetensors(
    path: str, stream: IO[bytes], named: Mapping[str, np.ndarray | RankedArray]
) -> None:
    """Write the contents of a `.safetensors` file, piece by piece: the library takes them whole.

    The form is that of https://github.com/huggingface/safetensors#format. Wide types come first, so
    that all arrays are aligned. InputError, with its path, for what it cannot hold.
    """
    _safetensors(path)  # who cannot read it is told now
    spelled = {dtype.numpy: word for word, dtype in _SAFETENSORS_NAMES.items()}
    header, at = {}, 0
    stored = {
        name: array.dtype if array.dtype in spelled else storable(np.empty(0, array.dtype)).dtype
        for name, array in named.items()
    }
    ordered = sorted(named, key=lambda name: -stored[name].itemsize)
    for name in ordered:
        dtype, shape = stored[name], named[name].shape
        if dtype not in spelled:
            raise InputError(f"{path}: {name} is {dtype}, which safetensors lacks; use .npz")
        end = at + math.prod(shape) * dtype.itemsize
        header[name] = {"dtype": spelled[dtype], "shape": shape, "data_offsets": (at, end)}
        at = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    stream.write(len(text).to_bytes(8, "little") + text)
    for name in ordered:
        _write_elements(stream, named[name], stored[name])


def _write_elements(stream: IO[bytes], array: np.ndarray | RankedArray, dtype: np.dtype) -> None:
    """As elements of that type; nothing is converted or copied as a whole."""
    for row in array if array.shape else (array,):
        flat = np.ascontiguousarray(row).reshape(-1)
        for at in range(0, flat.size, _PIECE_BYTES):
            piece = flat[at : at + _PIECE_BYTES].astype(dtype, copy=False)
            stream.write(piece.view(np.uint8).data)
