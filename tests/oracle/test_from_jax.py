"""Functions of JAX go through `from_jax` with the values that JAX computes.

The cases run in two processes, one with as many devices as their meshes have, one with one.
"""

import ast
import json
from pathlib import Path

import pytest

from tests.oracle.children import run_module

CASES = [
    node.name
    for node in ast.parse(Path(__file__).with_name("jax_cases.py").read_text()).body
    if isinstance(node, ast.FunctionDef) and node.decorator_list
]


@pytest.fixture(scope="session", params=[8, 1], ids=["8 devices", "1 device"])
def answers(request):
    flags = f"--xla_force_host_platform_device_count={request.param}"
    return json.loads(run_module("tests.oracle.jax_cases", flags=flags).splitlines()[-1])


@pytest.mark.parametrize("name", CASES)
def test_a_function_of_jax_gives_what_jax_computes(name, answers):
    assert not answers[name], answers[name]
