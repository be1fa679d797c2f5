"""What -O2 gives and costs beside -O1: time, hidden communication and memory of whole programs.

Prints for each program and topology the predicted time at both levels, the part of collectives'
time in which engines work, and the bytes of HBM that a rank takes. A program that is slower at -O2
is marked. The figures are the clock's, so they are the same on any machine.

Run: python benchmarks/overlap.py [MODEL ...] [--topologies trn2.48xlarge ...] [--pass-option P.O=N]
Without models: those in ir_examples/ and tests/data/hlo/, the two pipeline stages as one program.
"""

import argparse
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import attrs

import ncc_compiler
import ncc_runtime
from ncc_compiler.options import CompileOptions
from ncc_runtime.errors import NccError
from ncc_runtime.report.overlap import overlap
from ncc_runtime.runtime import program_of

FOLDER = Path(__file__).parents[1]
STAGES = "pipeline_stage"
TOPOLOGIES = ("trn2.48xlarge", "trn1.32xlarge", "inf2.48xlarge")
LEVELS = (1, 2)


@attrs.frozen
class Timed:
    """A program at one level on one topology."""

    time_us: float
    hidden: float | None  # of the collectives' time; None without collectives
    hbm_bytes: int  # of a rank

    def __str__(self) -> str:
        hidden = "-" if self.hidden is None else f"{self.hidden:.1%}"
        return f"{self.time_us:>13.3f}{hidden:>8}{self.hbm_bytes:>14,}"


def models() -> Iterator[tuple[Path, ...]]:
    """The project's own, each as its stages."""
    examples = sorted((FOLDER / "ir_examples").glob("*.ir"))
    yield tuple(path for path in examples if path.stem.startswith(STAGES))
    yield from ((path,) for path in examples if not path.stem.startswith(STAGES))
    yield from ((path,) for path in sorted((FOLDER / "tests" / "data" / "hlo").glob("*.hlo")))


def timed(
    stages: Sequence[Path], level: int, topologies: Sequence[str], pass_options: Mapping[str, str]
) -> list[Timed | None]:
    """A program on each topology; None where it does not fit."""
    options = CompileOptions(level, pass_options=pass_options if level == 2 else {})
    neffs = [ncc_compiler.compile_file(str(stage), options) for stage in stages]
    share = program_of(neffs[0]).ranks // len(neffs)  # stages are compiled for all ranks
    parts = [(neff, range(k * share, (k + 1) * share)) for k, neff in enumerate(neffs)]
    found: list[Timed | None] = []
    for topology in topologies:
        try:
            program = program_of(neffs[0] if len(neffs) == 1 else parts)
            run = ncc_runtime.load(program, topology).run(values=False, verify=False)
        except NccError as error:
            print(f"{stages[0].stem} at -O{level} on {topology}: {str(error).splitlines()[0]}")
            found.append(None)
            continue
        assert run.trace is not None
        found.append(Timed(run.time_us or 0, overlap(run.trace).hidden_share, program.hbm_bytes))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", type=Path)
    parser.add_argument("--topologies", nargs="+", default=TOPOLOGIES)
    parser.add_argument("--pass-option", action="append", default=[], help="of -O2")
    given = parser.parse_args()
    pass_options = dict(one.split("=", 1) for one in given.pass_option)
    warnings.simplefilter("ignore")  # of constants that a dump leaves out
    titles = (f"{f'-O{level} us':>13}{'hidden':>8}{'bytes':>14}" for level in LEVELS)
    print(f"{'program':<24}{'topology':<15}{''.join(titles)}{'time':>8}{'bytes':>8}")
    for stages in [(one,) for one in given.models] or models():
        columns = [timed(stages, level, given.topologies, pass_options) for level in LEVELS]
        for topology, before, after in zip(given.topologies, *columns, strict=True):
            if before is None or after is None:
                continue
            faster = after.time_us / before.time_us - 1
            larger = after.hbm_bytes / before.hbm_bytes - 1
            mark = "  slower" if faster > 0 else ""
            print(
                f"{stages[0].stem:<24}{topology:<15}{before}{after}{faster:>+8.1%}{larger:>+8.1%}"
                f"{mark}",
                flush=True,
            )


if __name__ == "__main__":
    main()
