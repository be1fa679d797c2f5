"""The proof of form: the executable is what the other proofs, and the hardware, take it to be.

Three stages: columns have their cells, numbers stand for something, and then all other rules, which
follow the numbers. Rules are documented in docs/proofs.md.
"""

import itertools

from ncc_runtime.lowering.executable import Executable
from ncc_runtime.verify.form import (
    contract,
    counted,
    hardware,
    layout,
    memory,
    numbers,
    pushes,
    shared,
    transfers,
    ways,
)
from ncc_runtime.verify.form.rule import Rule
from ncc_runtime.verify.form.subject import Subject
from ncc_runtime.verify.proof import Proof

STAGES: tuple[tuple[Rule, ...], ...] = (
    layout.RULES,
    (
        *numbers.RULES,
        hardware.ranks_have_cores_of_their_own,
        contract.placeholders_are_stretches,
    ),
    (
        *hardware.AMOUNTS,
        *transfers.RULES,
        *contract.RULES,
        *pushes.RULES,
        *memory.RULES,
        *ways.RULES,
        *counted.RULES,
        *shared.RULES,
    ),
)

MOST_BREACHES = 16
"""Breaches that are reported; a queue whose number is wrong breaks a rule in every cell."""


def prove_well_formed(executable: Executable) -> Proof:
    """Whether every rule of form holds; rules of a stage are asked if those before it hold."""
    subject = Subject.of(executable)
    breaches: tuple[str, ...] = ()
    for rules in STAGES:
        found = (text for rule in rules for text in rule.breaches(subject))
        breaches = tuple(itertools.islice(found, MOST_BREACHES))
        if breaches:
            break
    rows = sum(len(queue.sync.wait_sem) for queue in executable.queues)
    return Proof(
        name="well-formed",
        size=f"{rows} rows of {len(executable.queues)} queues, {executable.ranks} ranks",
        breaches=breaches,
    )
