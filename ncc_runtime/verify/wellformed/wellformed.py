"""The proof of form: the executable is what the other proofs, and the hardware, take it to be.

Three stages: columns have their cells; numbers stand for something, and placeholders for rows;
then all other rules, which follow the numbers. A stage is asked only of what passes the one before,
so that no rule has to doubt what it indexes by. docs/proofs.md says what each rule asks.
"""

import itertools

from ncc_runtime.lowering.executable import Executable
from ncc_runtime.verify.proof import Breach, Proof
from ncc_runtime.verify.wellformed.columns import (
    columns_have_their_cells,
    control_rows_jump,
    rows_name_what_exists,
    semaphores_and_ranks_exist,
)
from ncc_runtime.verify.wellformed.contract import (
    placeholders_are_contiguous,
    rows_post_as_their_opcode_says,
    runs_are_pushed_once_in_order,
    runs_wait_for_their_push,
    shared_rows_are_the_same,
    streams_wait_for_their_triggers,
)
from ncc_runtime.verify.wellformed.hardware import (
    memory_suffices,
    ranks_have_cores_of_their_own,
    rings_have_queues,
    semaphores_suffice,
    streams_have_cc_cores,
)
from ncc_runtime.verify.wellformed.routes import routes_exist
from ncc_runtime.verify.wellformed.rule import FormRule, Subject
from ncc_runtime.verify.wellformed.transfers import (
    addresses_lie_in_memory,
    completions_are_reported,
    elements_are_aligned,
    loads_read_memory,
    opcodes_fit_sources,
    registers_are_of_counted_collectives,
    sources_and_targets_are_disjoint,
    sources_are_on_the_chip,
)

STAGES: tuple[tuple[FormRule, ...], ...] = (
    (columns_have_their_cells,),  # exe-W1
    (
        rows_name_what_exists,  # exe-W2
        control_rows_jump,  # exe-W3
        semaphores_and_ranks_exist,  # exe-W4
        ranks_have_cores_of_their_own,  # exe-W5
        placeholders_are_contiguous,  # exe-W11
    ),
    (
        semaphores_suffice,  # exe-W6
        streams_have_cc_cores,  # exe-W7
        rings_have_queues,  # exe-W8
        opcodes_fit_sources,  # exe-W9
        completions_are_reported,  # exe-W10
        streams_wait_for_their_triggers,  # exe-W12
        rows_post_as_their_opcode_says,  # exe-W13
        runs_are_pushed_once_in_order,  # exe-W14
        runs_wait_for_their_push,  # exe-W15
        memory_suffices,  # exe-W16
        addresses_lie_in_memory,  # exe-W17
        elements_are_aligned,  # exe-W18
        sources_are_on_the_chip,  # exe-W19
        routes_exist,  # exe-W20
        shared_rows_are_the_same,  # exe-W21
        sources_and_targets_are_disjoint,  # exe-W22
        loads_read_memory,  # exe-W23
        registers_are_of_counted_collectives,  # exe-W24
    ),
)

MOST_BREACHES = 16
"""Breaches that are reported; a queue whose number is wrong breaks a rule in every cell."""


def prove_well_formed(executable: Executable) -> Proof:
    """Whether every rule of form holds."""
    subject = Subject.of(executable)
    breaches: tuple[Breach, ...] = ()
    for rules in STAGES:
        of_stage = (breach for rule in rules for breach in rule.breaches(subject))
        breaches = tuple(itertools.islice(of_stage, MOST_BREACHES))
        if breaches:
            break
    rows = sum(len(queue.sync.wait_sem) for queue in executable.queues)
    return Proof(
        name="well-formed",
        size=f"{rows} rows of {len(executable.queues)} queues, {executable.ranks} ranks",
        breaches=breaches,
    )
