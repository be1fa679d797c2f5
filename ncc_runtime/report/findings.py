"""What a run is bound by, and what could be gained: sentences with figures, for planners.

Every gain is at most what is said: what is lost now, in a part of the run that a change could
leave out. Gains do not add up. What was tried (`Run.alternatives`) is exact.
"""

from collections.abc import Iterator, Sequence

import attrs

from ncc_runtime.collectives.bounds import Bound, bound_of
from ncc_runtime.lowering.choices import collective_key, groups_of, job_of
from ncc_runtime.lowering.executable import Executable
from ncc_runtime.options import Policy
from ncc_runtime.report.performance import Performance
from ncc_runtime.report.rates import Rates
from ncc_runtime.report.run import Run
from ncc_runtime.report.topology.svg import share_text
from ncc_runtime.report.utilisation import parts_of_machine

LEAST_SHARE = 0.005
"""Of the run's time; what gains less is not said."""

BOUND = 0.5
"""Share of the run's time from which on one part of it is what binds it."""


def time_text(time_us: float) -> str:
    """A time for people, with three digits that count or more: `8.81 ms`, `249.1 ms`."""
    for unit, size in (("s", 1e6), ("ms", 1e3)):
        if abs(time_us) >= size:
            return f"{time_us / size:,.{1 if abs(time_us) >= 10 * size else 2}f} {unit}"
    return f"{time_us:,.1f} us"


@attrs.frozen
class Breakdown:
    """Where the time of a rank goes on average, in microseconds; the parts add up to the run."""

    compute_us: float  # while no collective is under way
    hidden_us: float  # both
    exposed_us: float  # collectives, while no engine works
    idle_us: float  # neither

    @property
    def time_us(self) -> float:
        return self.compute_us + self.hidden_us + self.exposed_us + self.idle_us


def breakdown(performance: Performance) -> Breakdown:
    """Of all ranks, on average."""
    both = performance.overlap
    compute, exposed = both.mean_us(both.compute_ps), both.mean_us(both.exposed_ps)
    hidden = both.mean_us(both.collective_ps) - exposed
    time_us = performance.trace.time_ps / 1e6
    return Breakdown(compute - hidden, hidden, exposed, max(0.0, time_us - compute - exposed))


def verdict(parts: Breakdown) -> str:
    """In a sentence, what the run is bound by."""
    time = parts.time_us
    if not time:
        return "The run takes no time."
    exposed, compute = parts.exposed_us / time, (parts.compute_us + parts.hidden_us) / time
    idle = parts.idle_us / time
    figures = (
        f"a rank on average computes for {compute:.0%} of the time, waits for collectives that no "
        f"work covers for {exposed:.0%}, and does neither for {idle:.0%}"
    )
    if exposed >= BOUND:
        return f"Bound by communication: {figures}."
    if compute >= BOUND:
        return f"Bound by compute: {figures}."
    if idle >= BOUND:
        return f"Bound by latency, of the launch and between instructions: {figures}."
    return f"Bound by no one thing: {figures}."


def bounds(executable: Executable) -> tuple[Bound, ...]:
    """The lower bound of one run of every collective, by placeholder."""
    program, parts = executable.program, parts_of_machine(executable)
    known: dict[object, Bound] = {}
    found = []
    for placeholder in program.placeholders:
        key = collective_key(program, placeholder), placeholder.dtype, placeholder.reduction
        if key not in known:
            groups = groups_of(program, placeholder)
            known[key] = bound_of(parts, job_of(program, placeholder), groups)
        found.append(known[key])
    return tuple(found)


@attrs.frozen
class Finding:
    """Something that costs time: at most how much, and what may be tried against it."""

    what: str
    gain_us: float
    advice: str


def findings(
    run: Run, performance: Performance, limits: Sequence[Bound], rates: Rates | None
) -> list[Finding]:
    """What could be gained, the largest first."""
    time_us = performance.trace.time_ps / 1e6
    found = [
        *_of_overlap(performance),
        *_of_bounds(run, limits),
        *_of_sharing(performance),
        *_of_latency(run, limits),
        *_of_conditions(run, time_us),
        *_of_balance(performance),
        *_of_products(rates, time_us),
    ]
    worth = [each for each in found if each.gain_us >= LEAST_SHARE * time_us and each.gain_us > 0]
    return sorted(worth, key=lambda each: -each.gain_us)


def _of_overlap(performance: Performance) -> Iterator[Finding]:
    reduces = performance.all_reduces
    if reduces is None:
        return
    together = reduces.together
    yield Finding(
        f"All-reduces hide {time_text(together.hidden_ps / 1e6)} of the "
        f"{time_text(together.most_ps / 1e6)} that independent compute could cover",
        (together.most_ps - together.hidden_ps) / 1e6,
        "compile with -O2, or let the framework start gradients' all-reduces earlier",
    )


def _of_bounds(run: Run, limits: Sequence[Bound]) -> Iterator[Finding]:
    """What is exposed now and would not be taken by collectives that reach their bounds."""
    above = 0.0
    for row in run.collectives:
        least = limits[row.id].time_ps / 1e6 * (row.runs or 0)
        above += min(row.exposed_us or 0.0, max(0.0, (row.time_us or 0.0) - least))
    tries = ["--placement", "--algorithm OP=NAME", "nccrt explain says what each would take"]
    if run.executable.policy is Policy.NEURON:
        tries.insert(0, "--policy best")
    yield Finding(
        "Collectives take longer than their lower bounds, where nothing covers them",
        above,
        ", ".join(tries),
    )


def _of_sharing(performance: Performance) -> Iterator[Finding]:
    parts = [part for parts in performance.use.parts.values() for part in parts]
    most = max(parts, key=lambda part: part.share, default=None)
    busiest = "" if most is None else f"; busiest is {most.name}, {share_text(most.share) or '0%'}"
    yield Finding(
        "Transfers on the critical path wait for others that use the same links, adapters, memory "
        f"or engines{busiest}",
        performance.path.slowed_ps / 1e6,
        "place groups so that their routes share fewer links (--placement, a JSON file), or give "
        "collectives that run side by side other algorithms",
    )


def _of_latency(run: Run, limits: Sequence[Bound]) -> Iterator[Finding]:
    small = [row for row in run.collectives if limits[row.id].decided_by == "latency" and row.runs]
    if len(small) < 2:
        return
    yield Finding(
        f"{sum(row.runs or 0 for row in small)} runs of collectives are too small for anything but "
        "their latency to count",
        sum(row.exposed_us or 0.0 for row in small),
        "join them: -O2 does so where the order allows (bucket), else the framework",
    )


def _of_conditions(run: Run, time_us: float) -> Iterator[Finding]:
    if run.healthy_us is not None:
        yield Finding(
            "Something is down or slow", time_us - run.healthy_us, "repair it, or place around it"
        )
    if run.free_us is not None:
        yield Finding(
            "One order of reduction is held",
            time_us - run.free_us,
            "leave out --deterministic where equal bits on every place are not needed",
        )


def _of_balance(performance: Performance) -> Iterator[Finding]:
    both = performance.by_rank
    if len(both.compute_ps) < 2:
        return
    mean, most = float(both.compute_ps.mean()), int(both.compute_ps.max())
    rank = int(both.compute_ps.argmax())
    yield Finding(
        f"Rank {rank} computes for {time_text(most / 1e6)}, the mean is {time_text(mean / 1e6)}",
        (most - mean) / 1e6,
        "divide the work evenly over the ranks",
    )


def _of_products(rates: Rates | None, time_us: float) -> Iterator[Finding]:
    if rates is None or not rates.flops:
        return
    hardware = rates.hardware_flops_utilisation or 0.0
    repeated = rates.repeated_flops / rates.flops
    if repeated:
        yield Finding(
            f"{repeated:.1%} of the flops of products are computed again",
            repeated * hardware * time_us,
            "keep more activations (jax.checkpoint policies), if memory allows",
        )
