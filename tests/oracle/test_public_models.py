"""Published models through `from_jax` on 8 ranks compute what JAX computes on one device."""

import importlib.util
from typing import Any

import jax
import numpy as np
import pytest

import ncc_compiler
import ncc_runtime
from ncc_compiler.options import CompileOptions
from tests.oracle.closeness import assert_close

if any(importlib.util.find_spec(name) is None for name in ("equinox", "flax", "transformers")):
    pytest.skip("the extra `models` is not installed", allow_module_level=True)

from tests.oracle.public_models import AXES, MODELS, PublicModel

TOLERANCE = 2e-5
"""Of values of about 1 that are summed in another order, in float32."""


@pytest.fixture(scope="module", params=list(MODELS))
def model(request: pytest.FixtureRequest) -> PublicModel:
    return MODELS[request.param]()


def test_a_forward_pass(model: PublicModel) -> None:
    arguments = model.parameters, model.batch
    neff = ncc_compiler.from_jax(
        model.forward,
        *arguments,
        mesh=AXES,
        in_shardings=(model.parameter_specs(), model.batch_specs()),
    )
    run = ncc_runtime.load(neff, topology="trn2.48xlarge").run(*arguments)
    assert_as_jax(run.result, jax.jit(model.forward)(*arguments))


def test_a_training_step_with_collectives_beside_compute(model: PublicModel) -> None:
    arguments = model.parameters, model.optimiser.init(model.parameters), model.batch
    specs = model.parameter_specs(), model.state_specs(), model.batch_specs()
    neff = ncc_compiler.from_jax(
        model.step,
        *arguments,
        mesh=AXES,
        in_shardings=specs,
        options=CompileOptions(level=2),
    )
    run = ncc_runtime.load(neff, topology="trn1.32xlarge").run(*arguments)
    assert len(run.collectives) > 0
    assert_as_jax(run.result, jax.jit(model.step)(*arguments))


def assert_as_jax(ours: Any, theirs: Any) -> None:
    """Trees of one structure, whose arrays are close."""
    assert jax.tree.structure(ours) == jax.tree.structure(theirs)
    for left, right in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        assert_close(np.asarray(left), np.asarray(right), TOLERANCE)
