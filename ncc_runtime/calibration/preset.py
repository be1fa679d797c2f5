"""Fitted constants as topology files: one for each instance type of the rows."""

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from ncc_runtime.calibration.residuals import Calibration
from ncc_runtime.errors import InputError
from ncc_runtime.neff.whole_file import check_target
from ncc_runtime.topology.format.load import load_spec
from ncc_runtime.topology.format.spec import preset_names


def targets(path: str, instances: Iterable[str]) -> Mapping[str, Path]:
    """By topology the file that its fit goes to: the path, of several one beside it for each."""
    check_target(path, (".toml",))
    names = list(dict.fromkeys(map(_base, instances)))
    target = Path(path)
    if len(names) == 1:
        return {names[0]: target}
    return {name: target.with_name(f"{target.stem}-{name}.toml") for name in names}


def _base(instance: str) -> str:
    """The built-in topology of an instance type."""
    name = load_spec(instance).name
    if name not in preset_names():
        raise InputError(f"{instance}: only a built-in topology can be the base of a file")
    return name


def presets(found: Calibration, path: str) -> Iterator[tuple[Path, str]]:
    """Files and their texts."""
    for name, file in targets(path, (one.row.instance for one in found.rows)).items():
        yield file, _text(found, name)


def _text(found: Calibration, name: str) -> str:
    generation = load_spec(name).generation or name
    tables = ", ".join(
        dict.fromkeys(
            one.row.table
            for one in found.rows
            if (load_spec(one.row.instance).generation or one.row.instance) == generation
        )
    )
    source = json.dumps(f"fitted: nccrt calibrate, {tables}", ensure_ascii=False)
    lines = [f'name = "{name}-fitted"', f'base = "{name}"']
    for section in ("cc", "intra_chip"):
        leaves = [
            f"{key.removeprefix(section + '.')} = {{value = {value:_}, source = {source}}}"
            for key, value in found.constants[generation].items()
            if key.startswith(section + ".")
        ]
        lines += ["", f"[{section}]", *leaves] if leaves else []
    return "\n".join(lines) + "\n"
