"""What the model says of a measured row: the clock's time of what the price chooses.

Constants can be overridden. What does not depend on them, programs, plans and what they are placed
as, is made once.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import attrs
import numpy as np

from ncc_runtime.calibration.rows import Row
from ncc_runtime.collectives.choose import Candidate, Chooser
from ncc_runtime.collectives.plan import Job
from ncc_runtime.collectives.price import Machine
from ncc_runtime.errors import InputError
from ncc_runtime.execution.clock.clock import simulate
from ncc_runtime.execution.decisions import PlannedDecisions
from ncc_runtime.lowering.bind import chooser_of, groups_of, job_of, teams_of
from ncc_runtime.lowering.executable import Executable
from ncc_runtime.lowering.fill import fill_with
from ncc_runtime.neff.program import Program
from ncc_runtime.placement import Placement, place
from ncc_runtime.report.bench_program import DTYPES, OPERATORS, Case, program_of_case
from ncc_runtime.topology.graph import Topology, build_spec
from ncc_runtime.topology.load import load_spec
from ncc_runtime.topology.routes import Routes
from ncc_runtime.topology.spec import Figure

Overrides = Mapping[str, int]
"""Values by the key of a topology's figure."""

NONE: Overrides = MappingProxyType({})

_Place = tuple[str, int, int | None, int, bool]


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
    candidates: tuple[Candidate, ...]
    executables: dict[str, Executable] = attrs.field(factory=dict)  # by algorithm


class Predictor:
    """Predicts rows; remembers what it has made for them."""

    def __init__(self) -> None:
        self._prepared: dict[Row, _Prepared] = {}
        self._generations: dict[str, str] = {}
        self._overrides: Overrides = NONE
        self._places: dict[_Place, tuple[Chooser, Machine]] = {}
        self._choices: dict[Row, Candidate] = {}  # like the places, of the last constants

    def predict_us(self, row: Row, overrides: Overrides = NONE) -> float:
        """The time of a row."""
        return self.predict(row, overrides).time_us

    def predict(self, row: Row, overrides: Overrides = NONE) -> Prediction:
        """The time of a row and by what; InputError if it cannot be placed."""
        made, chosen = self._prepare(row), self._chosen(row, overrides)
        executable = self._executable(row, made, chosen)
        placement = _placement(row, overrides)
        topology = placement.topology
        there = attrs.evolve(
            executable,
            topology=topology,
            placement=placement,
            routes=Routes(topology, placement),
        )
        _, start, end = simulate(there, PlannedDecisions(there, {})).spans(0)
        return Prediction(int(end.max() - start.min()) / 1e6, chosen.name)

    def priced(self, row: Row, overrides: Overrides = NONE) -> Prediction:
        """The price of a row and by what: quicker, and about the same."""
        chosen = self._chosen(row, overrides)
        assert chosen.price is not None, "what can run has a price"
        return Prediction(chosen.price.time_ps / 1e6, chosen.name)

    def _chosen(self, row: Row, overrides: Overrides) -> Candidate:
        made = self._prepare(row)
        chooser, machine = self._priced_on(row, made, overrides)
        what = _unmeasured(row)
        if what not in self._choices:
            priced = [chooser.priced_on(machine, made.job, one) for one in made.candidates]
            self._choices[what] = chooser.best(made.job, priced).chosen
        return self._choices[what]

    def _executable(self, row: Row, made: _Prepared, chosen: Candidate) -> Executable:
        """A row's program by one algorithm, which is the same for any constants."""
        if chosen.name not in made.executables:
            teams = list(teams_of(made.program, made.job, chosen))
            filled = fill_with(made.program, _placement(row, NONE), [teams])
            made.executables[chosen.name] = filled
        return made.executables[chosen.name]

    def narrowed(self, rows: Sequence[Row], times: float) -> "Predictor":
        """A predictor without the plans that are so many times dearer than the best of a row."""
        narrow = Predictor()
        for row in rows:
            made = self._prepare(row)
            chooser, machine = self._priced_on(row, made, NONE)
            times_ps = [
                price.time_ps
                for one in made.candidates
                if (price := chooser.priced_on(machine, made.job, one).price) is not None
            ]
            near = zip(made.candidates, times_ps, strict=True)
            kept = tuple(one for one, time_ps in near if time_ps <= times * min(times_ps))
            narrow._prepared[_unmeasured(row)] = attrs.evolve(made, candidates=kept)
        return narrow

    def generation(self, row: Row) -> str:
        """The generation of a row's instance, whose constants it has."""
        if row.instance not in self._generations:
            self._generations[row.instance] = load_spec(row.instance).generation or row.instance
        return self._generations[row.instance]

    def _prepare(self, row: Row) -> _Prepared:
        what = _unmeasured(row)
        if what not in self._prepared:
            program = _program(row)
            placeholder = program.placeholders[0]
            job, groups = job_of(program, placeholder), groups_of(program, placeholder)
            found = chooser_of(program, _placement(row, NONE), {}).unpriced(job, groups)
            able = tuple(one for one in found if not one.reason)
            self._prepared[what] = _Prepared(program, job, able)
        return self._prepared[what]

    def _priced_on(
        self, row: Row, made: _Prepared, overrides: Overrides
    ) -> tuple[Chooser, Machine]:
        """What rows of one place are chosen and priced with; only the last constants are kept."""
        if overrides != self._overrides:
            self._places.clear()
            self._choices.clear()
            self._overrides = overrides
        where = (row.instance, row.nodes, row.lnc, row.ranks, row.is_across_dies)
        if where not in self._places:
            chooser = chooser_of(made.program, _placement(row, overrides), {})
            self._places[where] = chooser, attrs.evolve(chooser.machine(made.job), known={})
        return self._places[where]


def _unmeasured(row: Row) -> Row:
    """What was measured, whatever came out: rows of one collective are predicted together."""
    return attrs.evolve(row, table="", time_us=0)


def overridden(row: Row, overrides: Overrides) -> Topology:
    """The instances of a row with other values of some figures."""
    spec = load_spec(row.instance)
    changed = {key: Figure(value, "overridden") for key, value in overrides.items()}
    figures = MappingProxyType({**spec.figures, **changed})
    return build_spec(attrs.evolve(spec, figures=figures), row.nodes, row.lnc)


def _placement(row: Row, overrides: Overrides) -> Placement:
    topology = overridden(row, overrides)
    placed = place(topology, row.ranks)
    if not row.is_across_dies:
        return placed
    if topology.intra_chip.dies == 1:
        raise InputError(f"{row.table}: {row.pair}: a chip of {row.instance} has one die")
    other = topology.ranks_per_chip // topology.intra_chip.dies
    return attrs.evolve(placed, core=np.array([0, other], np.int32))


def _program(row: Row) -> Program:
    """The row's collective; in a sendrecv rank 0 sends to rank 1."""
    operator = OPERATORS[row.op]
    program = program_of_case(Case(operator, row.ranks, DTYPES[row.dtype], row.size_bytes))
    if not operator.is_exchange:
        return program
    (placeholder,) = program.placeholders
    return attrs.evolve(program, placeholders=(attrs.evolve(placeholder, pairs=((0, 1),)),))
