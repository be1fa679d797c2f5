"""How long all proofs of a placed program take, each case in a process of its own.

Prints, per case, the seconds of wall time of the first proving and the least of three, those of
placing and filling beside them, how much each proof takes of the first, and the peak memory of the
process. Cases: rings over 64 and 1,024 ranks, a hierarchical all-reduce over 1,024, a large model.

Run: python benchmarks/proofs.py [CASE ...]
"""

import argparse
import json
import platform
import resource
import subprocess
import sys
import time
from pathlib import Path

import attrs

import ncc_compiler
from ncc_runtime.lowering.lower import lower
from ncc_runtime.neff.program import Program
from ncc_runtime.placement import PlaceOptions, place_on
from ncc_runtime.runtime import program_of
from ncc_runtime.verify.prove import prove

LLAMA = Path(__file__).parents[1] / "tests" / "data" / "hlo" / "llama_4l_64ranks.hlo"
PATIENCE_S = 300
AGAIN = 3

TEXT = """
sum {{ a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT c = f32[] add(a, b) }}
ENTRY main {{
  x = f32[{elements}] parameter(0)
  ROOT y = f32[{elements}] all-reduce(x), replica_groups=[1,{ranks}]<=[{ranks}], to_apply=sum
}}
"""


@attrs.frozen
class Case:
    """An all-reduce, or the large model."""

    ranks: int = 0
    size_bytes: int = 0
    algorithm: str = ""

    def program(self) -> Program:
        if not self.ranks:
            return program_of(ncc_compiler.compile_file(str(LLAMA)))
        text = TEXT.format(elements=self.size_bytes // 4, ranks=self.ranks)
        return program_of(ncc_compiler.compile_text(text))


CASES = {
    "ring-64": Case(64, 1 << 20, "ring"),
    "mesh-64": Case(64, 1 << 20, "mesh"),
    "llama": Case(),
    "ring-1024": Case(1024, 1 << 30, "ring"),
    "hier-1024": Case(1024, 1 << 20, "hier.mesh.mesh"),
}


def measure(case: Case) -> dict[str, float | str]:
    """One case, in this process."""
    program = case.program()
    forced = {"all-reduce": case.algorithm} if case.algorithm else {}
    start = time.perf_counter()
    executable = lower(program, place_on(PlaceOptions("trn2.48xlarge"), program.ranks), forced)
    filled = time.perf_counter()
    first = prove(executable)
    seconds = [time.perf_counter() - filled]
    assert all(proof.holds for proof in first), [proof.breaches for proof in first]
    for _ in range(AGAIN):
        begun = time.perf_counter()
        prove(executable)
        seconds.append(time.perf_counter() - begun)
    return {
        "fill_s": filled - start,
        "first_s": seconds[0],
        "least_s": min(seconds[1:]),
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10,
        "parts": ", ".join(f"{proof.name} {proof.seconds:.3f}" for proof in first),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cases", nargs="*", metavar="CASE", help=", ".join(CASES))
    parser.add_argument("--one", choices=CASES, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(measure(CASES[arguments.one])))
        return
    unknown = sorted(set(arguments.cases) - CASES.keys())
    if unknown:
        parser.error(f"no case {unknown[0]!r}; there are {', '.join(CASES)}")
    print(f"{time.strftime('%Y-%m-%d')} {platform.machine()}; seconds")
    for name in arguments.cases or CASES:
        command = [sys.executable, __file__, "--one", name]
        done = subprocess.run(
            command, check=False, capture_output=True, text=True, timeout=PATIENCE_S
        )
        if done.returncode:
            print(f"{name:<10} {done.stderr.strip().splitlines()[-1]}")
            continue
        row = json.loads(done.stdout)
        print(
            f"{name:<10} proofs {row['first_s']:.3f}, then {row['least_s']:.3f}; "
            f"filling {row['fill_s']:.3f}; peak {row['peak_mib']} MiB\n{'':<10} {row['parts']}"
        )


if __name__ == "__main__":
    main()
