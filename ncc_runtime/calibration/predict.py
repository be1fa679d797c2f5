"""The model's time of a measured row: that of the clock, for the algorithm that the price chooses.

Constants can be overridden. What does not depend on them is made once: programs, plans, and the
executables that plans are filled to.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Protocol

import attrs
import numpy as np

from ncc_runtime.calibration.rows import MeasuredRow
from ncc_runtime.collectives.choose import Candidate, Chooser
from ncc_runtime.collectives.cost.model import PricingModel
from ncc_runtime.collectives.plan import Job
from ncc_runtime.errors import InputError, NccError
from ncc_runtime.execution.clock.clock import collective_ps
from ncc_runtime.lowering.choices import chooser_of, groups_of, job_of, replica_groups_of
from ncc_runtime.lowering.executable import Executable
from ncc_runtime.lowering.lower import lower_plans
from ncc_runtime.machine_model.timing import OF_ALL_MACHINES
from ncc_runtime.neff.program import Program
from ncc_runtime.placement import Placement, place
from ncc_runtime.progress import Phase
from ncc_runtime.report.bench import DTYPES, OPERATORS, Case, program_of_case
from ncc_runtime.topology.format.load import load_spec
from ncc_runtime.topology.format.spec import Figure
from ncc_runtime.topology.graph import Topology, build_spec

Overrides = Mapping[str, int]
"""Values by the key of a topology's figure."""

NONE: Overrides = MappingProxyType({})

_Case = tuple[MeasuredRow, tuple[tuple[str, int], ...]]
"""What was measured, and overrides."""

_Cores = tuple[str, int, int | None, int, bool]
"""Instance, nodes, LNC, ranks, and whether the two ranks are on different dies."""


@attrs.frozen
class Prediction:
    """The time of a row by the model, and the algorithm."""

    time_us: float
    algorithm: str


@attrs.frozen(eq=False)
class _Prepared:
    """A row as a program's one placeholder, with all plans that could fill it."""

    program: Program
    job: Job
    plans: tuple[Candidate, ...]  # or why there is none
    executables: dict[str, Executable] = attrs.field(factory=dict)  # by algorithm


@attrs.frozen(eq=False)
class _Setting:
    """Where rows run, with some constants."""

    placement: Placement
    chooser: Chooser
    machine: PricingModel


class Predictor:
    """Predicts rows; caches plans, executables and times."""

    def __init__(self) -> None:
        self._prepared: dict[MeasuredRow, _Prepared] = {}
        self._generations: dict[str, str] = {}
        self._overrides: Overrides = NONE
        self._settings: dict[_Cores, _Setting] = {}  # with the last constants
        self._chosen: dict[_Case, str] = {}
        self._times: dict[tuple[_Case, str], float] = {}
        self.now = Phase("calibration", "runs of the clock")

    def predict_us(self, row: MeasuredRow, overrides: Overrides = NONE) -> float:
        """The time of a row."""
        return self.predict(row, overrides).time_us

    def predict(self, row: MeasuredRow, overrides: Overrides = NONE) -> Prediction:
        """The time of a row and by what; InputError if it cannot be placed."""
        case = _case(row, overrides)
        with named(row):
            if case not in self._chosen:
                self._chosen[case] = self._choose(row, overrides)
            name = self._chosen[case]
            return Prediction(self.clock_us(row, name, overrides), name)

    def clock_us(self, row: MeasuredRow, name: str, overrides: Overrides = NONE) -> float:
        """The time of a row by one algorithm."""
        key = _case(row, overrides), name
        if key not in self._times:
            self._times[key] = self._simulated_us(row, name, overrides)
            self.now.done = len(self._times)
        return self._times[key]

    def _choose(self, row: MeasuredRow, overrides: Overrides) -> str:
        prepared, setting = self._prepare(row), self._setting(row, overrides)
        if row.algorithm:
            _check_runs(row, prepared.plans)
            return row.algorithm
        priced = [
            plan if plan.reason else setting.chooser.priced_on(setting.machine, prepared.job, plan)
            for plan in prepared.plans
        ]
        return setting.chooser.best(prepared.job, priced).chosen.name

    def _simulated_us(self, row: MeasuredRow, name: str, overrides: Overrides) -> float:
        setting = self._setting(row, overrides)
        executable = attrs.evolve(
            self._executable(row, name),
            topology=setting.placement.topology,
            placement=setting.placement,
            routes=setting.chooser.parts.routes,
        )
        return collective_ps(executable) / 1e6

    def generation(self, row: MeasuredRow) -> str:
        """The generation of a row's instance, whose constants it has."""
        if row.instance not in self._generations:
            with named(row):
                spec = load_spec(row.instance)
            self._generations[row.instance] = spec.generation or row.instance
        return self._generations[row.instance]

    def _executable(self, row: MeasuredRow, name: str) -> Executable:
        """A row's program by one algorithm, which is the same for any constants."""
        prepared = self._prepare(row)
        if name not in prepared.executables:
            plan = next(plan for plan in prepared.plans if plan.name == name)
            groups = list(replica_groups_of(prepared.program, prepared.job, plan))
            executable = lower_plans(prepared.program, _placement(row, NONE), [groups])
            prepared.executables[name] = executable
        return prepared.executables[name]

    def _prepare(self, row: MeasuredRow) -> _Prepared:
        collective = _unmeasured(row)
        if collective not in self._prepared:
            program = _program(row)
            placeholder = program.placeholders[0]
            job, groups = job_of(program, placeholder), groups_of(program, placeholder)
            # a row that names its algorithm was measured so, whatever the policy takes
            forced = {placeholder.op.value: row.algorithm} if row.algorithm else {}
            plans = chooser_of(program, _placement(row, NONE), forced).unpriced(job, groups)
            self._prepared[collective] = _Prepared(program, job, plans)
        return self._prepared[collective]

    def _setting(self, row: MeasuredRow, overrides: Overrides) -> _Setting:
        """Shared by rows that run on the same cores; only those of the last constants are kept."""
        if overrides != self._overrides:
            self._settings.clear()
            self._overrides = overrides
        cores = (row.instance, row.nodes, row.lnc, row.ranks, row.is_across_dies)
        if cores not in self._settings:
            prepared, placement = self._prepare(row), _placement(row, overrides)
            chooser = chooser_of(prepared.program, placement, {})
            self._settings[cores] = _Setting(placement, chooser, chooser.machine(prepared.job))
        return self._settings[cores]


def _check_runs(row: MeasuredRow, plans: tuple[Candidate, ...]) -> None:
    """InputError unless the row's own algorithm is one of its operator and can run there."""
    plan = next((plan for plan in plans if plan.name == row.algorithm), None)
    if plan is None:
        known = ", ".join(plan.name for plan in plans)
        raise InputError(f"algorithm {row.algorithm!r} is unknown for {row.op}; known: {known}")
    if plan.reason:
        raise InputError(f"algorithm {row.algorithm!r} cannot run: {plan.reason}")


class PlacedRow(Protocol):
    """A measured row: where it ran, and where it was read."""

    @property
    def instance(self) -> str:
        """The instance type."""

    @property
    def nodes(self) -> int:
        """How many."""

    @property
    def lnc(self) -> int | None:
        """Physical cores of a rank; None: the generation's default."""

    @property
    def table(self) -> str:
        """Rows that were measured together."""

    @property
    def time_us(self) -> float:
        """What was measured."""

    @property
    def origin(self) -> str:
        """File and number, for errors."""


@contextmanager
def named(row: PlacedRow) -> Iterator[None]:
    """Errors name the file and number of the row."""
    try:
        yield
    except NccError as error:
        if not row.origin or str(error).startswith(row.origin):  # it is named already
            raise
        raise InputError(f"{row.origin}: {error}") from error


def _unmeasured(row: MeasuredRow) -> MeasuredRow:
    """A row without its result: rows of one collective share their prediction."""
    return attrs.evolve(row, table="", time_us=0)


def _case(row: MeasuredRow, overrides: Overrides) -> _Case:
    return _unmeasured(row), tuple(sorted(overrides.items()))


def overridden(row: PlacedRow, overrides: Overrides) -> Topology:
    """The instances of a row with other values of some of the figures that they have.

    Constants that no preset has, for they are all machines', are given to it.
    """
    spec = load_spec(row.instance)
    changed = {
        key: Figure(value, "overridden")
        for key, value in overrides.items()
        if key in spec.figures or key in OF_ALL_MACHINES
    }
    figures = MappingProxyType({**spec.figures, **changed})
    return build_spec(attrs.evolve(spec, figures=figures), row.nodes, row.lnc)


def _placement(row: MeasuredRow, overrides: Overrides) -> Placement:
    topology = overridden(row, overrides)
    placed = place(topology, row.ranks)
    if not row.is_across_dies:
        return placed
    if topology.intra_chip.dies == 1:
        raise InputError(f"pair {row.pair!r}: a chip of {row.instance} has one die")
    other = topology.ranks_per_chip // topology.intra_chip.dies
    return attrs.evolve(placed, core=np.array([0, other], np.int32))


def _program(row: MeasuredRow) -> Program:
    """The row's collective; in a sendrecv rank 0 sends to rank 1."""
    operator = OPERATORS[row.op]
    program = program_of_case(Case(operator, row.ranks, DTYPES[row.dtype], row.size_bytes))
    if not operator.is_exchange:
        return program
    (placeholder,) = program.placeholders
    return attrs.evolve(program, placeholders=(attrs.evolve(placeholder, pairs=((0, 1),)),))
