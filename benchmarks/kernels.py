"""Kernels beside what is published of them: our time for those that a program or a rule stands for.

    python benchmarks/kernels.py            the table
    python benchmarks/kernels.py --json

The rows are benchmarks/data/kernels.json, with their sources. A kernel is predicted from a program
of ours that does the same (one product, one fusion, one function) and its topology; a figure of a
profile, such as one DMA, from the rule of docs/timing.md that says so. Left out are kernels before
they were optimised, a scan (Mamba), which no instruction of ours is, and LayerNorm runs whose
device time is mostly the launch of the kernel.
"""

import argparse
import json
import re
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from ncc_compiler.codegen.generate import generate
from ncc_compiler.driver import load_text
from ncc_runtime.machine_model.compute import compute_costs
from ncc_runtime.machine_model.timing import TimingModel, duration_ps
from ncc_runtime.neff.durations import busy_ps
from ncc_runtime.neff.isa import Engine
from ncc_runtime.neff.program import Program
from ncc_runtime.neff.work.instructions import works_of
from ncc_runtime.neff.work.work import Work
from ncc_runtime.topology.graph import Topology, build

PUBLISHED = Path(__file__).parent / "data/kernels.json"

PRODUCT = """ENTRY e {{
  x = {t}[4096,8192] parameter(0)
  y = {t}[8192,8192] parameter(1)
  ROOT d = {t}[4096,8192] dot(x, y), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
}}
"""

EXPONENTIAL = """ENTRY e {{
  x = bf16[128,{n}] parameter(0)
  ROOT y = bf16[128,{n}] exponential(x)
}}
"""

RMSNORM_QUANT = """
add {{ a = f32[] parameter(0)
 b = f32[] parameter(1)
 ROOT c = f32[] add(a, b) }}
max {{ a = f32[] parameter(0)
 b = f32[] parameter(1)
 ROOT c = f32[] maximum(a, b) }}
body {{
  x = bf16[{r},{c}] parameter(0)
  g = bf16[{c}] parameter(1)
  xf = f32[{r},{c}] convert(x)
  square = f32[{r},{c}] multiply(xf, xf)
  zero = f32[] constant(0)
  sum = f32[{r}] reduce(square, zero), dimensions={{1}}, to_apply=add
  n = f32[] constant(0.0001220703125)
  nb = f32[{r}] broadcast(n), dimensions={{}}
  mean = f32[{r}] multiply(sum, nb)
  rms = f32[{r}] rsqrt(mean)
  rb = f32[{r},{c}] broadcast(rms), dimensions={{0}}
  scaled = f32[{r},{c}] multiply(xf, rb)
  gf = f32[{c}] convert(g)
  gb = f32[{r},{c}] broadcast(gf), dimensions={{1}}
  weighed = f32[{r},{c}] multiply(scaled, gb)
  normed = bf16[{r},{c}] convert(weighed)
  again = f32[{r},{c}] convert(normed)
  size = f32[{r},{c}] abs(again)
  most = f32[{r}] reduce(size, zero), dimensions={{1}}, to_apply=max
  range = f32[] constant(240)
  range_b = f32[{r}] broadcast(range), dimensions={{}}
  factor = f32[{r}] divide(range_b, most)
  fb = f32[{r},{c}] broadcast(factor), dimensions={{0}}
  whole = f32[{r},{c}] multiply(again, fb)
  out = f8e4m3[{r},{c}] convert(whole)
  ROOT both = (f8e4m3[{r},{c}], f32[{r}]) tuple(out, factor)
}}
ENTRY e {{
  x = bf16[{r},{c}] parameter(0)
  g = bf16[{c}] parameter(1)
  ROOT f = (f8e4m3[{r},{c}], f32[{r}]) fusion(x, g), kind=kInput, calls=body
}}
"""


@attrs.frozen
class Prediction:
    """One row of the table, in microseconds or as a share."""

    kernel: str
    shapes: str
    dtype: str
    device: str
    published: float
    predicted: float

    @property
    def ratio(self) -> float:
        """Predicted over published."""
        return self.predicted / self.published


def program_of(text: str) -> Program:
    """The program of a text, its fusions as they stand there."""
    return generate(load_text(text))


def whole_us(text: str, topology: Topology) -> float:
    """Of a program of one instruction, its time."""
    program, model = program_of(text), TimingModel.from_topology(topology)
    costs = (
        compute_costs(program, model, engine, table).ps.sum()
        for engine, table in program.queues.items()
    )
    return float(sum(costs)) / 1e6


def work_of(text: str) -> Work:
    """Of a program of one instruction, its work."""
    program = program_of(text)
    works = (works_of(program, *queue)[0] for queue in program.queues.items())
    return max((work for queue in works for work in queue), key=lambda work: work.traffic)


def topology_of(row: Mapping[str, Any]) -> Topology:
    """The device of a row; one core unless it says that two are one."""
    name = "trn2" if "v3" in row["device"] or "trn2" in row["device"] else "trn1"
    return build(name, lnc=2 if "LNC2" in row["device"] else 1)


def _product(row: Mapping[str, Any]) -> float:
    return whole_us(PRODUCT.format(t={"fp32": "f32"}.get(row["dtype"], "bf16")), topology_of(row))


def _rmsnorm_quant(row: Mapping[str, Any]) -> float:
    rows, columns = map(int, re.findall(r"\d+", row["shapes"])[1:3])
    return whole_us(RMSNORM_QUANT.format(r=rows, c=columns), topology_of(row))


def _rmsnorm_of_core(row: Mapping[str, Any]) -> float:
    """Fewer rows than partitions on each of two cores: one of them with its own."""
    return whole_us(_part_of_core(row), build("trn2", lnc=1))


def _part_of_core(row: Mapping[str, Any]) -> str:
    columns, rows = re.findall(r"(\d+)\], (\d+) rows per core", row["shapes"])[0]
    return RMSNORM_QUANT.format(r=rows, c=columns)


def _part_of_rmsnorm(part: str) -> Callable[[Mapping[str, Any]], float]:
    """A phase of the kernel as a profile shows it."""

    def predicted(row: Mapping[str, Any]) -> float:
        work = work_of(_part_of_core(row))
        speeds = TimingModel.from_topology(build("trn2", lnc=1)).speeds
        squares, scaling, quantising = (busy_ps(phase, speeds) for phase in work.phases)
        moved = {"load": work.dma_read, "store": work.dma_written}
        if part in moved:
            moving = int(duration_ps(moved[part], speeds.dma_bytes_per_s))
            return (speeds.dma_start_ps + max(speeds.dma_least_ps, moving)) / 1e6
        times = {
            "square": squares[Engine.SCALAR],
            "normalise": squares[Engine.SCALAR] + max(scaling.values()),
            "scale": max(quantising.values()),
        }
        return times[part] / 1e6

    return predicted


def _function(row: Mapping[str, Any]) -> float:
    """An activation by itself: its elements, and what it takes beyond them."""
    model = TimingModel.from_topology(topology_of(row))
    columns = int(re.findall(r"\d+", row["shapes"])[1])
    (phase,) = work_of(EXPONENTIAL.format(n=columns)).phases
    return (busy_ps(phase, model.speeds)[Engine.SCALAR] + _step(row) * 1e6) / 1e6


def _step(row: Mapping[str, Any]) -> float:
    model = TimingModel.from_topology(topology_of(row))
    return model.speeds.step_ps[Engine.SCALAR] / 1e6


def _one_engine(row: Mapping[str, Any]) -> float:
    """A row of a profile that is one of 16 engines."""
    kib = 2 if "each 2 KiB" in row["kernel"] else 32
    return kib * 1024 / topology_of(row).dma.engine_bandwidth_bytes_per_s * 1e6


def _load(row: Mapping[str, Any]) -> float:
    speeds = TimingModel.from_topology(topology_of(row)).speeds
    return (speeds.dma_start_ps + speeds.dma_least_ps) / 1e6


def _table(row: Mapping[str, Any]) -> float:
    return TimingModel.from_topology(topology_of(row)).table_ps / 1e6


def _share_of_rate(row: Mapping[str, Any]) -> float:
    """A DMA of 128 rows beside one of 32 KiB rows, where DMAs are issued one after the other."""
    speeds = TimingModel.from_topology(build("trn2", lnc=1)).speeds

    def rate(size: int) -> float:
        moving = int(duration_ps(128 * size, speeds.dma_bytes_per_s))
        return 128 * size / max(moving, speeds.dma_least_ps)

    return rate(int(row["shapes"].split()[0])) / rate(32 * 1024)


STANDING: tuple[tuple[str, Callable[[Mapping[str, Any]], float]], ...] = (
    (r"matmul (block all|loads hoisted|M,N)", _product),
    (r"rmsnorm_quant Llama", _rmsnorm_quant),
    (r"rmsnorm_quant phase: whole", _rmsnorm_of_core),
    (r"rmsnorm_quant phase: load", _part_of_rmsnorm("load")),
    (r"rmsnorm_quant phase: store", _part_of_rmsnorm("store")),
    (r"rmsnorm_quant phase: ScalarE", _part_of_rmsnorm("square")),
    (r"rmsnorm_quant phase: VectorE", _part_of_rmsnorm("scale")),
    (r"activation exp", _function),
    (r"tiny ScalarE|DMA end to dependent", _step),
    (r"DMA (load|store).*engine", _one_engine),
    (r"trigger to usable data", _load),
    (r"ACT table load", _table),
    (r"DMA HBM to SBUF", _share_of_rate),
)
"""What predicts a kernel whose name begins so."""


def predictions(path: Path = PUBLISHED) -> Iterator[Prediction]:
    """Every row that something of ours stands for."""
    for row in json.loads(path.read_text())["rows"]:
        for pattern, predict in STANDING:
            if re.match(pattern, row["kernel"]):
                names = (row[key] for key in ("kernel", "shapes", "dtype", "device"))
                published = row.get("time_us", row.get("throughput_fraction_of_32KiB_point"))
                yield Prediction(*names, published, predict(row))
                break


def table_lines(results: Sequence[Prediction]) -> Iterator[str]:
    """A line for each row, in microseconds or as a share, then the median and worst error."""
    yield f"{'kernel':<52}{'shapes':<34}{'published':>12}{'predicted':>12}{'ratio':>7}"
    for row in results:
        yield (
            f"{row.kernel[:50]:<52}{row.shapes[:32]:<34}{row.published:12,.3f}"
            f"{row.predicted:12,.3f}{row.ratio:7.2f}"
        )
    errors = [abs(row.ratio - 1) for row in results]
    worst = max(results, key=lambda row: max(row.ratio, 1 / row.ratio))
    yield (
        f"{len(results)} rows: median error {100 * statistics.median(errors):.1f} %, "
        f"worst {worst.ratio:.2f} ({worst.kernel})"
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    results = list(predictions())
    if given.json:
        print(json.dumps([{**attrs.asdict(row), "ratio": row.ratio} for row in results], indent=1))
        return
    print("\n".join(table_lines(results)))


if __name__ == "__main__":
    main()
