"""`nccrt bench`: nccom-test's rows of sizes, predicted."""

import functools
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import click

from ncc_runtime.command_line import Reply, examples, replying
from ncc_runtime.commands import completion
from ncc_runtime.commands.options import (
    PlaceWords,
    check_outputs_of,
    filled,
    json_word,
    place_of,
    place_options,
    plot_option,
    size,
)
from ncc_runtime.errors import LoweringError, Notice
from ncc_runtime.options import PLAN_PREFIX, plans_apart

if TYPE_CHECKING:
    from ncc_runtime.calibration.measured_files import MeasuredPoint
    from ncc_runtime.placement import Placement
    from ncc_runtime.report.bench import Case, Operator
    from ncc_runtime.report.bench_rows import BenchRow, Comparison, Layout
    from ncc_runtime.runtime import Model

DEFAULT_BYTES = 32 << 20
"""The size of a bench without sizes; assumed: the default of nccl-tests."""

RUNS_FOR_STATISTICS = 20
"""Runs of `--stats` without -n; assumed: the default of nccl-tests."""


algorithm_option = click.option(
    "--algorithm",
    "names",
    metavar="NAME[,NAME]...",
    multiple=True,
    help="Force an algorithm for OP, or plan:FILE; of several each has its rows.",
)


@click.command(
    epilog=examples(
        "nccrt bench all_reduce -r 64 -b 1MB -e 64MB --topology trn2",
        "nccrt bench all_gather -r 8 -b 4KB -d bf16 --check --show-algorithm",
    )
)
@click.argument("op", metavar="OP", shell_complete=completion.operator)
@click.option("-r", "--nworkers", "ranks", type=click.IntRange(2), required=True, help="Ranks.")
@click.option("-N", "--nnodes", type=click.IntRange(1), help="Instances, as --nodes.")
@click.option(
    "-b", "--minbytes", "least", metavar="MIN", callback=size, help="Smallest size [32MB]."
)
@click.option("-e", "--maxbytes", "most", metavar="MAX", callback=size, help="Largest size [MIN].")
@click.option("-f", "--stepfactor", "factor", type=click.IntRange(2), help="Sizes by factors [2].")
@click.option("-i", "--stepbytes", "step", metavar="STEP", callback=size, help="Sizes by steps.")
@click.option(
    *("-d", "--datatype", "dtype"),
    default="fp32",
    show_default=True,
    shell_complete=completion.datatype,
    help="Type of the elements.",
)
@click.option(
    "-n",
    "--iters",
    "iterations",
    type=click.IntRange(1, 1000),
    help="Runs of --check [1] and of --stats [20].",
)
@click.option(
    "-w",
    "--warmup-iters",
    type=click.IntRange(0),
    expose_value=False,
    help="Taken and not needed: the first run is not slower.",
)
@click.option(
    "--check",
    "mode",
    type=click.Choice(["random", "all_ones"]),
    is_flag=False,
    flag_value="random",
    help="Compute values too, and compare them; --check=all_ones gives ones.",
)
@click.option("--stats", is_flag=True, help="Columns of the times of -n runs, one after another.")
@click.option(
    "--custom-replica-groups",
    "groups",
    metavar="JSON|F",
    callback=json_word,
    help="[[0,1],[2,3]]: groups in place of one of all ranks.",
)
@click.option(
    "--custom-src-target-pairs",
    "pairs",
    metavar="JSON|F",
    callback=json_word,
    help="[[0,1],[1,0]]: sources and targets of permute or sendrecv.",
)
@functools.partial(place_options, algorithm=algorithm_option)
@click.option("--show-algorithm", is_flag=True, help="Add the column algorithm.")
@click.option("--show-input-output-size", is_flag=True, help="Add what a rank gives and gets.")
@click.option(
    "--compare",
    "measured_file",
    type=click.Path(),
    metavar="F",
    help="Add what was measured: a report of nccom-test (JSON, CSV or its table) or rows of ours.",
)
@plot_option("Draw time and bus bandwidth over size.")
@click.option(
    *("--report-to-json-file", "report_file"),
    type=click.Path(),
    metavar="F",
    help="Write the rows to this file too, with nccom-test's keys.",
)
@click.option(
    *("--report-to-csv-file", "csv_file"),
    type=click.Path(),
    metavar="F",
    help="Write the rows to this file too, as CSV.",
)
@replying
def bench(reply: Reply, op: str, place: PlaceWords, **words: Any) -> None:
    """Predict time and bandwidth of collective OP over all ranks, size by size.

    OP is all_reduce, all_gather, reduce_scatter, alltoall, alltoallv, all_gatherv, permute or
    sendrecv; those that end in v have variable sizes, and here full slots.

    \b
    nccrt bench all_reduce -r 64 -b 4KB -e 256MB -f 4 --algorithm ring,mesh,rdh --plot bench.svg
    """
    from ncc_runtime.neff.whole_file import check_target
    from ncc_runtime.placement import place_on
    from ncc_runtime.report import bench_rows
    from ncc_runtime.report.run import choice_text

    if words["nnodes"] is not None:
        if place.on is not None or "nodes" in place.words:
            raise click.UsageError("-N and --nodes or --on say the same thing")
        place = attrs.evolve(place, words={**place.words, "nodes": words["nnodes"]})
    written = {
        "--report-to-json-file": words["report_file"],
        "--report-to-csv-file": words["csv_file"],
        "--plot": words["plot"],
    }
    if any(written.values()):
        read = [words["measured_file"]] if words["measured_file"] else []
        check_outputs_of(written, place, read)
        for file in filter(None, written.values()):
            check_target(file)
    if words["plot"]:
        from ncc_runtime.report.plot_file import check_can_plot

        check_can_plot()
    operator = _operator(op)
    names, places = _places(operator, place, words["names"])
    placement = place_on(place_of(places[0]), words["ranks"])
    first = _case(operator, words)
    points, others = _points(words["measured_file"], first, placement)
    cases = _cases(first, words, points)
    layout = bench_rows.Layout(
        algorithm=words["show_algorithm"] or len(names) > 1,
        sides=words["show_input_output_size"],
        runs=words["stats"],
        compared=words["measured_file"] is not None,
        healthy=bool(placement.topology.active_faults),
        free=place.deterministic,
    )
    heading = f"{_heading(first, placement)}; {choice_text(place.policy, place.deterministic)}"
    rows: list[BenchRow] = []
    stop: LoweringError | None = None
    try:
        for row, model in _rows(reply, cases, names, places, words):
            if points:
                from ncc_runtime.calibration.measured_files import median_us

                measured = median_us(points, row.size_bytes)
                if measured is None:  # files may have sizes as they were asked for
                    measured = median_us(points, row.case.size_bytes)
                row = attrs.evolve(row, measured_us=measured)
            if not rows:
                reply.say(heading)
                reply.say(layout.head())
            reply.say(layout.line(row))
            reply.warn(model.warnings)
            rows.append(row)
    except LoweringError as error:  # the rows before it are as good as they were
        if not rows:
            raise
        stop = error
    where = {
        **placement.as_json(),
        "policy": place.policy,
        "deterministic": place.deterministic,
    }
    used = {row.size_bytes for row in rows} | {row.case.size_bytes for row in rows}
    left_out = others + sum(point.size_bytes not in used for point in points)
    comparisons = bench_rows.comparisons(rows, words["measured_file"] or "", left_out)
    closing = bench_rows.closing_lines(rows)
    closing += [each.as_text() for each in comparisons]
    if comparisons:
        where["comparisons"] = [each.as_json() for each in comparisons]
    elif words["measured_file"]:
        known = ", ".join(f"{number} B" for number in sorted({p.size_bytes for p in points})[:8])
        reply.warn(
            [
                Notice(
                    "none-measured",
                    f"{words['measured_file']} has no row of these sizes; it has {known}",
                    "docs/collectives.md#bench",
                )
            ]
        )
    _write_files(words, rows, where, layout, heading, comparisons)
    reply.give(
        fields=lambda: bench_rows.as_json(rows, where),
        text=lambda: "\n".join(closing),
    )
    if stop is not None:
        raise stop


def _write_files(
    words: Mapping[str, Any],
    rows: Sequence["BenchRow"],
    where: Mapping[str, Any],
    layout: "Layout",
    heading: str,
    compared: Sequence["Comparison"],
) -> None:
    """The report, the table and the picture that were asked for."""
    from ncc_runtime.neff.whole_file import write_whole
    from ncc_runtime.report import bench_rows

    if words["report_file"]:
        text = json.dumps(bench_rows.as_report(rows, where, layout))
        write_whole(words["report_file"], f"{text}\n".encode())
    if words["csv_file"]:
        write_whole(words["csv_file"], bench_rows.as_csv(rows, layout).encode())
    if words["plot"]:
        from ncc_runtime.report.bench_plot import plotted

        write_whole(words["plot"], plotted(rows, heading, words["plot"], compared))


def _operator(op: str) -> "Operator":
    from ncc_runtime.report.bench import OPERATORS

    if op not in OPERATORS:
        raise click.UsageError(f"no operator {op!r}; there are {', '.join(OPERATORS)}")
    return OPERATORS[op]


def _places(
    operator: "Operator", place: PlaceWords, given: Sequence[str]
) -> tuple[list[str], list[PlaceWords]]:
    """The algorithms to go through, "" for the chosen one, and placement options for each."""
    from ncc_runtime.report.bench import OPERATORS

    names: list[str] = []
    forced: dict[str, str] = {}  # of other operators, which change nothing here
    for word in (*given, *(f"{head}={name}" for head, name in place.algorithms.items())):
        head, equals, rest = word.partition("=")
        if not equals or word.startswith(PLAN_PREFIX):
            names += word.split(",")
        elif head == operator.op.value or OPERATORS.get(head) is operator:
            names += rest.split(",")
        else:
            forced[head] = rest
    for name in names:
        if not name:
            raise click.UsageError(f"{','.join(given)!r} has no algorithm between its commas")
        if names.count(name) > 1:
            raise click.UsageError(f"algorithm {name} is given twice")
    names = names or [""]
    places = []
    for name in names:
        chosen = {**forced, operator.op.value: name} if name else forced
        algorithms, plans = plans_apart(chosen, place.plans)
        places.append(attrs.evolve(place, algorithms=algorithms, plans=plans))
        place_of(places[-1])  # unknown names are wrong usage, before any row
    return names, places


def _case(operator: "Operator", words: Mapping[str, Any]) -> "Case":
    """The case of the least size."""
    from ncc_runtime.neff.placeholder import CollectiveOp
    from ncc_runtime.report.bench import DTYPES, Case, checked_groups, checked_pairs

    if words["dtype"] not in DTYPES:
        raise click.UsageError(f"no type {words['dtype']!r}; there are {', '.join(DTYPES)}")
    is_permute = operator.op is CollectiveOp.PERMUTE
    if words["groups"] is not None and is_permute:
        raise click.UsageError(f"{operator.name} has pairs, --custom-src-target-pairs, no groups")
    if words["pairs"] is not None and not is_permute:
        raise click.UsageError(f"{operator.name} has groups, --custom-replica-groups, no pairs")
    ranks, runs = words["ranks"], words["iterations"]
    groups, pairs = words["groups"], words["pairs"]
    return Case(
        operator,
        ranks,
        DTYPES[words["dtype"]],
        DEFAULT_BYTES if words["least"] is None else words["least"],
        (RUNS_FOR_STATISTICS if words["stats"] else 1) if runs is None else runs,
        () if groups is None else checked_groups(groups, ranks),
        () if pairs is None else checked_pairs(pairs, ranks),
    )


def _points(
    path: str | None, case: "Case", placement: "Placement"
) -> "tuple[list[MeasuredPoint], int]":
    """What was measured of the same operator, type, ranks and machine, and how much else was."""
    if path is None:
        return [], 0
    from ncc_runtime.calibration.measured_files import read_points
    from ncc_runtime.errors import InputError

    points = read_points(path)
    own = [point for point in points if point.is_of(case, placement.topology)]
    if not own:
        one = points[0]
        said = [f"{key} {value}" for key, value in attrs.asdict(one).items() if value is not None]
        raise InputError(
            f"{path}: no row is of this operator, type, number of ranks and machine; its first is "
            f"of {', '.join(said)}"
        )
    return own, len(points) - len(own)


_MOST_SIZES = 10_000


def _cases(
    first: "Case", words: Mapping[str, Any], points: "Sequence[MeasuredPoint]"
) -> "list[Case]":
    """A case of each size: those of the options, or those that were measured."""
    from ncc_runtime.report.bench import sizes

    if words["factor"] is not None and words["step"] is not None:
        raise click.UsageError("-f and -i exclude each other")
    if points and words["least"] is None and words["most"] is None:
        chosen = sorted({point.size_bytes for point in points})
    else:
        least, most = first.size_bytes, words["most"]
        most = least if most is None else most
        if not 0 < least <= most:
            raise click.UsageError(f"sizes go from {least} to {most} bytes, which are none")
        if words["step"] == 0:
            raise click.UsageError("-i 0 leads nowhere")
        every = sizes(least, most, words["factor"], words["step"])
        chosen = list(itertools.islice(every, _MOST_SIZES + 1))
        if len(chosen) > _MOST_SIZES:
            raise click.UsageError(f"sizes from {least} to {most} are more than {_MOST_SIZES:,}")
    return [attrs.evolve(first, size_bytes=size_bytes) for size_bytes in chosen]


def _rows(
    reply: Reply,
    cases: "Sequence[Case]",
    names: Sequence[str],
    places: Sequence[PlaceWords],
    words: Mapping[str, Any],
) -> "Iterator[tuple[BenchRow, Model]]":
    """Rows as they are computed. Of several algorithms one that cannot run has none.

    LoweringError if no algorithm can run any case.
    """
    refused: dict[str, list[LoweringError]] = {}
    is_any = False
    for case in cases:
        for name, place in zip(names, places, strict=True):
            try:
                row, model = _predicted(case, place, words["mode"], is_spread=words["stats"])
                if name.startswith(PLAN_PREFIX):  # a plan may be called like an algorithm
                    file = Path(name.removeprefix(PLAN_PREFIX)).name
                    row = attrs.evolve(row, algorithm=f"{PLAN_PREFIX}{file}")
                yield attrs.evolve(row, forced=name), model
                is_any = True
            except LoweringError as error:
                if len(names) == 1:
                    raise
                refused.setdefault(name, []).append(error)
    if not is_any:
        raise next(iter(refused.values()))[0]
    for errors in refused.values():
        many = f" ({len(errors)} of {len(cases)} sizes)" if len(cases) > 1 else ""
        reply.warn([Notice("no-rows", f"{errors[0]}{many}", "docs/collectives.md#bench")])


def _predicted(
    case: "Case", place: PlaceWords, mode: str | None, *, is_spread: bool
) -> "tuple[BenchRow, Model]":
    """The price of the case where it is placed; a run, with values, only to check them."""
    import numpy as np

    from ncc_runtime.execution.clock.clock import collective_ps
    from ncc_runtime.report import bench as cases
    from ncc_runtime.report import bench_rows

    # without a check one run is enough, as the clock times each of them alike
    is_repeated = mode is not None or is_spread
    timed = case if is_repeated else attrs.evolve(case, iterations=1)
    model = filled(cases.program_of_case(timed), place, place_of(place), times_only=mode is None)
    row = attrs.evolve(bench_rows.row_of(case, model.executable), checked=mode)
    if (healthy := model.healthy(times_only=mode is None)) is not None:
        row = attrs.evolve(row, healthy_us=collective_ps(healthy) / 1e6)
    if (free := model.free(times_only=mode is None)) is not None:
        row = attrs.evolve(row, free_us=collective_ps(free) / 1e6)
    if mode is not None:
        given = cases.operands(case, mode, np.random.default_rng(0))
        run = model.run([given], clock=is_spread)
        cases.check(case, given, run.outputs[0])
    elif is_spread:
        run = model.run(values=False, verify=False)
    if is_spread:
        times = tuple(each.time_us for each in run.collectives if each.time_us is not None)
        row = attrs.evolve(row, runs_us=times)
    return row, model


def _heading(case: "Case", placement: "Placement") -> str:
    groups = f" in {len(case.groups)} groups of {case.members}" if len(case.groups) > 1 else ""
    return f"{case.operator.name}: {placement.ranks} ranks{groups} on {placement.where}"
