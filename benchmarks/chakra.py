"""Predicted times of programs, and of what comes back when they are written as execution traces.

Each program is compiled at -O1, models at -O2, timed on trn2, written by `Run.write_chakra`, read
by `compile_trace` and timed again: with the durations of the trace, and with sizes only. Seconds
are those of the processor: to write the files of all ranks, and to read and compile them. The table
of docs/chakra.md is this one.

Run: python benchmarks/chakra.py [--models]
--models adds layers of Llama 3 8B, tensor-parallel over 32 ranks, which need the extra `jax`.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import ncc_compiler
import ncc_runtime
from ncc_compiler.options import CompileOptions

ROOT = Path(__file__).parents[1]
PROGRAMS = (
    "ir_examples/tensor_parallel_mlp.ir",
    "ir_examples/tp8_dp4_step.ir",
    "ir_examples/ring_attention.ir",
    "ir_examples/many_gradients.ir",
    "tests/data/hlo/mlp_train_dp8.hlo",
    "tests/data/hlo/fsdp_scan_layers.hlo",
    "tests/data/hlo/ring_attention.hlo",
    "tests/data/hlo/moe_all_to_all.hlo",
    "tests/data/hlo/llama_4l_64ranks.hlo",
)


def models() -> Iterator[tuple[str, ncc_compiler.Neff]]:
    """Some layers of a public model: a step of decoding, a prefill, a microbatch of training."""
    sys.path.insert(0, str(ROOT))
    from benchmarks import model_programs as programs
    from benchmarks.models import LLAMA_3_8B

    sizes = LLAMA_3_8B.on(32)
    for name, one in (
        ("Llama 3 8B, 4 layers, decoding", programs.decoding(sizes, 4, 32, 4, 2048)),
        ("Llama 3 8B, 4 layers, prefill", programs.prefill(sizes, 4, 32, 1, 2048, 2048)),
        ("Llama 3 8B, 3 layers, training", programs.llama_microbatch(sizes, 3, 32, 1, 4096)),
    ):
        options = CompileOptions(level=2)
        neff = ncc_compiler.from_jax(one.function, *one.arguments, **one.options, options=options)
        yield name, neff


def row(name: str, neff: ncc_compiler.Neff) -> str:
    """A line of the table."""
    run = ncc_runtime.load(neff, "trn2").run(values=False)
    with tempfile.TemporaryDirectory() as folder:
        traces = Path(folder) / "traces"
        started = time.process_time()
        nodes = run.write_chakra(traces)
        writing_s = time.process_time() - started
        changes, reading_s = list[float](), 0.0
        for durations in (True, False):
            started = time.process_time()
            programs = ncc_compiler.compile_trace(traces, durations=durations)
            reading_s = time.process_time() - started
            again = ncc_runtime.load(programs, "trn2").run(values=False)
            assert run.time_us is not None
            assert again.time_us is not None
            changes.append((again.time_us / run.time_us - 1) * 100)
    return (
        f"| {name} | {run.time_us:,.1f} | {changes[0]:+.1f} % | {changes[1]:+.1f} % |  "
        f"{nodes} nodes, written in {writing_s:.2f} s, read in {reading_s:.2f} s"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", action="store_true", help="also models, by the extra jax")
    arguments = parser.parse_args()
    for name in PROGRAMS:
        print(row(f"`{name}`", ncc_compiler.compile_file(ROOT / name)), flush=True)
    if arguments.models:
        for name, neff in models():
            print(row(name, neff), flush=True)


if __name__ == "__main__":
    main()
