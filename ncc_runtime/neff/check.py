"""The verifier of programs: every broken rule, each with its number.

Two stages. The first asks whether every number stands for something; the second may then follow
the numbers. Rules are documented in docs/neff.md.
"""

from ncc_runtime.neff.program import Program
from ncc_runtime.neff.rules import (
    control,
    memory,
    numbers,
    placeholders,
    regions,
    semaphores,
    types,
)
from ncc_runtime.neff.rules.rule import Rule

STAGES: tuple[tuple[Rule, ...], ...] = (
    (*numbers.RULES, regions.values_are_defined),
    (
        *memory.RULES,
        *types.RULES,
        *regions.RULES,
        *control.RULES,
        *semaphores.RULES,
        *placeholders.RULES,
        *semaphores.ORDER_RULES,
    ),
)


def check(program: Program) -> tuple[str, ...]:
    """Every broken rule as `neff-S4 queue Vector, pc 3: …`; empty for a program that may be run.

    Rules of the second stage are asked only of a program that passes the first.
    """
    for rules in STAGES:
        broken = tuple(text for rule in rules for text in rule.complaints(program))
        if broken:
            return broken
    return ()
