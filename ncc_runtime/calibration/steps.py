"""Measured rows of whole steps: compiled programs, where they run, and the time that they took.

A file is one JSON object with `steps`, each with the keys of `StepRow`; other keys are remarks. A
step may be several programs, each run a number of times: microbatches and an update. The number may
be negative: of a model of 32 equal layers, known by programs of two and of three,

    {"programs": {"layers2.neff": -29, "layers3.neff": 30}, …}

is the line through both. Paths are relative to the file.

A step is timed by the clock as `nccrt run --no-values` does it, with the collectives that are
chosen for the shipped constants of engines and hosts; these are what rows of steps are fitted to.
"""

from collections.abc import Mapping
from pathlib import Path

import attrs

from ncc_runtime.calibration.predict import NONE, Overrides, Prediction, named, overridden
from ncc_runtime.calibration.rows import count_of, time_of, word_of
from ncc_runtime.errors import InputError, reason_of
from ncc_runtime.input_files import MOST_JSON_BYTES, FileRole, json_of, read_file, recognised
from ncc_runtime.lowering.executable import Executable
from ncc_runtime.placement import place
from ncc_runtime.progress import Phase
from ncc_runtime.runtime import Model, load
from ncc_runtime.topology.format.load import load_spec
from ncc_runtime.topology.routes import Routes

MOST_RUNS = 10**9
"""How often a step may run one of its programs."""


@attrs.frozen
class StepRow:
    """One measured step."""

    table: str  # rows that were measured together
    instance: str
    nodes: int
    lnc: int | None  # None: the generation's default
    programs: tuple[tuple[str, int], ...]  # paths, and how often each runs
    time_us: float
    name: str = ""
    origin: str = attrs.field(default="", eq=False)  # file and number, for errors

    @property
    def title(self) -> str:
        """Its name, or its programs: `3 x update.neff + step.neff`."""
        parts = [(runs, Path(path).name) for path, runs in self.programs]
        words = [name if runs == 1 else f"{runs:,} x {name}" for runs, name in parts]
        return self.name or " + ".join(words)


def read_steps(path: str) -> tuple[StepRow, ...]:
    """The steps of a file, none if it has no `steps`; InputError says which is wrong, and in what.

    Whether a file without steps holds other rows is for `measured_files.py` to say.
    """
    try:
        data = read_file(path, MOST_JSON_BYTES)
    except OSError as error:
        raise InputError(f"{path}: {reason_of(error)}") from error
    if b'"steps"' not in data:
        return ()
    try:
        document = json_of(data.decode("utf-8-sig"))
    except ValueError:
        return ()
    if not isinstance(document, dict) or "steps" not in document:
        return ()
    steps = document["steps"]
    if not isinstance(steps, list) or not steps:
        text = 'expected {"steps": [{…}, …]} with at least one step'
        raise InputError(f"{path}: {recognised(data, FileRole.ROWS) or text}")
    folder = Path(path).parent
    return tuple(
        _step(f"{path}: step {number}", folder, Path(path).stem, row)
        for number, row in enumerate(steps)
    )


def _step(place: str, folder: Path, table: str, row: object) -> StepRow:
    if not isinstance(row, dict):
        raise InputError(f"{place}: {row!r} is not an object")
    if ("program" in row) == ("programs" in row):
        raise InputError(f'{place}: expected "program", a path, or "programs", paths and numbers')
    programs = {word_of(place, row, "program"): 1} if "program" in row else row["programs"]
    if not isinstance(programs, dict) or not programs:
        raise InputError(f"{place}: programs {programs!r} is no object of paths and numbers")
    for path, runs in programs.items():
        if not path or not path.isprintable():
            raise InputError(f"{place}: programs {path!r} is not a path")
        if type(runs) is not int or not 1 <= abs(runs) <= MOST_RUNS:
            raise InputError(f"{place}: {path} runs {runs!r} times, which is no number of runs")
    return StepRow(
        table=word_of(place, row, "table") if "table" in row else table,
        instance=word_of(place, row, "instance"),
        nodes=count_of(place, row, "nodes") if "nodes" in row else 1,
        lnc=count_of(place, row, "lnc") if row.get("lnc") is not None else None,
        programs=tuple((str(folder / path), runs) for path, runs in programs.items()),
        time_us=time_of(place, row),
        name=word_of(place, row, "name") if "name" in row else "",
        origin=place,
    )


_Where = tuple[str, str, int, int | None]
"""A program's path, instance, nodes and LNC."""


class StepPredictor:
    """Times steps by constants; lowers each program once, and keeps times."""

    def __init__(self, collectives: Mapping[str, Overrides] | None = None) -> None:
        """`collectives` are constants by generation that others than steps have told."""
        self._collectives = collectives or {}
        self._models: dict[_Where, Model] = {}
        self._times: dict[tuple[_Where, tuple[tuple[str, int], ...]], float] = {}
        self.now = Phase("calibration", "runs of the clock")

    def generation(self, row: StepRow) -> str:
        """The generation of a row's instance, whose constants it has."""
        with named(row):
            return load_spec(row.instance).generation or row.instance

    def predict(self, row: StepRow, overrides: Overrides = NONE) -> Prediction:
        """The time of a row; InputError if a program cannot be read, placed or timed."""
        return Prediction(self.clock_us(row, "", overrides), "")

    def clock_us(self, row: StepRow, name: str, overrides: Overrides = NONE) -> float:
        """The same; of `name` there is nothing to choose, since a step has no one algorithm."""
        del name
        with named(row):
            times = [runs * self._time_us(row, path, overrides) for path, runs in row.programs]
        if sum(times) <= 0:
            raise InputError(f"{row.origin}: its programs take {sum(times):,.3f} us together")
        return sum(times)

    def _time_us(self, row: StepRow, path: str, overrides: Overrides) -> float:
        where = (path, row.instance, row.nodes, row.lnc)
        key = where, tuple(sorted(overrides.items()))
        if key not in self._times:
            common = self._collectives.get(self.generation(row), NONE)
            if where not in self._models:
                self._models[where] = _loaded(path, row, common)
            model = self._models[where]
            moved = Model(_on(model.executable, row, {**common, **overrides}))
            run = moved.run(values=False, verify=False)
            assert run.time_us is not None, "the clock is on"
            self._times[key] = run.time_us
            self.now.done = len(self._times)
        return self._times[key]


def _loaded(path: str, row: StepRow, constants: Overrides) -> Model:
    return load(path, overridden(row, constants), times_only=True, ignore_memory=True)


def _on(executable: Executable, row: StepRow, constants: Overrides) -> Executable:
    """The same where some constants are others."""
    placement = place(overridden(row, constants), executable.ranks)
    return attrs.evolve(
        executable,
        topology=placement.topology,
        placement=placement,
        routes=Routes(placement.topology, placement),
    )
