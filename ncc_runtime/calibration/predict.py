"""The model's time of a measured row: that of the clock, for the algorithm that the price chooses.

Constants can be overridden. What does not depend on them is made once: programs, plans, and the
executables that plans are filled to.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType

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
from ncc_runtime.neff.program import Program
from ncc_runtime.placement import Placement, place
from ncc_runtime.report.bench import DTYPES, OPERATORS, Case, program_of_case
from ncc_runtime.topology.format.load import load_spec
from ncc_runtime.topology.format.spec import Figure
from ncc_runtime.topology.graph import Topology, build_spec

Overrides = Mapping[str, int]
"""Values by the key of a topology's figure."""

NONE: Overrides = MappingProxyType({})

_Case = tuple[MeasuredRow, tuple[tuple[str, int], ...]]
"""What was measured, and overrides."""

_Where = tuple[str, int, int | None, int, bool]


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
    """Predicts rows; remembers what it has made for them.

    After each run of the clock `watch` is called with how many there were.
    """

    def __init__(self, watch: Callable[[int], None] | None = None) -> None:
        self._watch = watch
        self._prepared: dict[MeasuredRow, _Prepared] = {}
        self._generations: dict[str, str] = {}
        self._overrides: Overrides = NONE
        self._places: dict[_Where, _Setting] = {}  # of the last constants
        self._chosen: dict[_Case, str] = {}
        self._times: dict[tuple[_Case, str], float] = {}

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
            if self._watch is not None:
                self._watch(len(self._times))
        return self._times[key]

    def _choose(self, row: MeasuredRow, overrides: Overrides) -> str:
        made, there = self._prepare(row), self._place(row, overrides)
        priced = [
            one if one.reason else there.chooser.priced_on(there.machine, made.job, one)
            for one in made.plans
        ]
        return there.chooser.best(made.job, priced).chosen.name

    def _simulated_us(self, row: MeasuredRow, name: str, overrides: Overrides) -> float:
        place_there = self._place(row, overrides)
        there = attrs.evolve(
            self._executable(row, name),
            topology=place_there.placement.topology,
            placement=place_there.placement,
            routes=place_there.chooser.parts.routes,
        )
        return collective_ps(there) / 1e6

    def generation(self, row: MeasuredRow) -> str:
        """The generation of a row's instance, whose constants it has."""
        if row.instance not in self._generations:
            with named(row):
                spec = load_spec(row.instance)
            self._generations[row.instance] = spec.generation or row.instance
        return self._generations[row.instance]

    def _executable(self, row: MeasuredRow, name: str) -> Executable:
        """A row's program by one algorithm, which is the same for any constants."""
        made = self._prepare(row)
        if name not in made.executables:
            plan = next(one for one in made.plans if one.name == name)
            teams = list(replica_groups_of(made.program, made.job, plan))
            filled = lower_plans(made.program, _placement(row, NONE), [teams])
            made.executables[name] = filled
        return made.executables[name]

    def _prepare(self, row: MeasuredRow) -> _Prepared:
        what = _unmeasured(row)
        if what not in self._prepared:
            program = _program(row)
            placeholder = program.placeholders[0]
            job, groups = job_of(program, placeholder), groups_of(program, placeholder)
            found = chooser_of(program, _placement(row, NONE), {}).unpriced(job, groups)
            self._prepared[what] = _Prepared(program, job, found)
        return self._prepared[what]

    def _place(self, row: MeasuredRow, overrides: Overrides) -> _Setting:
        """Shared by rows of one place; only those of the last constants are kept."""
        if overrides != self._overrides:
            self._places.clear()
            self._overrides = overrides
        where = (row.instance, row.nodes, row.lnc, row.ranks, row.is_across_dies)
        if where not in self._places:
            made, placement = self._prepare(row), _placement(row, overrides)
            chooser = chooser_of(made.program, placement, {})
            self._places[where] = _Setting(placement, chooser, chooser.machine(made.job))
        return self._places[where]


@contextmanager
def named(row: MeasuredRow) -> Iterator[None]:
    """What cannot be placed says which row it is."""
    try:
        yield
    except NccError as error:
        if not row.origin:
            raise
        raise InputError(f"{row.origin}: {error}") from error


def _unmeasured(row: MeasuredRow) -> MeasuredRow:
    """What was measured, whatever came out: rows of one collective are predicted together."""
    return attrs.evolve(row, table="", time_us=0)


def _case(row: MeasuredRow, overrides: Overrides) -> _Case:
    return _unmeasured(row), tuple(sorted(overrides.items()))


def overridden(row: MeasuredRow, overrides: Overrides) -> Topology:
    """The instances of a row with other values of some figures."""
    spec = load_spec(row.instance)
    changed = {key: Figure(value, "overridden") for key, value in overrides.items()}
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
