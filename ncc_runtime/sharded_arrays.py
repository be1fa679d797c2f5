"""Arrays of ranks in a folder of safetensors files, of which no process has to hold all.

The form is that of large models in other tools: `model-00001-of-00004.safetensors`, …, and an index
that says which file each tensor is in. Each process of a run writes one file. A tensor `out0[3]` is
what rank 3 has of `out0`, so a run with any number of processes finds its ranks; the first rank is
the first that runs the program. A tensor without a number is a whole array.

The index is written last, and removed before files that it names are replaced. So a folder whose
writers died has no index, and is refused.
"""

import contextlib
import io
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from ncc_runtime.array_files import StoredArray, safetensors_file, shown, write_safetensors
from ncc_runtime.errors import InputError
from ncc_runtime.input_files import MOST_JSON_BYTES, json_of, read_file
from ncc_runtime.neff.whole_file import replacing, write_whole
from ncc_runtime.processes import Processes
from ncc_runtime.ranked_array import RankedArray

INDEX = "model.safetensors.index.json"

INDEX_SUFFIX = ".safetensors.index.json"

_OUTPUT = re.compile(r"out\d+\[\d+\]", re.ASCII)

_OF_RANK = re.compile(r"(.*)\[(0|[1-9]\d{0,8})\]", re.ASCII | re.DOTALL)


def is_folder(path: str) -> bool:
    """Whether a path is that of sharded arrays: a folder, or an index."""
    return path.endswith(("/", INDEX_SUFFIX)) or Path(path).is_dir()


@contextlib.contextmanager
def open_sharded(path: str) -> Iterator[Mapping[str, StoredArray]]:
    """The arrays of a folder, or of an index, by name, not loaded yet; InputError."""
    index = Path(path)
    if index.is_dir():
        found = sorted(index.glob(f"*{INDEX_SUFFIX}"))
        if len(found) != 1:
            what = f"{len(found)} indices" if found else "no index"
            raise InputError(
                f"{path}: has {what}, *{INDEX_SUFFIX}; a run that ended early leaves none, and of "
                "several name the one that is meant"
            )
        (index,) = found
    file_of = _weight_map(index)
    with contextlib.ExitStack() as stack:
        tensors: dict[str, StoredArray] = {}
        for file in sorted(set(file_of.values())):
            own = str(index.parent / file)
            raw = stack.enter_context(Path(own).open("rb"))
            stored = safetensors_file(own, raw)
            for name in (name for name, place in file_of.items() if place == file):
                if name not in stored:
                    raise InputError(f"{own}: has no {shown(name)}, which {index.name} says it has")
                tensors[name] = stored[name]
        yield _assembled(str(index), tensors)


def _weight_map(index: Path) -> Mapping[str, str]:
    """By tensor, the name of its file; InputError."""
    document = json_of(read_file(index, MOST_JSON_BYTES))
    found = document.get("weight_map") if isinstance(document, dict) else None
    if not isinstance(found, dict) or not all(isinstance(file, str) for file in found.values()):
        raise InputError(f"{index}: has no weight_map of tensors and files")
    for file in set(found.values()):
        if Path(file).name != file or not file.endswith(".safetensors"):
            raise InputError(f"{index}: names {shown(file)}, no .safetensors file beside it")
    return found


def _assembled(path: str, tensors: Mapping[str, StoredArray]) -> dict[str, StoredArray]:
    """Tensors of ranks as arrays [ranks, *shape]."""
    arrays: dict[str, StoredArray] = {}
    of_ranks: dict[str, dict[int, StoredArray]] = {}
    for name, tensor in tensors.items():
        match = _OF_RANK.fullmatch(name)
        if match is None:
            arrays[name] = tensor
        else:
            of_ranks.setdefault(match[1], {})[int(match[2])] = tensor
    for name, rows in of_ranks.items():
        missing = next((rank for rank in range(len(rows)) if rank not in rows), None)
        if missing is not None and name not in arrays and len(rows) == 1:
            arrays |= {f"{name}[{rank}]": row for rank, row in rows.items()}  # only called so
            continue
        if missing is not None or name in arrays:
            what = f"no {shown(f'{name}[{missing}]')}" if missing is not None else "both forms"
            raise InputError(f"{path}: has {what} beside {shown(f'{name}[{max(rows)}]')}")
        kinds = {(row.shape, row.dtype) for row in rows.values()}
        if len(kinds) > 1:
            raise InputError(f"{path}: {shown(name)} has several shapes or types on its ranks")
        arrays[name] = _of_rows([rows[rank] for rank in range(len(rows))])
    return arrays


def _of_rows(rows: Sequence[StoredArray]) -> StoredArray:
    shape, dtype = rows[0].shape, rows[0].dtype

    def load_rows(first: int, end: int) -> np.ndarray:
        array: np.ndarray = np.empty((end - first, *shape), dtype)
        for number, row in enumerate(rows[first:end]):
            array[number] = np.asarray(row)
        return array

    return StoredArray((len(rows), *shape), dtype, lambda: load_rows(0, len(rows)), load_rows)


def check_folder(path: str) -> None:
    """Refuse a folder that could not be written, before anything is computed for it; InputError."""
    if path.endswith(INDEX_SUFFIX):
        raise InputError(f"{path}: outputs are written to a folder; give its name")
    if not Path(path).is_dir() and not Path(path).parent.is_dir():
        raise InputError(f"{path}: there is no folder {Path(path).parent}")
    if (index := Path(path) / INDEX).exists():  # files that it names would go
        foreign = next((name for name in _weight_map(index) if not _OUTPUT.fullmatch(name)), None)
        if foreign is not None:
            raise InputError(
                f"{path}: holds {shown(foreign)}, which is no output of a run, and would be "
                "replaced; name another folder"
            )
    write_safetensors(path, io.BytesIO(), {})


def write_sharded(
    path: str,
    outputs: Sequence[RankedArray],
    ranks_of: Sequence[np.ndarray],
    processes: Processes,
) -> None:
    """Write the outputs of this process's ranks to a file of a folder, and the index.

    `ranks_of` are, by output, the places of these ranks among those that have it.
    """
    folder = Path(path)
    folder.mkdir(exist_ok=True)
    file = f"model-{processes.number + 1:05}-of-{processes.count:05}.safetensors"
    named = {
        f"out{number}[{rank}]": row
        for number, (one, ranks) in enumerate(zip(outputs, ranks_of, strict=True))
        for rank, row in zip(ranks.tolist(), one, strict=True)
    }
    old = folder / INDEX
    with replacing(folder / file) as stream:
        write_safetensors(str(folder / file), stream, named)
        size = sum(row.nbytes for row in named.values())
        written = processes.gather((file, list(named), size))  # all are complete
        stale = _files_of(old) - {name for name, _, _ in written}
        processes.gather(None)  # all have read the old index
        if processes.number == 0:
            old.unlink(missing_ok=True)
        processes.gather(None)
    processes.gather(None)
    if processes.number == 0:
        weight_map = {name: place for place, names, _ in written for name in names}
        document = {
            "metadata": {"total_size": sum(size for _, _, size in written)},
            "weight_map": weight_map,
        }
        write_whole(old, json.dumps(document, indent=1).encode())
        for name in stale:
            (folder / name).unlink(missing_ok=True)
    processes.gather(None)


def _files_of(index: Path) -> set[str]:
    """The files that an index names; none if there is no index that can be read."""
    with contextlib.suppress(InputError, OSError, ValueError):
        return set(_weight_map(index).values())
    return set()
