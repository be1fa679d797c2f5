"""Arrays by name in a file, narrow floats included; numpy's own files forget what those are."""

from collections.abc import Mapping
from pathlib import Path

import ml_dtypes
import numpy as np


def save(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    names = {f"dtype.{key}": np.array(str(array.dtype)) for key, array in arrays.items()}
    np.savez(path, **{key: _storable(array) for key, array in arrays.items()}, **names)


def _storable(array: np.ndarray) -> np.ndarray:
    """The bits as unsigned integers, of an array that numpy has no name for."""
    return array if array.dtype.isbuiltin == 1 else array.view(f"u{array.dtype.itemsize}")


def load(path: Path) -> dict[str, np.ndarray]:
    """In the order of the names."""
    with np.load(path) as file:
        raw = {key: file[key] for key in file.files}
    keys = sorted(key for key in raw if not key.startswith("dtype."))
    return {key: raw[key].view(_dtype(str(raw[f"dtype.{key}"]))) for key in keys}


def numbered(prefix: str, arrays) -> dict[str, np.ndarray]:
    return {f"{prefix}{k:03}": array for k, array in enumerate(arrays)}


def values(arrays: Mapping[str, np.ndarray], prefix: str) -> list[np.ndarray]:
    return [array for key, array in arrays.items() if key.startswith(prefix)]


def _dtype(name: str) -> np.dtype:
    return np.dtype(getattr(ml_dtypes, name) if hasattr(ml_dtypes, name) else name)
