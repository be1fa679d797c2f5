"""What it saves to plan candidates for one of alike instances before one is filled for all ranks.

A collective over all ranks of trn2 is loaded, algorithm chosen, as for values and proofs: once with
candidates of all ranks, once with those of one instance. Each is a process of its own; seconds are
of the processor, MiB the peak. Either way the same is chosen and filled.

Run: python benchmarks/planned_as_one.py [--ranks 512 1024 2048] [--size-bytes 65536 …]
"""

import argparse
import multiprocessing
import platform
import resource
import time

import attrs

OPERATORS = ("all_reduce", "all_gather", "reduce_scatter", "alltoall")


@attrs.frozen
class Loaded:
    """What it took, and what was chosen."""

    seconds: float
    peak_mib: float
    algorithm: str


def loaded(operator: str, ranks: int, size_bytes: int, planned_as_one: int) -> Loaded:
    """`planned_as_one`: ranks from which on candidates are those of one instance."""
    from ncc_runtime.lowering import choices
    from ncc_runtime.neff import container
    from ncc_runtime.neff.shared.dtypes import DType
    from ncc_runtime.report import bench
    from ncc_runtime.runtime import load

    choices.PLANNED_AS_ONE = planned_as_one
    case = bench.Case(bench.OPERATORS[operator], ranks, DType.F32, size_bytes)
    program = container.pack(bench.program_of_case(case))
    start = time.process_time()
    model = load(program, "trn2")
    seconds = time.process_time() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return Loaded(seconds, peak, model.executable.lowered[0].name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, nargs="*", default=[512, 1024, 2048])
    parser.add_argument(
        "--size-bytes", type=int, nargs="*", default=[1 << 16, (1 << 22) + (1 << 14), 1 << 26]
    )
    arguments = parser.parse_args()
    print(f"{time.strftime('%Y-%m-%d')} {platform.machine()}; candidates of all, of one instance")
    print(f"{'ranks':>6} {'':15}{'bytes':>10}{'seconds':>14}{'ratio':>7}{'MiB':>13}  chosen")
    for ranks in arguments.ranks:
        for operator in OPERATORS:
            for size_bytes in arguments.size_bytes:
                found = []
                for planned_as_one in (1 << 62, 1):
                    with multiprocessing.get_context("spawn").Pool(1) as pool:
                        what = operator, ranks, size_bytes, planned_as_one
                        found.append(pool.apply(loaded, what))
                of_all, as_one = found
                assert of_all.algorithm == as_one.algorithm, "the same is chosen"
                print(
                    f"{ranks:6} {operator:15}{size_bytes:10,}{of_all.seconds:7.2f}"
                    f"{as_one.seconds:7.2f}{as_one.seconds / of_all.seconds:7.2f}"
                    f"{of_all.peak_mib:7.0f}{as_one.peak_mib:6.0f}  {of_all.algorithm}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
