"""The summary of a run, for people and as JSON."""

import itertools
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ncc_runtime.execution.tape import LITERAL, NORMAL_FORM
from ncc_runtime.group_rules.verdict import Verdict, warnings
from ncc_runtime.lowering.executable import IDLE, CcQueue, EngineQueue, Executable
from ncc_runtime.neff.program import TensorId
from ncc_runtime.neff.stages import Stage, ranks_text
from ncc_runtime.options import RunOptions
from ncc_runtime.report import collective_table, collectives, html, performance
from ncc_runtime.report.collective_table import RowOrder
from ncc_runtime.report.collectives import CollectiveRow
from ncc_runtime.report.performance import Performance
from ncc_runtime.report.rates import PerStep, rates_json, rates_lines, rates_of
from ncc_runtime.report.run import Run, facts, heading, sentence, verified
from ncc_runtime.report.text_table import text_table

WIDTH = 120


def as_json(
    executable: Executable,
    run: Run,
    options: RunOptions,
    host_s: float,
    verdicts: Sequence[Verdict] = (),
    per_step: str | int | PerStep | None = None,
) -> dict[str, Any]:
    """The object that `nccrt run --json` prints; times in microseconds, sizes in bytes.

    `per_step` is what all ranks together do in one run: `8192 tokens`.
    """
    rates = None if run.trace is None else rates_of(run.trace, per_step)
    program, has_stages = executable.program, len(executable.stages) > 1
    joined = collectives.by_id(collectives.joined(executable, run.collectives))
    return {
        **facts(executable),
        "time_us": run.time_us,
        "healthy_us": run.healthy_us,
        "free_us": run.free_us,
        "fault_report": None if run.faults is None else run.faults.as_json(),
        "notes": list(run.notes),
        "host_s": round(host_s, 6),
        "verified": verified(run.proofs),
        "checked": options.checked,
        "blas_kernel": blas_kernel(),
        "interpreters": {
            "normal_form": sum(how == NORMAL_FORM for how in run.interpreters.values()),
            "literal": sum(how == LITERAL for how in run.interpreters.values()),
        },
        "host_memory": None if run.host_memory is None else run.host_memory.as_json(),
        "instructions": instruction_counts(executable),
        "collectives": [_collective(row, joined.get(row.id)) for row in run.collectives],
        "timeline": None if run.trace is None else performance.as_json(Performance(run.trace)),
        "rates": None if rates is None else rates_json(rates),
        "verdicts": [_verdict(verdict) for verdict in verdicts],
        "outputs": {
            f"out{number}": {
                "shape": list(program.tensors[tensor].shape),
                "dtype": program.tensors[tensor].dtype.value,
                "name": program.result(number).name,
                "whole_shape": program.whole_shape(program.result(number), tensor),
                **(
                    {"program": stage.program.name, "ranks": stage.ranks.tolist()}
                    if has_stages
                    else {}
                ),
            }
            for number, (stage, tensor) in enumerate(_outputs(executable))
        },
    }


def _outputs(executable: Executable) -> list[tuple[Stage, TensorId]]:
    return [(stage, tensor) for stage in executable.stages for tensor in stage.program.outputs]


def _collective(row: CollectiveRow, one_by_one_us: float | None) -> dict[str, Any]:
    return {
        "id": row.id,
        "name": row.name,
        "op": row.op,
        "line": row.line,
        "op_name": row.op_name,
        "algorithm": row.algorithm,
        "groups": row.groups,
        "group_size": row.group_size,
        "first_group": row.first_group,
        "pairs": row.pairs,
        "operands": row.operands,
        "bytes": row.bytes,
        "runs": row.runs,
        "start_us": row.start_us,
        "time_us": row.time_us,
        "one_by_one_us": one_by_one_us,
        "exposed_us": row.exposed_us,
        "bytes_by_transport": row.bytes_by_transport,
        "local_bytes": row.local_bytes,
        "sent_bytes_by_rank": list(row.sent_by_rank),
    }


def _verdict(verdict: Verdict) -> dict[str, Any]:
    """`ranks` is the first group that is judged so, `nearest` a list of [instance, core]."""
    return {
        "id": verdict.placeholder,
        "ranks": list(verdict.ranks),
        "rule": verdict.rule,
        "allowed": verdict.allowed,
        "fact": verdict.fact,
        "source": verdict.source,
        "nearest": [list(place) for place in verdict.nearest],
    }


def blas_kernel() -> str:
    """The BLAS library and kernel that computed the dots; results are bit-exact for one kernel."""
    import threadpoolctl

    names = {
        f"{info['internal_api']} {info.get('version')} {info.get('architecture')}"
        for info in threadpoolctl.threadpool_info()
        if info.get("user_api") == "blas"
    }
    return ", ".join(sorted(names)) or "none"


def as_text(
    executable: Executable,
    run: Run,
    options: RunOptions,
    host_s: float,
    order: RowOrder = RowOrder.PROGRAM,
    *,
    each: bool = False,
    per_step: str | int | PerStep | None = None,
) -> str:
    """The summary that `nccrt run` prints; with `each` every collective has a row of its own.

    `per_step` is what all ranks together do in one run: `8192 tokens`.
    """
    counts = instruction_counts(executable)
    lines = [
        heading(executable),
        f"{counts['engine']} engine instructions, {counts['cc']} CC-core instructions, "
        f"{counts['descriptor_runs']} runs of DMA descriptors, over all ranks",
    ]
    if run.collectives:
        lines += collective_table.table_lines(run.collectives, order, each=each)
    for note in run.notes:
        lines += textwrap.wrap(f"note: {note}", WIDTH, break_on_hyphens=False)
        lines += collectives.lines(collectives.joined(executable, run.collectives))
    if run.ranked_outputs:
        lines += _output_lines(executable, run)
    if run.trace is not None:
        spent = Performance(run.trace)
        lines += _time_lines(run)
        if rates := rates_of(run.trace, per_step):
            lines += rates_lines(rates)
        lines += performance.lines(spent)
        lines += performance.path_lines(spent.path, WIDTH)
    if run.faults is not None:
        lines += run.faults.lines()
    mode = "checked mode: every read was of written memory; " if options.checked else ""
    lines += [sentence(run.proofs), f"{mode}host time {host_s:.3f} s"]
    return "\n".join(line.rstrip() for line in "\n".join(lines).splitlines())


def _time_lines(run: Run) -> Iterator[str]:
    yield f"predicted time {run.time_us:.3f} us"
    if run.healthy_us is not None:
        yield f"healthy: {run.healthy_us:.3f} us, with nothing down or slow"
    if run.free_us is not None and run.time_us is not None:
        more = run.time_us - run.free_us
        share = f", {100 * more / run.free_us:+.1f} %" if run.free_us else ""
        yield f"one order of reduction: {more:+.3f} us{share}, beside {run.free_us:.3f} us in any"


def as_html(run: Run) -> str:
    """The tables of a run for a notebook."""
    lines = [heading(run.executable), *(f"note: {note}" for note in run.notes)]
    lines += [f"warning: {notice}" for notice in warnings(run.verdicts)]
    if run.trace is not None:
        lines += _time_lines(run)
        if rates := rates_of(run.trace):
            lines += rates_lines(rates)
        lines += performance.lines(Performance(run.trace))
    headings, *cells = collective_table.table_cells(run.collectives) if run.collectives else [()]
    program = run.executable.program
    called = ("in the model",) if any(result.name for result in program.results) else ()
    begins = "rank 0 begins" if len(run.executable.stages) == 1 else "the first rank begins"
    known = _outputs(run.executable) if run.ranked_outputs else ()  # a run without values has none
    outputs = itertools.islice(zip(known, run.ranked_outputs, strict=True), MOST_OUTPUTS)
    return html.block(
        html.line("\n".join([*lines, sentence(run.proofs)])),
        html.table("collectives, times in us", headings, cells),
        html.table(
            "outputs",
            ("name", *called, "type on a rank", begins),
            (
                (
                    f"out{number}",
                    *((program.result(number).name,) if called else ()),
                    stage.program.tensors[tensor].type_text,
                    _first_values(array.of(0)),
                )
                for number, ((stage, tensor), array) in enumerate(outputs)
            ),
        ),
    )


MOST_OUTPUTS = 1000
"""Outputs that the table shows; --json and --outputs have all."""


def _output_lines(executable: Executable, run: Run) -> Iterator[str]:
    has_stages = len(executable.stages) > 1
    begins = "the first of them begins" if has_stages else "rank 0 begins"
    program = executable.program
    is_named = any(result.name for result in program.results)
    called = ("in the model",) if is_named else ()
    headings = ("name", *called, "type on a rank", *(("ranks",) if has_stages else ()), begins)
    outputs = zip(_outputs(executable), run.ranked_outputs, strict=True)
    rows = [
        (
            f"out{number}",
            *((repr(program.result(number).name)[1:-1],) if is_named else ()),
            stage.program.tensors[tensor].type_text,
            *((ranks_text(stage.ranks.tolist()),) if has_stages else ()),
            _first_values(array.of(0)),
        )
        for number, ((stage, tensor), array) in enumerate(itertools.islice(outputs, MOST_OUTPUTS))
    ]
    yield "outputs"
    yield from text_table(headings, rows, range(len(headings)))
    if len(run.ranked_outputs) > MOST_OUTPUTS:
        yield f"… and {len(run.ranked_outputs) - MOST_OUTPUTS} more outputs"


SHOWN_VALUES = 4
"""Of an output, in the table."""


def _first_values(array: np.ndarray) -> str:
    flat = array.reshape(-1)[:SHOWN_VALUES]
    words = [f"{value:.6g}" if array.dtype.kind == "f" else str(value) for value in flat]
    return " ".join(words) + (" …" if array.size > len(flat) else "")


def instruction_counts(executable: Executable) -> dict[str, int]:
    """Rows that some rank performs, per kind of queue, over all ranks."""
    counts = {"engine": 0, "cc": 0, "descriptor_runs": 0}
    for queue in executable.queues:
        if isinstance(queue, EngineQueue):
            runners = executable.representatives if queue.ranks is None else len(queue.ranks)
            counts["engine"] += len(queue.table) * runners
        elif isinstance(queue, CcQueue):
            active = queue.sync.wait_sem != IDLE
            for post in queue.sync.posts:
                active = active | (post.rank != IDLE)
            counts["cc"] += int(active.sum())
        else:
            counts["descriptor_runs"] += int((queue.peer != IDLE).sum())
    instances = executable.ranks // executable.representatives  # each as many
    return {kind: count * instances for kind, count in counts.items()}
