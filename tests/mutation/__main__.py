"""Prints the kill rates of both matrices: python -m tests.mutation [mutants of each program].

Without a number one of each kind, which takes two processors twenty minutes.
"""

import multiprocessing
import sys

from ncc_runtime.errors import LoweringError, PlacementError
from tests.mutation.large_matrix import Large, large_mutants
from tests.mutation.large_matrix import candidates as large_candidates
from tests.mutation.rates import FAULTY, Outcome, Said, outcome, report
from tests.mutation.small_matrix import Small, small_mutants
from tests.mutation.small_matrix import candidates as small_candidates

Measured = tuple[Small | Large, str, list[Outcome]] | None
"""A program, what the proofs say against it as it is, and its mutants."""


def measured(task: tuple[Small | Large, int | None]) -> Measured:
    """The outcomes of one program, None if it cannot be placed."""
    program, most = task
    try:
        executable = program.executable()
    except (LoweringError, PlacementError):
        return None
    if isinstance(program, Small):
        mutants, faults = small_mutants(program, executable, most), None
    else:
        mutants, faults = large_mutants(program, executable, most), FAULTY
    found = [outcome(str(program), mutant, faults) for mutant in mutants]
    return program, Said.of(executable).breach, found


def main() -> None:
    """Both matrices, on all processors."""
    most = int(sys.argv[1]) if len(sys.argv) > 1 else None
    with multiprocessing.Pool() as pool:
        for title, programs in (
            ("2 to 4 ranks, judged by all interleavings", list(small_candidates())),
            ("8 to 64 ranks, kinds that are never equivalent", list(large_candidates())),
        ):
            tasks = [(program, most) for program in programs]
            results = [one for one in pool.imap_unordered(measured, tasks) if one is not None]
            found = sorted((one for _, _, its in results for one in its), key=str)
            alarms = [f"{program}: {breach}" for program, breach, _ in results if breach]
            print(f"{title}: {len(results)} programs, {len(alarms)} of them refused\n")
            print(*alarms, report(found), "", sep="\n")
            print(
                *(f"missed: {one}" for one in found if one.faults and not one.is_killed), sep="\n"
            )
            if isinstance(programs[0], Small):
                odd = [
                    one for one in found if not (one.is_right if one.faults else one.is_explained)
                ]
                print(*(f"not by the right proof: {one}" for one in odd), sep="\n")


if __name__ == "__main__":
    main()
