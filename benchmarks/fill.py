"""How long all placeholders of a program take to be chosen and filled, in a process of its own.

Prints seconds of processor time, the least of several fills after the first, and the first one,
which also builds what later ones find in caches.

Run: python benchmarks/fill.py [MODEL] [--topology T] [--nodes N]
"""

import argparse
import platform
import time
from pathlib import Path

import ncc_compiler
from ncc_runtime.lowering.lower import lower
from ncc_runtime.placement import PlaceOptions, place_on
from ncc_runtime.runtime import program_of

LLAMA = Path(__file__).parents[1] / "tests" / "data" / "hlo" / "llama_4l_64ranks.hlo"
FILLS = 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?", type=Path, default=LLAMA)
    parser.add_argument("--topology", default="trn2.48xlarge")
    parser.add_argument("--nodes", type=int)
    arguments = parser.parse_args()
    program = program_of(ncc_compiler.compile_file(str(arguments.model)))
    options = PlaceOptions(arguments.topology, nodes=arguments.nodes)
    seconds = []
    for _ in range(FILLS):
        placement = place_on(options, program.ranks)
        start = time.process_time()
        lower(program, placement, {})
        seconds.append(time.process_time() - start)
    print(f"{time.strftime('%Y-%m-%d')} {platform.machine()}, {placement}")
    print(
        f"{arguments.model.name}: {len(program.placeholders)} placeholders filled in "
        f"{min(seconds):.2f} s, the first time in {seconds[0]:.2f} s"
    )


if __name__ == "__main__":
    main()
