"""Programs of many small instructions: how many are performed in a second, and what a trip takes.

Four programs without the clock, again and again in one process: loops with collectives, of which
each rank's part is small, so that what is measured is not arithmetic. An instruction is one of an
engine, or a collective, on one rank; tests of a loop are among them. Prints, on the processor, the
median time of a run, of a trip, and of an instruction, and how many a second; beside it the same of
the literal interpreter, which goes through the queues, on fewer trips.

    counter    4 ranks; 2,000 trips of an all-reduce and three instructions
    predicate  4 ranks; as long as the largest of all ranks' sums is below a bound
    scan       8 ranks; tests/data/hlo/fsdp_scan_layers.hlo, with 256 layers
    decode     4 ranks; 1,000 tokens: a product, an all-reduce, a row written into a cache, argmax

Run: python benchmarks/loops.py [PROGRAM ...] [--repeat 5] [--threads 1]
     python benchmarks/loops.py counter --profile           # where the time goes, by function
"""

import argparse
import cProfile
import platform
import pstats
import re
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import attrs
import numpy as np

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

import ncc_compiler  # noqa: E402
import ncc_runtime  # noqa: E402
from ncc_runtime.execution.tape import TapeRound  # noqa: E402

SUM = "sum { a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT c = f32[] add(a, b) }"
LARGEST = "most { a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT c = f32[] maximum(a, b) }"

COUNTER = f"""HloModule counter, replica_count=4
{SUM}
body {{
  p = (s32[], f32[64]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  x = f32[64] get-tuple-element(p), index=1
  one = s32[] constant(1)
  next = s32[] add(i, one)
  s = f32[64] all-reduce(x), replica_groups={{}}, to_apply=sum
  quarter = f32[] constant(0.25)
  q = f32[64] broadcast(quarter), dimensions={{}}
  y = f32[64] multiply(s, q)
  ROOT r = (s32[], f32[64]) tuple(next, y)
}}
go {{
  p = (s32[], f32[64]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  n = s32[] constant(TRIPS)
  ROOT c = pred[] compare(i, n), direction=LT
}}
ENTRY main {{
  x = f32[64] parameter(0)
  zero = s32[] constant(0)
  t = (s32[], f32[64]) tuple(zero, x)
  w = (s32[], f32[64]) while(t), condition=go, body=body
  ROOT y = f32[64] get-tuple-element(w), index=1
}}
"""

PREDICATE = f"""HloModule predicate, replica_count=4
{SUM}
{LARGEST}
body {{
  p = (f32[64], f32[]) parameter(0)
  x = f32[64] get-tuple-element(p), index=0
  step = f32[] constant(1)
  steps = f32[64] broadcast(step), dimensions={{}}
  y = f32[64] add(x, steps)
  zero = f32[] constant(0)
  s = f32[] reduce(y, zero), dimensions={{0}}, to_apply=sum
  m = f32[] all-reduce(s), replica_groups={{}}, to_apply=most
  ROOT r = (f32[64], f32[]) tuple(y, m)
}}
go {{
  p = (f32[64], f32[]) parameter(0)
  m = f32[] get-tuple-element(p), index=1
  bound = f32[] constant(BOUND)
  ROOT c = pred[] compare(m, bound), direction=LT
}}
ENTRY main {{
  x = f32[64] parameter(0)
  zero = f32[] constant(0)
  t = (f32[64], f32[]) tuple(x, zero)
  w = (f32[64], f32[]) while(t), condition=go, body=body
  ROOT y = f32[64] get-tuple-element(w), index=0
}}
"""

DECODE = f"""HloModule decode, replica_count=4
{SUM}
best {{
  v = f32[] parameter(0)
  i = s32[] parameter(1)
  w = f32[] parameter(2)
  j = s32[] parameter(3)
  first = pred[] compare(v, w), direction=GE
  x = f32[] select(first, v, w)
  k = s32[] select(first, i, j)
  ROOT r = (f32[], s32[]) tuple(x, k)
}}
body {{
  p = (s32[], s32[], f32[128,64], f32[64,64], f32[TRIPS,64], s32[TRIPS]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  token = s32[] get-tuple-element(p), index=1
  table = f32[128,64] get-tuple-element(p), index=2
  weights = f32[64,64] get-tuple-element(p), index=3
  cache = f32[TRIPS,64] get-tuple-element(p), index=4
  tokens = s32[TRIPS] get-tuple-element(p), index=5
  one = s32[] constant(1)
  zero = s32[] constant(0)
  next = s32[] add(i, one)
  row = f32[1,64] dynamic-slice(table, token, zero), dynamic_slice_sizes={{1,64}}
  local = f32[1,64] dot(row, weights), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
  h = f32[1,64] all-reduce(local), replica_groups={{}}, to_apply=sum
  t = f32[1,64] tanh(h)
  kept = f32[TRIPS,64] dynamic-update-slice(cache, t, i, zero)
  logits = f32[1,128] dot(t, table), lhs_contracting_dims={{1}}, rhs_contracting_dims={{1}}
  l = f32[128] reshape(logits)
  numbers = s32[128] iota(), iota_dimension=0
  least = f32[] constant(-inf)
  found = (f32[], s32[]) reduce(l, numbers, least, zero), dimensions={{0}}, to_apply=best
  chosen = s32[] get-tuple-element(found), index=1
  as_row = s32[1] reshape(chosen)
  written = s32[TRIPS] dynamic-update-slice(tokens, as_row, i)
  ROOT r = (s32[], s32[], f32[128,64], f32[64,64], f32[TRIPS,64], s32[TRIPS])
    tuple(next, chosen, table, weights, kept, written)
}}
go {{
  p = (s32[], s32[], f32[128,64], f32[64,64], f32[TRIPS,64], s32[TRIPS]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  n = s32[] constant(TRIPS)
  ROOT c = pred[] compare(i, n), direction=LT
}}
ENTRY main {{
  table = f32[128,64] parameter(0)
  weights = f32[64,64] parameter(1)
  zero = s32[] constant(0)
  nothing = f32[] constant(0)
  cache = f32[TRIPS,64] broadcast(nothing), dimensions={{}}
  tokens = s32[TRIPS] broadcast(zero), dimensions={{}}
  t = (s32[], s32[], f32[128,64], f32[64,64], f32[TRIPS,64], s32[TRIPS])
    tuple(zero, zero, table, weights, cache, tokens)
  w = (s32[], s32[], f32[128,64], f32[64,64], f32[TRIPS,64], s32[TRIPS]) while(t), condition=go, body=body
  ROOT y = s32[TRIPS] get-tuple-element(w), index=5
}}
"""  # noqa: E501


def scan_text(trips: int) -> str:
    """The scan over four layers, with more of them."""
    text = (ROOT / "tests/data/hlo/fsdp_scan_layers.hlo").read_text()
    text = re.sub(r"f32\[4,8,64\]", f"f32[{trips},8,64]", text)
    text = re.sub(r"f32\[4\]", f"f32[{trips}]", text)
    return re.sub(r"s32\[\] constant\(4\)", f"s32[] constant({trips})", text)


@attrs.frozen
class Looping:
    """A program with a loop, by the number of its trips."""

    text: str | None  # None: the scan
    trips: int

    def model(self, trips: int) -> ncc_runtime.Model:
        if self.text is None:
            text = scan_text(trips)
        else:
            # each trip adds 1 to 64 elements, which begin near 0
            text = self.text.replace("TRIPS", str(trips)).replace("BOUND", str(64 * trips))
        return ncc_runtime.load(ncc_compiler.compile_text(text))


PROGRAMS = {
    "counter": Looping(COUNTER, 2000),
    "predicate": Looping(PREDICATE, 2000),
    "scan": Looping(None, 256),
    "decode": Looping(DECODE, 1000),
}

FEW_TRIPS = 20
"""Of the literal interpreter."""


def performed(model: ncc_runtime.Model, threads: int) -> tuple[int, int]:
    """Instructions and collectives that a run performs on all ranks, and trips of a rank."""
    model.run(seed=0, clock=False, threads=threads)
    kept: list[dict[TapeRound, np.ndarray]] = []
    machine = next(iter(model._machines.values()))
    plain = machine.play
    machine.play = lambda *words: kept.append(plain(*words)) or kept[-1]  # type: ignore
    try:
        model.run(seed=0, clock=False, threads=threads)
    finally:
        del machine.play
    times = {one: int(count.sum()) for one, count in kept[0].items()}
    rows = sum(len(one.batches) * count for one, count in times.items())
    return rows, max(int(count.max()) for count in kept[0].values())


def seconds(model: ncc_runtime.Model, repeat: int, **settings: Any) -> float:
    """The median processor time of a run."""
    model.run(seed=0, clock=False, **settings)
    taken = []
    for _ in range(repeat):
        start = time.process_time()
        model.run(seed=0, clock=False, **settings)
        taken.append(time.process_time() - start)
    return statistics.median(taken)


def line_of(name: str, repeat: int, threads: int) -> str:
    """A line of the table."""
    program = PROGRAMS[name]
    model = program.model(program.trips)
    tape_s = seconds(model, repeat, threads=threads)
    rows, trips = performed(model, threads)
    few = program.model(FEW_TRIPS)
    few_rows, few_trips = performed(few, threads)
    # who watches rows sees them all
    literal_s = seconds(few, 1, threads=threads, watch=lambda *_: None)
    cells = [
        f"{rows:,}",
        f"{tape_s * 1e3:.1f}",
        f"{tape_s / trips * 1e6:.1f}",
        f"{tape_s / rows * 1e6:.2f}",
        f"{rows / tape_s:,.0f}",
        f"{literal_s / few_trips * 1e6:.0f}",
        f"{few_rows / literal_s:,.0f}",
    ]
    return f"{name:<10}" + "".join(f"{cell:>13}" for cell in cells)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("programs", nargs="*", default=[*PROGRAMS])
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--profile", action="store_true")
    arguments = parser.parse_args()
    if arguments.profile:
        for name in arguments.programs:
            model = PROGRAMS[name].model(PROGRAMS[name].trips)
            model.run(seed=0, clock=False, threads=arguments.threads)
            with cProfile.Profile() as profile:
                model.run(seed=0, clock=False, threads=arguments.threads)
            pstats.Stats(profile).sort_stats("tottime").print_stats(25)
        return
    print(f"{time.strftime('%Y-%m-%d')} {platform.machine()}, numpy {np.__version__}")
    heads = ["instructions", "run ms", "trip us", "each us", "a second"]
    heads += ["literal trip", "a second"]
    print(f"{'':10}" + "".join(f"{head:>13}" for head in heads))
    for name in arguments.programs:
        print(line_of(name, arguments.repeat, arguments.threads), flush=True)


if __name__ == "__main__":
    main()
