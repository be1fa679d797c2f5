"""Fitted constants as topology files: one for each instance type of the rows."""

import json
from collections.abc import Iterator
from pathlib import Path

from ncc_runtime.calibration.residuals import Calibration
from ncc_runtime.errors import InputError
from ncc_runtime.topology.load import load_spec
from ncc_runtime.topology.spec import preset_names


def target_of(path: str) -> Path:
    """The path, if a file may be written there; InputError says why not."""
    target = Path(path)
    if target.suffix != ".toml":
        raise InputError(f"{path}: name a file that ends in .toml")
    if not target.parent.is_dir():
        raise InputError(f"{path}: {target.parent} is no folder")
    return target


def presets(found: Calibration, path: str) -> Iterator[tuple[Path, str]]:
    """Files and their texts: the path itself, of several instances one beside it for each."""
    target = target_of(path)
    instances = dict.fromkeys(one.row.instance for one in found.rows)
    for instance in instances:
        name = load_spec(instance).name
        if name not in preset_names():
            raise InputError(f"{instance}: only a built-in topology can be the base of a file")
        alone = len(instances) == 1
        file = target if alone else target.with_name(f"{target.stem}-{name}.toml")
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
