"""Files of named arrays: `arg0`, `arg1`, … in, `out0`, `out1`, … out; `.npz` or `.safetensors`."""

import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from ncc_runtime.errors import InputError
from ncc_runtime.neff.dtypes import DType, storable
from ncc_runtime.neff.whole_file import replacing

_SUFFIXES = (".npz", ".safetensors")

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


def read_arrays(path: str) -> dict[int, np.ndarray]:
    """`arg0`, `arg1`, … of an `.npz` or `.safetensors` file, by number; raises InputError."""
    arrays = _read_safetensors(path) if _is_safetensors(path) else _read_npz(path)
    numbered = {}
    for name, array in arrays.items():
        digits = name.removeprefix("arg")
        if not (name.startswith("arg") and digits.isascii() and digits.isdigit()):
            raise InputError(f"{path}: array {name!r} is not named arg0, arg1, …")
        if int(digits) in numbered:
            raise InputError(f"{path}: arg{int(digits)} is there twice")
        numbered[int(digits)] = array
    return numbered


def write_arrays(path: str, outputs: Sequence[np.ndarray]) -> None:
    """Write `out0`, `out1`, …, each [ranks, *shape]; the file appears whole or not at all."""
    named = {f"out{number}": array for number, array in enumerate(outputs)}
    check_target(path)
    with replacing(path) as file:
        if _is_safetensors(path):
            file.write(_safetensors_bytes(path, named))
        else:
            storables: dict[str, Any] = {key: storable(one) for key, one in named.items()}
            np.savez(file, allow_pickle=False, **storables)


def check_target(path: str) -> None:
    """Refuse an output file that could not be written, before anything is computed for it."""
    folder = Path(path).resolve().parent
    if not folder.is_dir():
        raise InputError(f"{path}: there is no folder {folder}")
    if Path(path).is_dir():
        raise InputError(f"{path}: is a directory; give the name of a file")
    if Path(path).suffix not in _SUFFIXES:
        known = " or ".join(_SUFFIXES)
        raise InputError(f"{path}: outputs go to {known} files; give a name with that suffix")
    if _is_safetensors(path):
        _safetensors(path)


def _is_safetensors(path: str) -> bool:
    return path.endswith(".safetensors")


def _read_npz(path: str) -> dict[str, np.ndarray]:
    with Path(path).open("rb") as raw:
        if not zipfile.is_zipfile(raw):
            raise InputError(f"{path}: not an .npz file; numpy.savez writes one, of arrays arg0, …")
        raw.seek(0)
        try:
            with np.load(raw, allow_pickle=False) as file:
                return {name: file[name] for name in file.files}
        except (
            ValueError,  # also: an array of Python objects
            EOFError,
            AttributeError,
            TypeError,
            NotImplementedError,  # a compression that zipfile lacks
            RuntimeError,  # an encrypted member
            zlib.error,
            zipfile.BadZipFile,
        ) as error:
            raise InputError(
                f"{path}: damaged, or not of plain arrays; write it anew with numpy.savez"
            ) from error


def _safetensors(path: str) -> ModuleType:
    try:
        import safetensors
    except ImportError as error:
        raise InputError(f"{path}: needs `pip install 'ncc[safetensors]'`") from error
    return safetensors


def _read_safetensors(path: str) -> dict[str, np.ndarray]:
    library = _safetensors(path)
    try:
        tensors = library.deserialize(Path(path).read_bytes())
    except library.SafetensorError as error:
        raise InputError(f"{path}: not a safetensors file: {error}") from error
    arrays = {}
    for name, tensor in tensors:
        if tensor["dtype"] not in _SAFETENSORS_NAMES:
            raise InputError(f"{path}: {name} has dtype {tensor['dtype']}, which has no HLO type")
        dtype = _SAFETENSORS_NAMES[tensor["dtype"]].numpy
        arrays[name] = np.frombuffer(bytes(tensor["data"]), dtype).reshape(tensor["shape"])
    return arrays


def _safetensors_bytes(path: str, named: dict[str, np.ndarray]) -> bytes:
    library = _safetensors(path)
    known = {dtype.numpy for dtype in _SAFETENSORS_NAMES.values()}
    dense = {
        name: np.ascontiguousarray(array if array.dtype in known else storable(array))
        for name, array in named.items()
    }
    for name, array in dense.items():
        if array.dtype not in known:
            raise InputError(f"{path}: {name} is {array.dtype}, which safetensors lacks; use .npz")
    specs = {
        name: library.TensorSpec(
            dtype=array.dtype.name,
            shape=list(array.shape),
            data_ptr=array.ctypes.data,
            data_len=array.nbytes,
        )
        for name, array in dense.items()
    }
    return bytes(library.serialize(specs))
