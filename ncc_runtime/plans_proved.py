"""Refuses users' plans whose program is not proved, with the plan, the chunk and the round.

And, where one order of reduction is held, plans that reduce in another one.
"""

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from ncc_runtime.bits.orders import divisor_of, orders
from ncc_runtime.collectives.choose import shows_order
from ncc_runtime.collectives.chunks import chunked
from ncc_runtime.collectives.plan import Space
from ncc_runtime.errors import PlanError
from ncc_runtime.lowering.choices import plan_requests
from ncc_runtime.lowering.executable import Executable
from ncc_runtime.plans.files import PlanFile, assigned
from ncc_runtime.verify.counters import UNREACHED
from ncc_runtime.verify.deadlock import prove_deadlock
from ncc_runtime.verify.proof import Proof
from ncc_runtime.verify.prove import refuse
from ncc_runtime.verify.segments import segments
from ncc_runtime.verify.semantics.semantics import Wrong, first_wrong


def refuse_plans(
    executable: Executable, files: Sequence[PlanFile], proofs: Callable[[], Sequence[Proof]]
) -> None:
    """PlanError if a placeholder that a plan runs deadlocks, races or has a wrong result.

    `proofs` makes the proofs of the program; plans in chunks need none, they were checked before.
    """
    if not any(file.is_proved_late for file in files):
        return
    broken = [proof for proof in proofs() if proof.breaches]
    if not broken:
        return
    by_number = assigned(files, plan_requests(executable.program))
    for number, file in sorted(by_number.items()):
        for what in _reasons(executable, number, broken):
            raise PlanError(f"plan {file.path}: {what}")
    refuse(broken)


def refuse_orders(executable: Executable, files: Sequence[PlanFile]) -> None:
    """PlanError if a plan does not reduce in the order of the group, as other plans would."""
    by_number = assigned(files, plan_requests(executable.program))
    placeholders = executable.program.placeholders
    shown = [
        number
        for number in by_number
        if placeholders[number].op.reduces and shows_order(placeholders[number])
    ]
    if not shown:
        return
    for number, order in orders(executable, wanted=shown).items():
        for result in order.results:
            members = len(result.group)
            divisor = divisor_of(placeholders[number], members)
            wanted = order.sums.in_order(members, divisor)
            wrong = np.flatnonzero(result.expression != wanted)[:1].tolist()
            for at in wrong:
                raise PlanError(
                    f"plan {by_number[number].path}: p{number}: rank {result.rank}'s result from "
                    f"byte {int(result.start[at])} on is "
                    f"{order.sums.text(int(result.expression[at]))}; --deterministic holds "
                    f"{order.sums.text(wanted)}"
                )


def _reasons(executable: Executable, number: int, broken: Sequence[Proof]) -> Iterator[str]:
    """What is wrong with a placeholder, the most specific first."""
    if broken[0].name == "semantics":
        wrong = _first_wrong(executable, number)
        if wrong is not None:
            yield f"p{number}: {_wrong_text(executable, wrong)}"
    for proof in broken:
        for breach in proof.breaches:
            if number in breach.placeholders or len(executable.program.placeholders) == 1:
                # a plan that lacks a credit deadlocks: it waits for a count that is never reached
                name = "deadlock" if breach.rule == UNREACHED else proof.name
                yield f"{name}: {' '.join(breach.text.split())}"


def _first_wrong(executable: Executable, number: int) -> Wrong | None:
    _, run = prove_deadlock(executable)
    for segment in segments(executable):
        if number in segment.numbers:
            return first_wrong(segment, run)
    return None


def _wrong_text(executable: Executable, wrong: Wrong) -> str:
    """The first wrong chunk, its rank and the round that wrote it last."""
    request = plan_requests(executable.program)[wrong.number]
    buffers = request.job.buffers
    members = max(map(len, request.groups), default=1)
    elements = [buffers.result_elements[wrong.result]]
    (extent,) = chunked(Space.RESULT, elements, members, buffers.element_bytes)
    chunk = int(np.searchsorted(extent.offsets[0], wrong.offset, "right")) - 1
    where = f"chunk {chunk} of rank {wrong.rank}"
    last = "no transfer writes there" if wrong.round is None else f"in round {wrong.round}"
    return f"{where} is wrong, {last}: {wrong.what}"
