"""Ops that move elements to places that are data: random dimension numbers, any rank its own."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import ncc_compiler
import ncc_runtime
from ncc_compiler.ir.text.printer import print_module
from ncc_compiler.options import CompileOptions
from ncc_runtime.neff.shared.dtypes import DType
from tests import draws_local_ops as local
from tests.draws_graphs import cases
from tests.draws_indexing_ops import INDEXING_OPS
from tests.example_count import examples
from tests.reference_runs import assert_close, reference_outputs, run_text

MOVED = """
take {{
  a = {0}[] parameter(0)
  ROOT b = {0}[] parameter(1)
}}
ENTRY main {{
  x = {0}[4,5] parameter(0)
  u = {0}[2,2] parameter(1)
  at = s32[] parameter(2)
  rows = s32[3,1] parameter(3)
  cut = {0}[2,3] dynamic-slice(x, at, at), dynamic_slice_sizes={{2,3}}
  put = {0}[4,5] dynamic-update-slice(x, u, at, at)
  got = {0}[3,5] gather(x, rows), offset_dims={{1}}, collapsed_slice_dims={{0}}, \
start_index_map={{0}}, index_vector_dim=1, slice_sizes={{1,5}}
  set = {0}[4,5] scatter(x, rows, got), update_window_dims={{1}}, inserted_window_dims={{0}}, \
scatter_dims_to_operand_dims={{0}}, index_vector_dim=1, to_apply=take
  ROOT r = ({0}[2,3], {0}[4,5], {0}[3,5], {0}[4,5]) tuple(cut, put, got, set)
}}
"""


@pytest.mark.parametrize("dtype", list(DType), ids=lambda dtype: dtype.value)
def test_elements_of_every_type_move_bit_by_bit(dtype):
    size = dtype.size_bytes
    x = (np.arange(20) % 2 if dtype.bits < 8 else np.arange(20)).reshape(1, 4, 5)
    raw = [array.astype(np.uint8) for array in (x, x[:, :2, 3:])]
    inputs = [np.repeat(array, size, axis=-1).view(dtype.numpy) for array in raw]
    rows = np.array([[[3], [0], [2]]], np.int32)
    inputs += [np.array([1], np.int32), rows]
    run = ncc_runtime.load(ncc_compiler.compile_text(MOVED.format(dtype.value))).run(inputs)
    put = inputs[0].copy()
    put[:, 1:3, 1:3] = inputs[1]
    wanted = (inputs[0][:, 1:3, 1:4], put, inputs[0][:, [3, 0, 2]], inputs[0])
    for found, right in zip(run.outputs, wanted, strict=True):
        assert found.dtype == dtype.numpy
        assert found.tobytes() == right.tobytes()


NOTHING = """ENTRY e {
  x = s32[4,5] parameter(0)
  rows = s32[3,1] parameter(1)
  ROOT got = s32[3,5] gather(x, rows), offset_dims={1}, collapsed_slice_dims={0}, \
start_index_map={0}, index_vector_dim=1, slice_sizes={0,5}
}
"""


@pytest.mark.parametrize("level", [0, 1])
def test_a_gather_through_windows_that_are_collapsed_to_nothing_reads_zeros_as_xla_does(level):
    inputs = [np.ones((1, 4, 5), np.int32), np.array([[[3], [0], [2]]], np.int32)]
    neff = ncc_compiler.compile_text(NOTHING, CompileOptions(level=level))
    (found,) = ncc_runtime.load(neff).run(inputs).outputs
    (meant,) = run_text(NOTHING, *inputs)
    assert found.tolist() == meant.tolist() == [[[0] * 5] * 3]


many = settings(max_examples=examples(60), suppress_health_check=list(HealthCheck))


@pytest.mark.parametrize("op", INDEXING_OPS, ids=lambda op: op.__name__)
@many
@given(data=st.data())
def test_an_indexing_op_computes_what_the_graph_means(op, data):
    ops = st.sampled_from([op, local.new_parameter, op])
    case = data.draw(cases(4, ops))
    neff = ncc_compiler.compile_text(print_module(case.module))
    run = ncc_runtime.load(neff, topology="trn2.48xlarge").run(list(case.inputs))
    expected = reference_outputs(case.module, case.inputs)
    for actual, wanted, tolerance in zip(run.outputs, expected, case.tolerances, strict=True):
        assert_close(actual, wanted, tolerance)
