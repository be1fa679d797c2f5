"""From a compiled program to a run: load, place, lower, prove, run. Read this file first."""

import contextlib
import functools
import os
import time
from collections import Counter
from collections.abc import Callable, Container, Hashable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import attrs
import numpy as np

from ncc_runtime.errors import (
    CountsError,
    InputError,
    LoweringError,
    Notice,
    PlacementError,
    PlanError,
)
from ncc_runtime.execution.clock.clock import Clock, collective_ps, simulate
from ncc_runtime.execution.control_flow import (
    Decisions,
    Inputs,
    decisions_without_values,
)
from ncc_runtime.execution.tape import Tape, tape_of
from ncc_runtime.execution.trace import Trace, Traffic, traffic_of
from ncc_runtime.execution.variable_sizes import assumed, check_counts
from ncc_runtime.group_rules.judge import verdicts
from ncc_runtime.group_rules.limits import LimitUse, limit_verdicts
from ncc_runtime.group_rules.verdict import Verdict, refuse, warnings
from ncc_runtime.host_memory import (
    BESIDE_BYTES,
    HostMemory,
    budget_bytes,
    check_slice,
    literal_memory,
)
from ncc_runtime.lowering.executable import DmaQueue, Executable
from ncc_runtime.lowering.lower import lower, without_garbage_collection
from ncc_runtime.neff.program import Program
from ncc_runtime.options import Alternatives, LoadOptions, Policy, RunOptions, plans_apart
from ncc_runtime.placement import STRATEGIES, Placement, PlaceOptions, place, place_on
from ncc_runtime.processes import ALONE, Processes
from ncc_runtime.report.run import Alternative, Run, Verification, heading, spread_alone
from ncc_runtime.topology import fault_names
from ncc_runtime.topology.graph import Topology

if TYPE_CHECKING:  # slow to import; only runs, proofs, values and users' plans need them
    from ncc_runtime.call_signature import CallSignature
    from ncc_runtime.execution.values.devices import Devices
    from ncc_runtime.faults.outcome import Laboratory
    from ncc_runtime.inputs import Draw, ExpectedInput, Given
    from ncc_runtime.plans.files import PlanFile
    from ncc_runtime.pure_collectives import PureCollective
    from ncc_runtime.ranked_array import RankedArray
    from ncc_runtime.report.explain import Explanation
    from ncc_runtime.report.listing import Listing
    from ncc_runtime.value_run import ValueRun, Watch
    from ncc_runtime.verify.proof import Proof
    from ncc_runtime.verify.prove import Evidence


MOST_LAYOUTS = 4
"""Of the memory of steps that feed one another: then they repeat themselves."""


class Compiled(Protocol):
    """What a compiler hands over: the bytes of a `.neff`."""

    @property
    def data(self) -> bytes: ...


_OPTION_NAMES = frozenset(field.name for field in attrs.fields(RunOptions))
"""Names of the options of a run."""


class Model:
    """A program on its placement, lowered and ready to run any number of times; `load` makes one.

    - `run`: values and times
    - `explain`, `list`, `verify`: what the commands of `nccrt` with these names print
    - `trace`, `report`: the timeline of a run as a file, all about it as a page for browsers
    - `topology`: what it is placed on; `svg` draws it with the ranks
    - `warnings`: rules of the hardware that it breaks
    - `executable`: the queues of all ranks, as lowered
    """

    def __init__(
        self,
        executable: Executable,
        verdicts: Sequence[Verdict] = (),
        plans: Sequence["PlanFile"] = (),
        signature: "CallSignature | None" = None,
        algorithms: Mapping[str, str] | None = None,
    ) -> None:
        self.executable = executable
        self.signature = signature  # of the function that it was, if it comes from one
        self.algorithms = dict(algorithms or {})  # that were forced, by operator
        self.plans = tuple(plans)  # that users wrote, for some placeholders
        self.verdicts = tuple(verdicts)  # of the hardware's rules on its groups
        self._machines: dict[tuple[Hashable, ...], Devices] = {}
        self._healthy: dict[bool, Executable | None] = {}  # by whether it is for times only
        self._free: dict[bool, Executable] = {}
        self._evidence: Evidence | None = None  # of the proofs, until values have used it
        self._tapes: dict[bool, Tape | None] = {}  # by whether the program is proved
        self._memory: dict[Hashable, HostMemory] = {}  # by what it was worked out for
        self._values_checked = False  # whether the program says all that it computes
        self.processes: Processes = ALONE  # each holds the values of its share of the ranks

    def __repr__(self) -> str:
        return f"<Model: {heading(self.executable).splitlines()[0]}>"

    def _repr_html_(self) -> str:
        from ncc_runtime.report import html
        from ncc_runtime.report.topology.svg import as_html

        picture = as_html(self.topology, self.executable.placement, self.svg())
        return html.block(html.line(heading(self.executable)), picture)

    def svg(self) -> str:
        """The picture of the chips with the ranks on them, in the colours of groups, as SVG."""
        from ncc_runtime.report.topology.overlay import Overlay
        from ncc_runtime.report.topology.run_overlay import divisions_of
        from ncc_runtime.report.topology.svg import as_svg

        groups = next(iter(divisions_of(self.executable)), None)
        return as_svg(self.topology, self.executable.placement, Overlay(groups=groups))

    @property
    def topology(self) -> Topology:
        """What it is placed on."""
        return self.executable.topology

    def healthy(self, *, times_only: bool = False) -> Executable | None:
        """The same program under the same policy where nothing is down or slow, to be timed.

        None if nothing is, or if what is forced cannot run there.
        """
        if times_only not in self._healthy:
            found = None
            if self.topology.active_faults:
                with contextlib.suppress(LoweringError, PlanError):
                    placement = self.executable.placement.healthy
                    found = self._lowered(placement, self.executable.is_deterministic, times_only)
            self._healthy[times_only] = found
        return self._healthy[times_only]

    def free(self, *, times_only: bool = False) -> Executable | None:
        """The same program on the same place in any order of reduction, to be timed.

        None if it may have any.
        """
        if not self.executable.is_deterministic:
            return None
        if times_only not in self._free:
            self._free[times_only] = self._lowered(self.executable.placement, False, times_only)
        return self._free[times_only]

    def _lowered(
        self,
        placement: Placement,
        deterministic: bool,
        times_only: bool,
        policy: Policy | None = None,
    ) -> Executable:
        """The same program, by the same policy unless another is given, to be timed beside this."""
        return lower(
            self.executable.program,
            placement,
            self.algorithms,
            self.plans,
            policy=policy or self.executable.policy,
            times_only=times_only,
            ignore_memory=self.executable.ignores_memory,
            clock=collective_ps,
            deterministic=deterministic,
        )

    def _alternatives(
        self, which: Alternatives, decided: Callable[[Executable], Decisions], *, times_only: bool
    ) -> Iterator[Alternative]:
        """Times on the other placement, and by the other policy, where these can run."""
        own, here = self.executable.policy, self.executable.placement
        strategy = next(word for word in STRATEGIES if word != here.strategy)
        places = {"": here}
        with contextlib.suppress(PlacementError):  # ranks that do not divide
            there = place(self.topology, here.ranks, strategy)
            if not np.array_equal(there.places, here.places):
                places[f"placement={strategy}"] = there
        policies = {"": own}
        if which is Alternatives.ALL:
            other = Policy.NEURON if own is Policy.BEST else Policy.BEST
            policies[f"policy={other}"] = other
        for where, placement in places.items():
            for choice, policy in policies.items():
                words = ",".join(filter(None, (where, choice)))
                if not words:
                    continue
                with contextlib.suppress(LoweringError, PlanError):
                    deterministic = self.executable.is_deterministic
                    lowered = self._lowered(placement, deterministic, times_only, policy)
                    clock = Clock(assumed(lowered)[0], decided(lowered))
                    yield Alternative(words, clock.spans().time_ps / 1e6)

    @property
    def warnings(self) -> tuple[Notice, ...]:
        """Broken rules of the hardware, what plans give cause for, and what the policy cannot do.

        One for each.
        """
        from ncc_runtime.report.collectives import beyond_policy

        of_plans = (notice for file in self.plans for notice in file.warnings)
        return (*warnings(self.verdicts), *of_plans, *beyond_policy(self.executable))

    @functools.cached_property
    def proofs(self) -> "tuple[Proof, ...]":
        """The proofs of the program, those that fail too; computed once, on first use."""
        from ncc_runtime.verify.prove import prove_with_evidence

        def prove() -> "tuple[Proof, ...]":
            proofs, self._evidence = prove_with_evidence(self.executable)
            return proofs

        return self.processes.from_first(prove)

    def _check_proofs(self) -> None:
        """ProofError if one fails."""
        from ncc_runtime.verify.prove import refuse as refuse_unproved

        refuse_unproved(self.proofs)

    def verify(self) -> Verification:
        """Prove that it has no deadlock and no race, and that its collectives are right.

        As `nccrt verify` does; nothing is raised if a proof fails: `proved` says whether all hold.
        """
        return Verification(self.executable, self.proofs)

    def explain(self) -> "Explanation":
        """Which algorithms could fill each collective, what they cost, and why one was chosen."""
        from ncc_runtime.report.explain import explained

        return explained(self.executable, self.algorithms, self.plans)

    def list(self, rank: int = 0, queue: str | None = None) -> "Listing":
        """The placed program of one rank, or one queue of it, such as "Tensor" or "cc0.dma0".

        InputError if there is no such rank or queue.
        """
        from ncc_runtime.report.listing import listing_of

        return listing_of(self.executable, rank, queue)

    def trace(
        self,
        path: str | os.PathLike[str],
        *inputs: Any,
        ranks: Sequence[int] | None = None,
        **settings: Any,
    ) -> Run:
        """Write the timeline of a run, and return the run.

        As `run(*inputs, values=False)` and `Run.write_trace(path, ranks)`; `settings` are those of
        `run`, so that values=True also computes the outputs.
        """
        run = self.run(*inputs, **{"values": False, **settings})
        run.write_trace(path, ranks)
        return run

    def report(
        self,
        path: str | os.PathLike[str],
        *inputs: Any,
        against: "Model | None" = None,
        ranks: Sequence[int] | None = None,
        **settings: Any,
    ) -> Run:
        """Write a page that opens in any browser, as `nccrt report` does, and return the run.

        As `run(*inputs, values=False, alternatives="placement")` and `Run.write_report`; `against`
        is the same program elsewhere, which runs as well. `settings` are those of `run`.
        """
        settings = {"values": False, "alternatives": "placement", **settings}
        run = self.run(*inputs, **settings)
        other = None if against is None else against.run(*inputs, **settings)
        run.write_report(path, other, ranks)
        return run

    def run(
        self,
        *inputs: Any,
        seed: int | None = None,
        options: RunOptions | None = None,
        watch: "Watch | None" = None,
        **settings: Any,
    ) -> Run:
        """Run once. Inputs are the arguments of the function that was compiled, in its trees.

        Or they are a list of arrays in order, or a mapping by number or by the name that the model
        gives them. An input is `[ranks, *shape]`, `[*shape]` for the same on every rank, or the
        whole array, which its sharding in the model cuts. A seed fills what is missing.
        Without a seed a missing input is an InputError, unless values are off. A program that is
        not proved is a ProofError, unless `verify` is off.
        `settings` are fields of RunOptions by name, as in run(x, values=True, threads=2).
        `watch` is called with the devices and the rows that they are about to perform.

        >>> import ncc_compiler
        >>> text = "ENTRY double { x = f32[2] parameter(0) ROOT y = f32[2] add(x, x) }"
        >>> model = load(ncc_compiler.compile_text(text))
        >>> run = model.run([[[1.5, 2.0]]])  # [ranks, *shape], here of one rank
        >>> run.outputs[0].tolist()
        [[3.0, 4.0]]
        >>> model.run(seed=0, values=False).time_us == run.time_us
        True
        """
        started = time.perf_counter()
        options, given = self._request(inputs, options, settings)
        arrays = self._bound_inputs(given, seed, options) if options.values else None
        if options.verify:
            self._check_proofs()
        if options.faults:
            if arrays is not None:
                literal_memory(self.executable, options).check(self.executable.ranks)
            run = self._run_with_faults(given, arrays, options)
            return attrs.evolve(run, host_s=time.perf_counter() - started)
        if arrays is None:
            return self._timed(given, options, started)
        machine = self._machine(options)
        tape = self._tape(options) if watch is None else None
        memory = self._checked_memory(machine, tape, given, options)
        try:
            labels = None
            if self.processes.count > 1:  # this one has the inputs of its ranks only
                labels = [one.row_of for one in self._expected_inputs(given)]
            machine.memory.load(arrays, tape=tape, labels=labels)
            return self._computed(machine, given, options, started, memory, watch=watch)
        finally:
            machine.memory.release()

    def _bound_inputs(
        self, given: "Given", seed: int | None, options: RunOptions
    ) -> "Iterator[RankedArray]":
        """Every parameter, of the ranks of this process."""
        from ncc_runtime.inputs import bound_inputs
        from ncc_runtime.own_inputs import own_inputs

        program, draw = self.executable.program, self._drawn_counts
        if self.processes.count == 1:
            return bound_inputs(program, given, seed, draw, options.threads)
        shares = self.processes.shares(program.ranks)
        return own_inputs(program, given, seed, draw, options.threads, shares)

    def _expected_inputs(self, given: "Given") -> "Sequence[ExpectedInput]":
        """What `_bound_inputs` will give."""
        from ncc_runtime.inputs import expected_input
        from ncc_runtime.own_inputs import expected_own_input

        program = self.executable.program
        numbers = range(len(program.inputs))
        if self.processes.count == 1:
            return [expected_input(program, number, given) for number in numbers]
        shares = self.processes.shares(program.ranks)
        return [expected_own_input(program, number, given, shares) for number in numbers]

    def host_memory(
        self,
        *inputs: Any,
        options: RunOptions | None = None,
        **settings: Any,
    ) -> HostMemory:
        """Memory of this host that the values of `run` with the same arguments would take.

        Worked out before anything is loaded or drawn; inputs that are not given would be drawn.
        InputError if it is more than the run may take, ProofError if the program is not proved.
        """
        settings.pop("seed", None)  # it changes nothing
        options, given = self._request(inputs, options, settings)
        if options.verify:
            self._check_proofs()
        if options.faults:
            memory = literal_memory(self.executable, options)
            memory.check(self.executable.ranks)
            return memory
        return self._checked_memory(self._machine(options), self._tape(options), given, options)

    def _checked_memory(
        self,
        machine: "Devices",
        tape: Tape | None,
        given: "Given",
        options: RunOptions,
        *,
        keeps_state: bool = False,
        feed: Sequence[tuple[int, int]] = (),
    ) -> HostMemory:
        """The host memory of a run, or of steps; InputError if it is more than it may take.

        It is worked out once for inputs of a kind: what has run has taken its memory.
        """
        from ncc_runtime.execution.values.host_bytes import device_bytes
        from ncc_runtime.inputs import kind_of_inputs

        key = machine, tape, keeps_state, tuple(feed), kind_of_inputs(given)
        if key in self._memory:
            return self._memory[key]
        expected = self._expected_inputs(given)
        machine.memory.choose_layout(
            [one.row_of for one in expected],
            [one.is_contiguous for one in expected],
            tape,
            keeps_state=keeps_state,
        )
        bytes_of_steps = [device_bytes(machine)]
        for _ in range(MOST_LAYOUTS if feed else 0):
            # what outputs feed may be equal on fewer ranks
            before = machine.layout
            machine.memory.choose_next_layout(feed)
            if machine.layout is before:
                break
            bytes_of_steps.append(device_bytes(machine))
        held = max((one.ranks for one in self._memory.values()), default=0)
        memory = HostMemory(
            max(one.memory for one in bytes_of_steps),
            sum(one.held_bytes for one in expected)
            + max((one.passing_bytes for one in expected), default=0),
            max(one.outputs for one in bytes_of_steps),
            max(one.scratch for one in bytes_of_steps) + BESIDE_BYTES,
            budget_bytes(options, held, self.processes.on_host),
        )
        if self.processes.count > 1:
            needed = tuple(self.processes.gather(memory.needed))
            memory = attrs.evolve(memory, processes=needed)
        memory.check(self.executable.ranks)
        self._memory = {key: memory}  # the last kind alone: a caller may give many
        return memory

    def run_steps(
        self,
        steps: int,
        *inputs: Any,
        feed: Mapping[str, str] | None = None,
        batches: Mapping[Any, Any] | None = None,
        draw: Sequence[str] = (),
        seed: int | None = None,
        first: int = 0,
        outputs_at: Container[int] | None = None,
        options: RunOptions | None = None,
        **settings: Any,
    ) -> Iterator[Run]:
        """Run step after step, where outputs of one are inputs of the next; gives a Run for each.

        The state stays in the virtual devices. The arguments are those of `run`, and:

        - `feed`: which outputs feed which inputs, by number or name: {"out0": "arg1"}; by default
          what the model's `input_output_alias` pairs
        - `batches`: arrays with one more dimension in front, a row for each step; after the last
          row comes the first again. They take the place of inputs that are given
        - `draw`: inputs that are drawn anew at every step, from the seed and the step's number
        - `first`: the number of the first step, where `inputs` are the state before it
        - `outputs_at`: numbers of the steps whose outputs are copied to the host; the others'
          `Run.outputs` are empty. All by default

        InputError for a feed that does not fit, and as `run`.

        >>> import ncc_compiler
        >>> text = "ENTRY double { x = f32[2] parameter(0) ROOT y = f32[2] add(x, x) }"
        >>> model = load(ncc_compiler.compile_text(text))
        >>> runs = model.run_steps(3, [[[1.5, 2.0]]], feed={"out0": "arg0"})
        >>> [run.outputs[0].tolist() for run in runs]
        [[[3.0, 4.0]], [[6.0, 8.0]], [[12.0, 16.0]]]
        """
        from ncc_runtime.inputs import bound_inputs
        from ncc_runtime.step_inputs import inputs_of_steps

        if steps < 1 or first < 0:
            raise InputError(f"{steps} steps from step {first} on; there must be one, from 0 on")
        options, given = self._request(inputs, options, settings)
        if options.faults:
            raise InputError("faults happen in one run; give them to `run`")
        if self.processes.count > 1:
            raise InputError(
                f"steps that feed one another run in one process, and there are "
                f"{self.processes.count}; start one, or give each step's outputs to the next run"
            )
        program = self.executable.program
        between = inputs_of_steps(program, feed, batches or {}, draw, seed, options.threads)
        given = {**given, **between.of_step(first)}
        arrays = None
        if options.values:
            arrays = bound_inputs(program, given, seed, self._drawn_counts, options.threads)
        if options.verify:
            self._check_proofs()

        def runs() -> Iterator[Run]:
            started = time.perf_counter()
            if arrays is None:
                run = self._timed(given, options, started)
                for _ in range(steps):
                    yield run
                return
            machine, known = self._machine(options), dict[Hashable, Run]()
            tape = self._tape(options)
            changed = {number for _, number in between.feed} | between.of_step(first).keys()
            unchanged = set(range(len(program.inputs))) - changed
            memory = self._checked_memory(
                machine, tape, given, options, keeps_state=True, feed=between.feed
            )
            # they hold the state: a run between two steps gets devices of its own
            kept = self._machines, self._memory
            self._machines, self._memory = {}, {}
            try:
                machine.memory.load(arrays, unchanged, tape, keeps_state=True)
                for step in range(first, first + steps):
                    if step > first:
                        started = time.perf_counter()
                        machine.memory.load_again(between.feed, between.of_step(step), tape)
                    is_shown = outputs_at is None or step in outputs_at
                    yield self._computed(machine, given, options, started, memory, known, is_shown)
            finally:
                self._machines, self._memory = kept

        return runs()

    def _request(
        self, inputs: Sequence[Any], options: RunOptions | None, settings: dict[str, Any]
    ) -> "tuple[RunOptions, Given]":
        """Options and inputs of a run, as far as they can be checked without loading anything."""
        from ncc_runtime.call_signature import arguments
        from ncc_runtime.inputs import check_values, numbered

        named = {key: settings.pop(key) for key in list(settings) if key not in _OPTION_NAMES}
        options = RunOptions(**settings) if options is None else attrs.evolve(options, **settings)
        program = self.executable.program
        given = numbered(program, arguments(self.signature, inputs, named))
        if options.values or options.verify:
            self.executable.check_is_whole()
        if options.values and self.executable.ignores_memory:
            raise InputError(
                "the program takes more memory than a rank has, which was ignored to time it: it "
                "has no values; run it with --no-values"
            )
        if options.values and not self._values_checked:
            check_values(program)
            self._values_checked = True
        if options.faults and self.processes.count > 1:
            raise InputError(
                f"a run with faults takes one process, and there are {self.processes.count}; "
                "start one"
            )
        return options, given

    def _timed(self, given: "Given", options: RunOptions, started: float) -> Run:
        """A run without values."""
        decisions = self._decisions(self.executable, given, options)
        sized, notes = assumed(self.executable)
        timed = simulate(sized, decisions)
        beside_us: list[float | None] = [None, None]
        for number, other_of in enumerate((self.healthy, self.free) if options.clock else ()):
            if (other := other_of(times_only=not given)) is not None:
                decisions = self._decisions(other, given, options)
                beside_us[number] = Clock(assumed(other)[0], decisions).spans().time_ps / 1e6
        trace, traffic = timed if options.clock else None, traffic_of(timed)
        alternatives: tuple[Alternative, ...] = ()
        if options.clock and options.alternatives is not Alternatives.NONE:
            alternatives = tuple(
                self._alternatives(
                    options.alternatives,
                    lambda other: self._decisions(other, given, options),
                    times_only=not given,
                )
            )
        run = self._run_of(options, trace, traffic, started, beside_us, notes=notes)
        return attrs.evolve(run, alternatives=alternatives)

    def time_us(self, trip_counts: Mapping[str, int] | None = None) -> float:
        """The time of a run without values, in microseconds, where nothing else is asked for.

        `trip_counts` is as of RunOptions. ControlError where data decides.
        """
        options = RunOptions(values=False, trip_counts=trip_counts or {})
        decisions = self._decisions(self.executable, {}, options)
        return Clock(assumed(self.executable)[0], decisions).spans().time_ps / 1e6

    def _computed(
        self,
        machine: "Devices",
        given: Container[int],
        options: RunOptions,
        started: float,
        memory: HostMemory,
        known: dict[Hashable, Run] | None = None,
        has_outputs: bool = True,
        watch: "Watch | None" = None,
    ) -> Run:
        """A run on devices that hold its inputs, which may take this memory of the host.

        `known` keeps the last run: one that decides and moves the same takes the same time.
        """
        with self._explained(given):
            values = self._perform(machine, options, watch)
        recorded, sizes = values.decisions, values.sizes
        outputs = machine.outputs() if has_outputs else []
        key = (recorded.fingerprint(), sizes.fingerprint()) if known is not None else None
        if known and key in known:
            host_s = time.perf_counter() - started
            return attrs.evolve(known[key], ranked_outputs=outputs, host_s=host_s)
        trace: Trace | None = None
        is_timed = options.clock and self.processes.number == 0  # all came to the same decisions
        if is_timed:
            trace = simulate(sizes.sized(), recorded, sizes.repeated())
        placeholders = self.executable.program.placeholders
        has_counts = any(placeholder.op.is_counted for placeholder in placeholders)
        beside_us: list[float | None] = [None, None]
        others = (self.healthy, self.free) if is_timed and not has_counts else ()
        for number, other_of in enumerate(others):
            if (other := other_of()) is not None:
                moved = recorded.moved(self.executable, other)
                beside_us[number] = Clock(other, moved).spans().time_ps / 1e6
        run = self._run_of(
            options,
            trace,
            values.traffic,
            started,
            beside_us,
            outputs,
            interpreters=values.interpreters,
            spread=machine.memory.output_arrays.whole,
            memory=memory,
        )
        if is_timed and options.alternatives is not Alternatives.NONE and not has_counts:
            more = self._alternatives(
                options.alternatives,
                lambda other: recorded.moved(self.executable, other),
                times_only=False,
            )
            run = attrs.evolve(run, alternatives=tuple(more))
        if known is not None:
            known.clear()
            known[key] = attrs.evolve(run, ranked_outputs=())
        return run

    def _run_of(
        self,
        options: RunOptions,
        trace: Trace | None,
        traffic: tuple[Traffic, ...],
        started: float,
        beside_us: Sequence[float | None],
        outputs: "Sequence[RankedArray]" = (),
        notes: tuple[str, ...] = (),
        interpreters: Mapping[int, str] | None = None,
        spread: "Callable[[int, RankedArray], np.ndarray]" = spread_alone,
        memory: HostMemory | None = None,
    ) -> Run:
        """The result; `beside_us`: its time with nothing down or slow, and in any order of sums."""
        return Run(
            executable=self.executable,
            options=options,
            ranked_outputs=outputs,
            trace=trace,
            healthy_us=beside_us[0],
            free_us=beside_us[1],
            traffic=traffic,
            proofs=self.proofs if options.verify else (),
            notes=notes,
            verdicts=self.verdicts,
            interpreters=interpreters or {},
            spread=spread,
            host_s=time.perf_counter() - started,
            host_memory=memory,
            assemble=self._result if options.values else None,
        )

    def _run_with_faults(
        self, given: "Given", arrays: "Iterable[RankedArray] | None", options: RunOptions
    ) -> Run:
        """A run in which faults happen; of one that does not come to its end only the report."""
        from ncc_runtime.faults.files import as_faults
        from ncc_runtime.faults.outcome import Laboratory
        from ncc_runtime.faults.report import reported
        from ncc_runtime.faults.watchdog import exec_timeout_ps
        from ncc_runtime.ranked_array import RankedArray

        if not options.clock:
            raise InputError("faults happen at times: a run with faults needs the clock")
        if options.checked or options.shuffle_seed is not None:
            raise InputError(
                "a run with faults goes in the order of its times: it takes neither checked mode "
                "nor a random order"
            )
        faults = as_faults(options.faults)
        executable, clock = self.executable, None
        notes: tuple[str, ...] = ()
        executable.check_is_whole()
        inputs = arrays
        if inputs is None:
            sized, notes = assumed(executable)
            clock = Clock(sized, self._decisions(executable, given, options))
        laboratory = Laboratory(
            executable,
            lambda: inputs or (),
            is_proved=options.verify,
            clock=clock,
            threads=options.threads,
        )
        timeout_ps = exec_timeout_ps(options.exec_timeout_s)
        has_values = inputs is not None
        with self._explained(given):
            report = reported(laboratory, faults, options.fault_seed, timeout_ps, values=has_values)
        trace: Trace | None = None
        traffic: tuple[Traffic, ...] = ()
        if report.is_complete and report.outcome.timed is not None:
            trace = report.outcome.timed.trace
            traffic = traffic_of(trace)
        outputs = list(report.outcome.outputs)
        if has_values and report.is_complete and not outputs:
            outputs = laboratory.undisturbed.outputs  # of a run that is proved to be harmless
        return Run(
            executable=executable,
            options=options,
            ranked_outputs=[RankedArray.of_each(array) for array in outputs],
            trace=trace,
            traffic=traffic,
            proofs=self.proofs if options.verify else (),
            notes=notes,
            verdicts=self.verdicts,
            faults=report,
            assemble=self._result if outputs else None,
        )

    def laboratory(
        self, *inputs: Any, seed: int | None = None, options: RunOptions | None = None, **named: Any
    ) -> "Laboratory":
        """The program with inputs, as `run` takes them, to be run again and again with faults.

        ProofError if it is not proved, unless `options` say not to verify it. Inputs are bound when
        a fault first needs values.
        """
        from ncc_runtime.call_signature import arguments
        from ncc_runtime.faults.outcome import Laboratory
        from ncc_runtime.inputs import bound_inputs, check_values, numbered

        options = options or RunOptions()
        program = self.executable.program
        given = numbered(program, arguments(self.signature, inputs, named))
        self.executable.check_is_whole()
        if options.verify:
            self._check_proofs()

        def bound() -> "Iterable[RankedArray]":
            check_values(program)
            literal_memory(self.executable, options).check(self.executable.ranks)
            return bound_inputs(program, given, seed, self._drawn_counts, options.threads)

        return Laboratory(
            self.executable,
            bound,
            is_proved=options.verify,
            memory_bytes=options.memory_bytes,
            threads=options.threads,
        )

    def _result(self, outputs: "Sequence[RankedArray]") -> Any:
        from ncc_runtime.call_signature import result

        return result(self.signature, self.executable.program, outputs)

    def _decisions(self, executable: Executable, given: "Given", options: RunOptions) -> Decisions:
        """Decisions of control flow without values, as far as given inputs determine them."""
        from ncc_runtime.inputs import check_type, checked_input, parameter_text

        program = executable.program
        for number, array in given.items():
            check_type(program, number, array)
        inputs = Inputs(
            given,
            lambda number: checked_input(program, number, given[number]),
            lambda number: parameter_text(program, number),
            lambda required: check_slice(required, options),
        )
        return decisions_without_values(executable, options.trip_counts, inputs)

    @functools.cached_property
    def _drawn_counts(self) -> "Draw | None":
        """What draws tables of counts that fit the buffers; None if the program has none."""
        program = self.executable.program
        if not any(placeholder.op.is_counted for placeholder in program.placeholders):
            return None
        from ncc_runtime.random_counts import drawn_counts

        return functools.partial(drawn_counts, program)

    @contextlib.contextmanager
    def _explained(self, given: Container[int]) -> Iterator[None]:
        """Names the parameters that a seed filled where counts that follow from them do not fit."""
        try:
            yield
        except CountsError as error:
            from ncc_runtime.random_counts import random_parameters

            names = random_parameters(self.executable.program, str(error), given)
            if not names:
                raise
            raise CountsError(
                f"{error}; its tables follow from {names}, which a seed filled, in a way that does "
                "not tell what fits: give them"
            ) from None

    @staticmethod
    def _machine_key(options: RunOptions) -> tuple[Hashable, ...]:
        """What devices are made for."""
        return options.threads, options.checked, options.verify, options.memory_bytes

    def _machine(self, options: RunOptions) -> "Devices":
        from ncc_runtime.execution.values.devices import Devices

        key = self._machine_key(options)
        if key not in self._machines:
            pure = self._pure if options.verify and not options.checked else {}
            forms = {number: one.form for number, one in pure.items()}
            machine = Devices(
                self.executable, options.threads, options.checked, forms, self.processes
            )
            self._machines = {key: machine}
        return self._machines[key]

    @functools.cached_property
    def _pure(self) -> "Mapping[int, PureCollective]":
        """The collectives that are functions of their operands, if the program is proved."""
        from ncc_runtime.pure_collectives import pure_collectives

        def pure() -> "Mapping[int, PureCollective]":
            evidence, self._evidence = self._evidence, None
            return pure_collectives(self.executable, evidence)

        return self.processes.from_first(pure)

    def _tape(self, options: RunOptions) -> Tape | None:
        """All that a run performs; None where that, or the order, is not the program's alone."""
        if options.checked or options.shuffle_seed is not None:
            return None
        if options.verify not in self._tapes:
            pure = self._pure if options.verify else {}
            at_once = [one.at_once for one in pure.values()]
            sent = {number: one.traffic for number, one in pure.items()}
            self._tapes[options.verify] = tape_of(self.executable, at_once, sent)
        return self._tapes[options.verify]

    def _perform(
        self, machine: "Devices", options: RunOptions, watch: "Watch | None"
    ) -> "ValueRun":
        """Compute what the devices would hold."""
        from ncc_runtime.value_run import perform_rows, play_tape

        tape = self._tape(options) if watch is None else None
        if tape is not None:
            return play_tape(self.executable, machine, tape)
        # of programs that are not proved, and for who wants to see rows, rows are performed
        is_literal = watch is not None or options.checked or options.shuffle_seed is not None
        pure = {} if is_literal or not options.verify else self._pure
        return perform_rows(self.executable, machine, pure, options.shuffle_seed, watch)


Neff = Compiled | Program | bytes | str | os.PathLike[str]
"""A compiled program: what the compiler returned, its bytes, or the path of a `.neff`."""


def load(
    neff: Neff | Sequence[tuple[Neff, Sequence[int]]],
    topology: str | Topology = "trn2.48xlarge",
    *,
    nodes: int | None = None,
    placement: str = "linear",
    lnc: int | None = None,
    algorithms: Mapping[str, str] | None = None,
    strict: bool = False,
    plans: Sequence[str] = (),
    times_only: bool = False,
    ignore_memory: bool = False,
    down: Sequence[str] = (),
    slow: Sequence[str] = (),
    policy: str = "neuron",
    deterministic: bool = False,
) -> Model:
    """Place a compiled program and lower its placeholders; raises NccError with the reason.

    `neff` is what the compiler returned, its bytes, or the path of a `.neff`.
    `topology` is a name, the path of a TOML file, or a Topology, which has its own nodes and lnc.
    `nodes` are as many as the ranks need by default, `lnc` is the physical cores of a rank.
    `placement` is "linear" (consecutive cores), "spread" (a rank per chip first) or a JSON file.
    `algorithms` forces one for an operator: {"all-reduce": "ring"}.
    Several programs of one world, pipeline stages say, come with the ranks that run each:
    load([("a.neff", range(0, 4)), ("b.neff", range(4, 8))]); MismatchError says how they differ.
    `strict` refuses groups that the hardware would refuse; `Model.verdicts` has them otherwise.
    `plans` are files, perhaps with a target: "all-reduce=ring.xml", "p3=own.json"; `algorithms` may
    name one, too: {"all-reduce": "plan:ring.xml"}.
    `times_only` lowers one of symmetric instances, for run(values=False, verify=False): many ranks
    are timed as quickly as those of one instance.
    `ignore_memory` also places what takes more memory than a rank has, for run(values=False).
    `down` names links without which it must do, "c0-c1" or "c0.E"; `slow` links and physical cores
    with their rate, "c0-c1=50%" or "c5.core0=50%".
    `policy` says which algorithms may be chosen: "neuron", those that AWS publishes of Neuron's
    runtime, or "best", all.
    `deterministic` collectives reduce in the order of their groups: the same bits on any topology
    and placement, by any policy; LoweringError for what is forced and reduces otherwise.

    >>> import ncc_compiler
    >>> text = "ENTRY double { x = f32[2] parameter(0) ROOT y = f32[2] add(x, x) }"
    >>> neff = ncc_compiler.compile_text(text, ncc_compiler.CompileOptions(ranks=4))
    >>> load(neff, "trn2", placement="spread")
    <Model: main: 4 ranks on 1 x trn2.48xlarge, lnc 2, spread; policy neuron>
    """
    named, files = plans_apart(algorithms or {}, plans)
    options = LoadOptions(
        named,
        strict,
        files,
        ignore_memory=ignore_memory,
        times_only=times_only,
        policy=Policy(policy),
        deterministic=deterministic,
    )
    faults = (*map(fault_names.down, down), *map(fault_names.slow, slow))
    program, signature = program_of(neff), getattr(neff, "signature", None)
    where: PlaceOptions | Placement
    if isinstance(topology, Topology):
        if nodes is not None or lnc is not None or faults:
            given = "nodes, lnc, down and slow"
            raise PlacementError(f"{given} are those of {topology!r}: leave them out")
        where = place(topology, program.ranks, placement)
    else:
        where = PlaceOptions(topology, nodes, placement, lnc, faults)
    return load_on(program, where, options, signature)


def load_on(
    program: Program,
    where: PlaceOptions | Placement,
    options: LoadOptions,
    signature: "CallSignature | None" = None,
    plans: "Sequence[PlanFile]" = (),
) -> Model:
    """The same with options as objects; `plans` are files that have been read."""
    placement = where if isinstance(where, Placement) else place_on(where, program.ranks)
    of_groups = verdicts(program, placement)
    if options.strict:
        refuse(of_groups)
    if options.plans:
        from ncc_runtime.plans.files import read_plans

        with without_garbage_collection():
            plans = (*plans, *read_plans(options.plans))
    executable = lower(
        program,
        placement,
        options.algorithms,
        plans,
        policy=options.policy,
        times_only=options.times_only,
        ignore_memory=options.ignore_memory,
        clock=collective_ps,
        deterministic=options.deterministic,
    )
    check_counts(executable)
    of_limits = limit_verdicts(placement, _uses(executable))
    if options.strict:
        refuse(of_limits)
    model = Model(executable, (*of_groups, *of_limits), plans, signature, options.algorithms)
    if plans:
        from ncc_runtime.plans_proved import refuse_orders, refuse_plans

        refuse_plans(executable, plans, lambda: model.proofs)
        if options.deterministic:
            refuse_orders(executable, plans)
    return model


def _uses(executable: Executable) -> Iterator[LimitUse]:
    """How every placeholder was lowered, for one group of each size."""
    rings = [queue for queue in executable.queues if isinstance(queue, DmaQueue)]
    used = {(ring.name, int(number)) for ring in rings for number in np.unique(ring.placeholder)}
    lanes = Counter(number for _, number in used)
    for number, collective in enumerate(executable.lowered):
        groups = executable.program.placeholders[number].groups
        for algorithm, size in zip(collective.algorithms, collective.group_sizes, strict=True):
            ranks = next((group for group in groups if len(group) == size), ())
            yield LimitUse(number, algorithm, ranks, lanes[number])


def program_of(neff: Neff | Sequence[tuple[Neff, Sequence[int]]]) -> Program:
    """The program of a `.neff`, or of several with their ranks."""
    if isinstance(neff, Program):
        return neff
    if isinstance(neff, list | tuple):
        return _joint_program(neff)
    from ncc_runtime.neff import container

    if isinstance(neff, str | os.PathLike):
        return container.load(Path(neff))
    if isinstance(neff, bytes):
        return container.unpack(neff, "<bytes>")
    data = getattr(neff, "data", None)
    if isinstance(data, bytes):
        return container.unpack(data, "<compiled>")
    raise InputError(f"a .neff is a path, bytes or a compiled program, not {type(neff).__name__}")


def _joint_program(parts: Sequence[tuple[Neff, Sequence[int]]]) -> Program:
    from ncc_runtime.pipeline import joint_program, stage_of

    stages = []
    for neff, ranks in parts:
        program = program_of(neff)
        label = str(neff) if isinstance(neff, str | os.PathLike) else program.name
        stages.append(stage_of(program, ranks, label))
    if not stages:
        raise InputError("no program is given")
    return joint_program(stages)
