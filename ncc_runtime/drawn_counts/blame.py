"""Which parameters that a seed filled are behind counts that do not fit."""

from collections.abc import Container

from ncc_runtime.drawn_counts.sources import Sources
from ncc_runtime.execution.count_rules import Table
from ncc_runtime.neff.program import Program
from ncc_runtime.neff.stages import stages_of

NAMED = 4
"""Parameters that a message names."""


def random_parameters(program: Program, fault: str, given: Container[int]) -> str:
    """Those not given from which the tables follow that a fault is about, as a message says it.

    A fault begins with the name of its collective.
    """
    found: dict[int, str] = {}
    known = 0
    for stage in stages_of(program):
        sources = Sources(stage, (), len)
        tables = [
            tensor
            for one in stage.program.placeholders
            if one.op.is_counted and fault.startswith(f"{Table.of(stage.program, one).name}: ")
            for tensor in one.counts
        ]
        reached = {one for tensor in tables for one in sources.reaching(tensor)}
        for number in sorted(known + one for one in reached):
            tensor = stage.program.inputs[number - known]
            if number not in given:
                found[number] = f"arg{number} {stage.program.tensors[tensor].type_text}"
        known += len(stage.program.inputs)
    names = list(found.values())
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return f"{', '.join(names[:NAMED])}{more}"
