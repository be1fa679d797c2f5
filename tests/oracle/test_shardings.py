"""Whole arrays are cut as jax cuts them; all forms of a sharding are read as jaxlib does."""

import json

import numpy as np
import pytest

from ncc_compiler.codegen.parameters import sharding
from ncc_compiler.driver import compile_text
from ncc_runtime.inputs import checked_input
from tests.oracle.children import run_module


@pytest.fixture(scope="session")
def oracle():
    flags = "--xla_force_host_platform_device_count=8"
    return json.loads(run_module("tests.oracle.sharded_parts", flags=flags))


def test_arrays_are_cut_as_jax_cuts_them(oracle) -> None:
    array = np.arange(64, dtype=np.int32).reshape(8, 8)
    for text, parts in oracle["named"]:
        tile = np.array(parts).shape[1:]
        kind = f"s32[{','.join(map(str, tile))}]"
        program = compile_text(
            f"HloModule m, num_partitions=8\nENTRY %m_spmd {{\n"
            f"  %p = {kind} parameter(0), sharding={text}\n  ROOT %n = {kind} negate(%p)\n}}\n"
        ).program
        np.testing.assert_array_equal(checked_input(program, 0, array), parts, err_msg=text)


def test_every_form_is_read_as_jaxlib_reads_it(oracle) -> None:
    for text, tiled in oracle["read"]:
        assert sharding(text[1:-1].replace(", ", ","), 1, 8) == sharding(tiled[1:-1], 1, 8), text
    told = [sharding(tiled[1:-1], 1, 8) is not None for _, tiled in oracle["read"]]
    assert told == [True] * 7 + [False] * 3 + [True] * 2
