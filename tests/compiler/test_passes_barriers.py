"""Optimisation barriers: nothing is merged across them, and what nobody reads behind them goes."""

import pytest

from ncc_compiler.ir.graph import Module
from ncc_compiler.options import CompileOptions
from ncc_compiler.passes.manager import run_passes
from ncc_compiler.pipelines import pipeline
from tests.compiler.small_modules import load

PAIR = "(f32[8], f32[8])"


def optimised(module: Module, level: int) -> Module:
    return run_passes(module, pipeline(CompileOptions(level=level)), verify_each=True)


def tanhs(module: Module) -> int:
    """Computations of a hyperbolic tangent, fused or not."""
    return sum(node.op == "tanh" for body in module.computations.values() for node in body.nodes)


RECOMPUTED = (
    "%x = f32[8] parameter(0)",
    "%a = f32[8] tanh(%x)",
    "%t = (f32[8], f32[8]) tuple(%x, %a)",
    f"%b = {PAIR} opt-barrier(%t)",
    "%y = f32[8] get-tuple-element(%b), index=0",
    "%c = f32[8] tanh(%y)",
    "%r = f32[8] multiply(%a, %c)",
)


@pytest.mark.parametrize("level", [0, 1, 2])
def test_what_is_computed_again_behind_a_barrier_is_not_merged(level: int) -> None:
    module = optimised(load(*RECOMPUTED), level)
    assert tanhs(module) == 2
    without = [line for line in RECOMPUTED if not line.startswith(("%t", "%b"))]
    merged = [line.replace("get-tuple-element(%b), index=0", "copy(%x)") for line in without]
    assert tanhs(optimised(load(*merged), level)) == (1 if level else 2)


@pytest.mark.parametrize("level", [1, 2])
def test_what_nobody_reads_behind_a_barrier_goes(level: int) -> None:
    module = optimised(
        load(
            "%x = f32[8] parameter(0)",
            "%s = f32[8] sine(%x)",
            "%e = f32[8] exponential(%x)",
            "%t = (f32[8], f32[8]) tuple(%s, %e)",
            f"%b = {PAIR} opt-barrier(%t)",
            "%y = f32[8] get-tuple-element(%b), index=1",
            "%z = f32[8] get-tuple-element(%b), index=0",
            "%r = f32[8] negate(%y)",
        ),
        level,
    )
    ops = [node.op for body in module.computations.values() for node in body.nodes]
    assert "sine" not in ops
    assert ops.count("exponential") == ops.count("opt-barrier") == 1


def test_two_barriers_of_one_value_stay_two() -> None:
    module = optimised(
        load(
            "%x = f32[8] parameter(0)",
            "%p = f32[8] opt-barrier(%x)",
            "%q = f32[8] opt-barrier(%x)",
            "%a = f32[8] tanh(%p)",
            "%b = f32[8] tanh(%q)",
            "%r = f32[8] add(%a, %b)",
        ),
        1,
    )
    assert tanhs(module) == 2
