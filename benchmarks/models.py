"""Whole models beside what is published of them: time per token, to the first token, and training.

    python benchmarks/models.py                       the table
    python benchmarks/models.py --rows 13b --where    some rows, and where their time goes
    python benchmarks/models.py --docs                docs/fidelity.md and its picture, written anew

The rows are benchmarks/data/models.json, with their sources. Each is predicted from nothing but a
program (model_programs.py) and a topology: compiled by `from_jax`, placed, and timed by the clock;
what the host does between two tokens is a constant here (HOST_MS), and what the compiler of the
published release did not join is `nccc --sdk` (`--no-sdk`: as -O2 has it).

A model is made of equal layers, so programs of two and of three layers are timed, and the time of
all layers follows from the line through both: what a layer adds, on top of embedding, head, launch
and collectives of the whole step. `--check` times one layer more and says how far it is off.

A training step is as many microbatches as the published batch has on each data-parallel rank, one
after the other, and one update: each is a program of its own, as the framework runs it. Updates run
on as many instances as the published run had, where one stands for all that are alike.
"""

import argparse
import functools
import hashlib
import itertools
import json
import re
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import numpy as np

import ncc_compiler
import ncc_runtime
from benchmarks import kernels
from benchmarks import model_programs as programs
from benchmarks.model_programs import Bert, Llama, Program
from ncc_compiler.options import CompileOptions
from ncc_runtime.calibration.measured_files import read_measured
from ncc_runtime.calibration.predict import Predictor
from ncc_runtime.calibration.residuals import calibrated
from ncc_runtime.execution.trace import Trace, works
from ncc_runtime.lowering.executable import EngineQueue
from ncc_runtime.report.overlap import overlap
from ncc_runtime.report.plot_file import figure_axis, picture
from ncc_runtime.report.row_texts import program_of

ROOT = Path(__file__).parents[1]
PUBLISHED = ROOT / "benchmarks/data/models.json"
DOCUMENT = ROOT / "docs/fidelity.md"
PICTURE = ROOT / "docs/images/models.svg"

LLAMA_3_8B = Llama(32, 4096, 32, 8, 14336, 128256, 500000.0)
MODELS = {
    "Llama-2-7b": Llama(32, 4096, 32, 32, 11008, 32000),
    "Llama-2-13b": Llama(40, 5120, 40, 40, 13824, 32000),
    "Llama-2-70b": Llama(80, 8192, 64, 8, 28672, 32000),
    "Llama-3-8B": LLAMA_3_8B,
    "Llama-3.1-8B": LLAMA_3_8B,
    "Llama-3.1-8B pre-training": LLAMA_3_8B,
    "Llama-3.1-70B": Llama(80, 8192, 64, 8, 28672, 128256, 500000.0),
    "HuggingFace BERT-Large Ph1 pre-training": Bert(24, 1024, 16, 4096, 30522),
}
"""Sizes by the names of the rows."""

HOST_MS = 0.12
"""Of each sequence and token: logits are copied to the host, which chooses a word (assumed of
the library of the rows, SDK 2.18). Fitted to the rows a token, whose rest is 0.22 ms for one
sequence, 0.62 for four and 1.05 for eight."""

TOKEN, FIRST, TRAINING = "per token", "first token", "training"
KINDS = (TOKEN, FIRST, TRAINING)

RANKS = {"trn1.32xlarge": 32, "inf2.48xlarge": 24, "trn2.48xlarge": 64}
"""Of an instance, which data-parallel training uses whole."""


@attrs.frozen
class Phase:
    """A program that a step runs some times, on some instances."""

    name: str
    runs: int
    program: Callable[[int], Program]  # of so many layers
    nodes: int = 1
    sdk: str | None = None  # whose compiler is meant


@attrs.frozen
class Row:
    """A published time of a whole step, and the programs that it is made of."""

    kind: str
    name: str
    instance: str
    layers: int
    published_ms: float
    work: str  # of a step, as `nccrt run --per-step` has it
    phases: tuple[Phase, ...]
    source: str
    host_ms: float = 0.0  # beside the programs


def rows_of(path: Path = PUBLISHED) -> list[Row]:
    """The rows of a file."""
    document = json.loads(path.read_text())
    decoding = [row for entry in document.get("decode", ()) for row in _serving_rows(entry)]
    return [*decoding, *map(_training_row, document.get("training", ()))]


def _serving_rows(entry: Mapping[str, Any]) -> Iterator[Row]:
    sizes = MODELS[entry["model"]]
    tp, batch, cache, tokens = (entry[key] for key in ("tp", "batch", "seq", "input_tokens"))
    where = f"{entry['model']} {entry['instance'].partition('.')[0]} tp{tp} b{batch}"
    facts = {
        "instance": entry["instance"],
        "layers": sizes.layers,
        "source": entry["source"],
        "host_ms": HOST_MS * batch,
    }
    sdk = entry["sdk"].rpartition(".")[0]
    step = Phase(
        "step", 1, lambda layers: programs.decoding(sizes, layers, tp, batch, cache), sdk=sdk
    )
    name = f"{where} cache {cache}"
    yield Row(TOKEN, name, published_ms=entry["tpot_ms_p50"], **facts, **_of(batch, step))
    first = Phase(
        "prefill",
        1,
        lambda layers: programs.prefill(sizes, layers, tp, batch, cache, tokens),
        sdk=sdk,
    )
    if entry.get("ttft_ms_p50"):
        name = f"{where} cache {cache} input {tokens}"
        published_ms = entry["ttft_ms_p50"]
        yield Row(FIRST, name, published_ms=published_ms, **facts, **_of(batch * tokens, first))


def _of(tokens: int, *phases: Phase) -> dict[str, Any]:
    return {"work": f"{tokens} tokens", "phases": phases}


def _training_row(entry: Mapping[str, Any]) -> Row:
    sizes = MODELS[entry["model"]]
    phases = _llama_phases if isinstance(sizes, Llama) else _bert_phases
    batch, nodes = entry["global_batch"], entry["nodes"]
    short = entry["model"].removeprefix("HuggingFace ").removesuffix(" pre-training")
    dtype = "fp32" if entry["dtype"] == "FP32" else "bf16"
    return Row(
        TRAINING,
        f"{short} {entry['instance'].partition('.')[0]} x{nodes} {dtype} {entry['optimizer']}",
        instance=entry["instance"],
        layers=sizes.layers,
        published_ms=1000 * batch / entry["seq_per_s"],
        work=f"{batch} sequences",
        phases=phases(sizes, entry, nodes * RANKS[entry["instance"]]),
        source=entry["source"],
    )


def _llama_phases(sizes: Llama, entry: Mapping[str, Any], ranks: int) -> tuple[Phase, ...]:
    match = re.match(r"TP=(\d+) DP=(\d+) PP=1", entry["topology"])
    assert match, entry["topology"]
    tp, dp = map(int, match.groups())
    assert tp * dp == ranks
    micro, tokens, nodes = entry["microbatch"], entry["seq"], entry["nodes"]
    runs = entry["global_batch"] // (dp * micro)
    return (
        Phase(
            "microbatch",
            runs,
            lambda layers: programs.llama_microbatch(sizes, layers, tp, micro, tokens),
        ),
        Phase(
            "update",
            1,
            lambda layers: programs.zero1_update(sizes, layers, dp, tp, entry["optimizer"]),
            nodes,
        ),
    )


def _bert_phases(sizes: Bert, entry: Mapping[str, Any], ranks: int) -> tuple[Phase, ...]:
    micro, tokens = entry["microbatch"], entry["seq"]
    dtype = programs.F32 if entry["dtype"] == "FP32" else programs.BF16
    rule = entry["optimizer"]
    return (
        Phase(
            "microbatch",
            entry["global_batch"] // (ranks * micro),
            lambda layers: programs.bert_microbatch(sizes, layers, micro, tokens, dtype),
        ),
        Phase(
            "update",
            1,
            lambda layers: programs.replicated_update(sizes, layers, ranks, rule),
            entry["nodes"],
        ),
    )


# --- predictions ---------------------------------------------------------------------------------


@attrs.frozen
class Timed:
    """A program of some layers, as the clock has it."""

    time_ms: float
    spent_ms: Mapping[str, float]  # on what, of one rank; engines overlap


@attrs.frozen
class Predicted:
    """A row and what the line through its programs says."""

    row: Row
    time_ms: float
    spent_ms: Mapping[str, float]
    off_the_line: float | None  # of one layer more, relative
    host_s: float

    @property
    def ratio(self) -> float:
        """Predicted over published."""
        return self.time_ms / self.row.published_ms

    @property
    def percent(self) -> float:
        """The error."""
        return 100 * (self.ratio - 1)


@attrs.frozen
class Timer:
    """How programs are compiled and timed."""

    options: CompileOptions = attrs.field(factory=lambda: CompileOptions(level=2))
    cache: Path | None = None
    uses_sdk: bool = True  # whether prefills are joined as the published release did

    def timed(self, row: Row, phase: Phase, layers: int) -> Timed:
        """The time of one run, and what it is spent on."""
        model = ncc_runtime.load(
            self._compiled(row, phase, layers),
            row.instance,
            nodes=phase.nodes,
            times_only=True,
            ignore_memory=True,
        )
        run = model.run(values=False, verify=False)
        assert run.trace is not None
        assert run.time_us is not None
        return Timed(run.time_us / 1e3, spent_ms(run.trace))

    def _compiled(self, row: Row, phase: Phase, layers: int) -> Any:
        if self.cache is None:
            return self.made(phase, layers)
        options = f"{self.options} {phase.sdk}"
        name = f"{row.name} {phase.name} {layers} {options} {sources_digest()}"
        path = self.cache / f"{hashlib.sha256(name.encode()).hexdigest()[:24]}.neff"
        if not path.exists():
            self.cache.mkdir(parents=True, exist_ok=True)
            path.write_bytes(self.made(phase, layers).data)
        return path

    def made(self, phase: Phase, layers: int) -> Any:
        """The compiled program of some layers."""
        program = phase.program(layers)
        options = attrs.evolve(self.options, sdk=phase.sdk) if self.uses_sdk else self.options
        return ncc_compiler.from_jax(
            program.function, *program.arguments, **program.options, options=options
        )


@functools.cache
def sources_digest() -> str:
    """Of all that a compiled program depends on besides its row."""
    digest = hashlib.sha256(PUBLISHED.read_bytes())
    for folder in ("ncc_compiler", "ncc_runtime/neff", "benchmarks"):
        for file in sorted((ROOT / folder).rglob("*.py")):
            digest.update(file.read_bytes())
    return digest.hexdigest()


def spent_ms(trace: Trace) -> dict[str, float]:
    """What the first rank's time is spent on, in milliseconds.

    Of each kind of instruction how long its engine works on it, though engines work side by side;
    of collectives what no engine covers (`exposed`), of all the time what neither does (`idle`).
    """
    executable, spent = trace.executable, defaultdict[str, float](float)
    first = np.arange(executable.representatives) == 0
    for number, events in trace.blocks(trace.queues_of(EngineQueue), first):
        queue = executable.queues[number]
        assert isinstance(queue, EngineQueue)
        events = events[works(queue)[trace.row[events]]]
        kinds = _kinds(program_of(executable, queue), queue)
        for row, start, end in zip(
            trace.row[events].tolist(),
            trace.start_ps[events].tolist(),
            trace.end_ps[events].tolist(),
            strict=True,
        ):
            spent[kinds[row]] += (end - start) / 1e9
    whole = overlap(trace)
    spent["exposed collectives"] = whole.exposed_ps / whole.ranks / 1e9
    busy = (whole.compute_ps + whole.exposed_ps) / whole.ranks / 1e9
    spent["idle"] = trace.time_ps / 1e9 - busy
    return dict(spent)


_MOVES = frozenset(
    (
        *("broadcast", "reshape", "transpose", "slice", "concatenate", "dynamic-slice", "iota"),
        *("dynamic-update-slice", "gather", "pad", "reverse", "copy", "scatter"),
    )
)


def _kinds(program: Any, queue: EngineQueue) -> list[str]:
    """Of each row of a queue what it is counted as."""
    table = queue.table
    kinds = []
    for name, attribute in zip(table.names(), table.attribute.tolist(), strict=True):
        if name == "fusion":
            fusion = program.fusions[program.attributes[attribute]["fusion"]]
            opcodes = [row.opcode for row in fusion.body]
            dots = opcodes.count("dot")
            kinds.append(f"fusion of {dots} dots" if dots else "fusion")
        elif name == "dot":
            kinds.append("dot")
        elif name in _MOVES:
            kinds.append(f"{queue.engine.value}: {name}")
        else:
            kinds.append(f"{queue.engine.value}: {'reduce' if name == 'reduce' else 'elementwise'}")
    return kinds


def predicted(row: Row, timer: Timer, layers: tuple[int, int], *, is_checked: bool) -> Predicted:
    """What the clock says of a row."""
    started = time.perf_counter()
    few, more = layers
    total_ms, spent, off = row.host_ms, defaultdict[str, float](float), 0.0
    if row.host_ms:
        spent["host"] = row.host_ms
    for phase in row.phases:
        low, high = (timer.timed(row, phase, count) for count in layers)
        at = line_through(few, more, row.layers)
        total_ms += phase.runs * at(low.time_ms, high.time_ms)
        for kind in {**low.spent_ms, **high.spent_ms}:
            ends = low.spent_ms.get(kind, 0.0), high.spent_ms.get(kind, 0.0)
            spent[kind] += phase.runs * at(*ends)
        if is_checked:
            one_more = timer.timed(row, phase, more + 1).time_ms
            line = line_through(few, more, more + 1)(low.time_ms, high.time_ms)
            off = max(off, abs(one_more / line - 1))
    seconds = time.perf_counter() - started
    return Predicted(row, total_ms, spent, off if is_checked else None, seconds)


def line_through(few: int, more: int, layers: int) -> Callable[[float, float], float]:
    """What values at two numbers of layers say of a third."""
    share = (layers - few) / (more - few)
    return lambda low, high: low + share * (high - low)


# --- what is printed -----------------------------------------------------------------------------


def table_lines(results: Sequence[Predicted]) -> Iterator[str]:
    """A line for each row, then medians and worst of each kind."""
    width = max(len(result.row.name) for result in results)
    for kind in KINDS:
        of_kind = [result for result in results if result.row.kind == kind]
        if not of_kind:
            continue
        yield f"{kind:<{width}}  published ms  predicted ms  ratio"
        for result in of_kind:
            line = (
                f"{result.row.name:<{width}}  {result.row.published_ms:12,.3f}  "
                f"{result.time_ms:12,.3f}  {result.ratio:5.2f}"
            )
            if result.off_the_line is not None:
                line += f"  {100 * result.off_the_line:.2f} % off the line"
            yield line
        yield f"{'median, worst |error|':<{width}}  {summary(of_kind)}"
        yield ""


def summary(results: Sequence[Predicted]) -> str:
    """`4.5 %, -12.0 %`."""
    errors = [result.percent for result in results]
    return f"{statistics.median(map(abs, errors)):.1f} %, {max(errors, key=abs):+.1f} %"


def where_lines(result: Predicted) -> Iterator[str]:
    """Where the time of a row goes, most first."""
    yield f"{result.row.name} ({result.row.kind}): {result.time_ms:,.3f} ms"
    for kind, spent in sorted(result.spent_ms.items(), key=lambda item: -item[1]):
        if spent > 0.005 * result.time_ms:
            yield f"  {spent / result.time_ms:6.1%}  {spent:10,.3f} ms  {kind}"


def as_json(results: Sequence[Predicted]) -> dict[str, Any]:
    """The same as an object; times in milliseconds."""
    return {
        "rows": [
            {
                "kind": result.row.kind,
                "name": result.row.name,
                "source": result.row.source,
                "published_ms": result.row.published_ms,
                "predicted_ms": result.time_ms,
                "error_percent": result.percent,
                "off_the_line": result.off_the_line,
                "spent_ms": dict(result.spent_ms),
                "host_s": result.host_s,
            }
            for result in results
        ]
    }


def from_json(path: Path, rows: Sequence[Row]) -> Iterator[Predicted]:
    """What an earlier run told of these rows by `--json`."""
    by_name = {(row.kind, row.name): row for row in rows}
    for told in json.loads(path.read_text())["rows"]:
        if row := by_name.get((told["kind"], told["name"])):
            times = (told[key] for key in ("predicted_ms", "spent_ms", "off_the_line", "host_s"))
            yield Predicted(row, *times)


def write_steps(folder: Path, rows: Sequence[Row], timer: Timer, layers: tuple[int, int]) -> None:
    """Programs, and rows of whole steps as `nccrt calibrate` takes them: folder/rows.json."""
    folder.mkdir(parents=True, exist_ok=True)
    few, more = layers
    steps = []
    for number, row in enumerate(rows):
        share = (row.layers - few) // (more - few)
        runs_of: dict[str, int] = {}
        for phase in row.phases:
            for count, runs in ((few, 1 - share), (more, share)):
                name = f"{number}-{phase.name}-{count}.neff"
                (folder / name).write_bytes(timer.made(phase, count).data)
                runs_of[name] = phase.runs * runs
        steps.append(
            {
                "table": row.kind,
                "name": row.name,
                "instance": row.instance,
                "nodes": max(phase.nodes for phase in row.phases),
                "programs": runs_of,
                "time_us": 1000 * (row.published_ms - row.host_ms),
                "source": row.source,
            }
        )
    (folder / "rows.json").write_text(json.dumps({"steps": steps}, indent=1))


# --- docs/fidelity.md ----------------------------------------------------------------------------

COLLECTIVE_ROWS = ROOT / "tests/data/published_rows.json"


def collective_errors() -> list[tuple[float, float]]:
    """Measured and predicted milliseconds of the published rows of collectives."""
    rows = read_measured(str(COLLECTIVE_ROWS))
    found = calibrated(Predictor(), rows, is_fitted=False, leave_one_out=False)
    return [(one.row.time_us / 1e3, one.predicted.time_us / 1e3) for one in found.rows]


def write_docs(results: Sequence[Predicted], collectives: Sequence[tuple[float, float]]) -> None:
    """New figures between the marks of the document, and its picture."""
    text = DOCUMENT.read_text()
    whole = [*table_lines(results), f"{'collectives':<44}  {_collective_summary(collectives)}"]
    blocks = {"table": whole, "where": [*itertools.chain(*map(where_lines, _shown(results)))]}
    blocks["kernels"] = [*kernels.table_lines([*kernels.predictions()])]
    for name, lines in blocks.items():
        mark = re.compile(rf"(<!-- {name}: [^\n]*-->\n+```text\n).*?(```)", re.DOTALL)
        assert mark.search(text), f"{DOCUMENT} has no place for {name}"
        block = "".join(f"{line}\n" for line in lines)
        text = mark.sub(lambda found, block=block: found[1] + block + found[2], text)
    DOCUMENT.write_text(text)
    write_plot(PICTURE, results, collectives)


def _collective_summary(collectives: Sequence[tuple[float, float]]) -> str:
    errors = [100 * (predicted_ms / measured_ms - 1) for measured_ms, predicted_ms in collectives]
    worst = max(errors, key=abs)
    return f"{statistics.median(map(abs, errors)):.1f} %, {worst:+.1f} %, {len(errors)} rows"


def _shown(results: Sequence[Predicted]) -> Iterator[Predicted]:
    """The row of each kind whose error is the median, which says where time goes."""
    for kind in KINDS:
        of_kind = [result for result in results if result.row.kind == kind]
        of_kind.sort(key=lambda result: abs(result.percent))
        yield from of_kind[len(of_kind) // 2 : len(of_kind) // 2 + 1]


def write_plot(
    path: Path, results: Sequence[Predicted], collectives: Sequence[tuple[float, float]]
) -> None:
    """Predicted over measured times, and their ratio, with a band of 15 % around it."""
    points = {"collectives": list(collectives)} if collectives else {}
    for kind in KINDS:
        of_kind = [result for result in results if result.row.kind == kind]
        points[kind] = [(result.row.published_ms, result.time_ms) for result in of_kind]

    def draw(figure: Any) -> None:
        times, ratios = figure.subplots(1, 2)
        ends = [min(min(p) for of in points.values() for p in of) / 2]
        ends.append(max(max(p) for of in points.values() for p in of) * 2)
        times.fill_between(ends, [0.85 * x for x in ends], [1.15 * x for x in ends], alpha=0.2)
        times.plot(ends, ends, linewidth=0.8)
        ratios.fill_between(ends, 0.85, 1.15, alpha=0.2)
        ratios.axhline(1, linewidth=0.8)
        for kind, of_kind in points.items():
            measured = [point[0] for point in of_kind]
            times.scatter(measured, [point[1] for point in of_kind], s=14, label=kind)
            ratios.scatter(measured, [point[1] / point[0] for point in of_kind], s=14)
        figure_axis(times, "predicted, ms")
        for axes in (times, ratios):
            figure_axis(axes, "measured, ms", "x")
        ratios.set_ylabel("predicted / measured")
        times.legend(loc="upper left", fontsize=8)

    path.write_bytes(picture(path.name, "Predicted and published times; band: 15 %", draw))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rows", metavar="REGEX", default="", help="kinds and names of rows")
    parser.add_argument("--layers", default="2,3", help="of the programs that are timed")
    parser.add_argument("--check", action="store_true", help="time one layer more")
    parser.add_argument("-O", dest="level", type=int, choices=(0, 1, 2), default=2)
    parser.add_argument("--pass-option", metavar="P.O=V", action="append", default=[])
    parser.add_argument("--no-sdk", action="store_true", help="prefills as everything else")
    parser.add_argument("--cache", type=Path, metavar="DIR", help="keep compiled programs")
    parser.add_argument("--where", action="store_true", help="where the time of each row goes")
    parser.add_argument("--data", type=Path, default=PUBLISHED, help="another file of rows")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="a picture, .svg or .png")
    parser.add_argument("--steps", type=Path, metavar="DIR", help="write rows for nccrt calibrate")
    parser.add_argument("--docs", action="store_true", help="write docs/fidelity.md anew")
    parser.add_argument(
        "--results", type=Path, nargs="+", default=[], metavar="FILE", help="of --json: not again"
    )
    given = parser.parse_args()
    few, more = map(int, given.layers.split(","))
    pairs = dict(pair.split("=", 1) for pair in given.pass_option)
    options = CompileOptions(given.level, pass_options=pairs)
    timer, results = Timer(options, given.cache, uses_sdk=not given.no_sdk), []
    rows = [row for row in rows_of(given.data) if re.search(given.rows, f"{row.kind}: {row.name}")]
    if not rows:
        parser.error(f"no row is {given.rows!r}")
    if given.steps:
        write_steps(given.steps, rows, timer, (few, more))
        return
    known = {result.row.name: result for path in given.results for result in from_json(path, rows)}
    for row in rows:
        if row.name in known:
            results.append(known[row.name])
            continue
        result = predicted(row, timer, (few, more), is_checked=given.check)
        results.append(result)
        print(
            f"{row.kind}: {row.name}: {result.time_ms:,.3f} ms, {result.percent:+.1f} %, "
            f"{result.host_s:.1f} s",
            *(where_lines(result) if given.where else ()),
            sep="\n",
            file=sys.stderr,
            flush=True,
        )
    if given.docs:
        write_docs(results, collective_errors())
    if given.plot:
        write_plot(given.plot, results, [])
    if given.json:
        print(json.dumps(as_json(results), indent=1))
    else:
        print("\n".join(table_lines(results)))


if __name__ == "__main__":
    main()
