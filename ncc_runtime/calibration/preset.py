"""Fitted constants as topology files: one for each instance type of the rows."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from ncc_runtime.calibration.constants import ALL
from ncc_runtime.calibration.residuals import Calibration
from ncc_runtime.errors import InputError
from ncc_runtime.neff.whole_file import check_target
from ncc_runtime.topology.format.load import load_spec
from ncc_runtime.topology.format.spec import preset_names


def targets(path: str, instances: Iterable[str]) -> Mapping[str, Path]:
    """By topology the file that its fit goes to: the path, of several one beside it for each."""
    check_target(path, (".toml",))
    names: dict[str, None] = {}
    for instance in instances:
        name = load_spec(instance).name
        if name not in preset_names():
            raise InputError(f"{instance}: only a built-in topology can be the base of a file")
        names[name] = None
    target = Path(path)
    if len(names) == 1:
        return dict.fromkeys(names, target)
    return {name: target.with_name(f"{target.stem}-{name}.toml") for name in names}


def presets(calibrations: Sequence[Calibration], path: str) -> Iterator[tuple[Path, str]]:
    """Files and their texts, of what rows of collectives and of steps have told."""
    instances = [fit.row.instance for one in calibrations for fit in one.rows]
    for name, file in targets(path, instances).items():
        generation = load_spec(name).generation or name
        lines = [f'name = "{name}-fitted"', f'base = "{name}"']
        for calibration in calibrations:
            lines += _sections(calibration, generation)
        yield file, "\n".join(lines) + "\n"


def _sections(calibration: Calibration, generation: str) -> Iterator[str]:
    tables = ", ".join(
        dict.fromkeys(
            fit.row.table
            for fit in calibration.rows
            if (load_spec(fit.row.instance).generation or fit.row.instance) == generation
        )
    )
    source = json.dumps(f"fitted: nccrt calibrate, {tables}", ensure_ascii=False)
    # what the rows do not tell is the base's
    untold = {
        one.key
        for one in calibration.determinations
        if one.generation in (ALL, generation) and not one.is_fitted
    }
    constants = calibration.constants.get(generation, {})
    fitted = {key: value for key, value in constants.items() if key not in untold}
    for section in ("cc", "intra_chip", "timing"):
        leaves = [
            f"{key.removeprefix(section + '.')} = {{value = {value:_}, source = {source}}}"
            for key, value in fitted.items()
            if key.startswith(section + ".")
        ]
        yield from ["", f"[{section}]", *leaves] if leaves else []
