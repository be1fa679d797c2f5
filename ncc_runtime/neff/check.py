"""The verifier of programs: every broken rule, each with its number.

Three stages. The first checks that every id exists, so that rules of the second may follow ids.
Those of the third follow the order that the second finds to be one. Rules are documented in
docs/neff.md.
"""

from ncc_runtime.neff.program import Program
from ncc_runtime.neff.rules import (
    contents,
    control,
    fusions,
    memory,
    numbers,
    placeholders,
    regions,
    semaphores,
    types,
)
from ncc_runtime.neff.rules.rule import Rule

STAGES: tuple[tuple[Rule, ...], ...] = (
    (*numbers.RULES, regions.values_are_defined, fusions.values_are_defined),
    (
        *memory.RULES,
        *types.RULES,
        *regions.RULES,
        *fusions.RULES,
        *control.RULES,
        *semaphores.RULES,
        *placeholders.RULES,
        *semaphores.ORDER_RULES,
    ),
    contents.RULES,
)


def check(program: Program) -> tuple[str, ...]:
    """Every broken rule as `neff-S4 queue Vector, pc 3: …`; empty for a program that may be run.

    A stage runs only if the one before finds nothing.
    """
    for rules in STAGES:
        broken = tuple(text for rule in rules for text in rule.complaints(program))
        if broken:
            return broken
    return ()
