"""Wrong lines of ops that place or order elements: the rule and the column of the complaint."""

from tests.compiler.reading import SUM

PREAMBLE = (
    SUM
    + """both {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  c = f32[] parameter(2)
  d = f32[] parameter(3)
  e = f32[] add(a, c)
  f = f32[] multiply(b, d)
  ROOT g = (f32[], f32[]) tuple(e, f)
}
less {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = pred[] compare(a, b), direction=LT
}
less_of_two {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  c = s32[] parameter(2)
  d = s32[] parameter(3)
  ROOT e = pred[] compare(a, b), direction=LT
}
x = f32[2,3] parameter(0)
i = s32[4] parameter(1)
j = s32[2] parameter(2)
s = s32[] parameter(3)
f = f32[] parameter(4)
v = s32[2] parameter(5)
w = s32[4,2] parameter(6)
u = f32[4,3] parameter(7)
d = f32[2] parameter(8)
b = f32[1,1] parameter(9)
k = s32[2,3] parameter(10)
t = u32[] parameter(11)
c = c64[3] parameter(12)
z = s32[3] parameter(13)
long = pred[3000000000] parameter(14)
"""
)
LINE = PREAMBLE.count("\n") + 1

_G = "f32[4,3] gather(x, i), "
_S = "f32[2,3] scatter(x, i, u), "


def _gather(**changed: str) -> str:
    values = {
        "offset_dims": "{1}",
        "collapsed_slice_dims": "{0}",
        "start_index_map": "{0}",
        "index_vector_dim": "1",
        "slice_sizes": "{1,3}",
    }
    return ", ".join(f"{key}={value}" for key, value in {**values, **changed}.items())


def _scatter(**changed: str) -> str:
    values = {
        "update_window_dims": "{1}",
        "inserted_window_dims": "{0}",
        "scatter_dims_to_operand_dims": "{0}",
        "index_vector_dim": "1",
        "to_apply": "sum",
    }
    return ", ".join(f"{key}={value}" for key, value in {**values, **changed}.items())


def _batched(indices_dims: str, operand: str = "x") -> str:
    """A gather that pairs dimension 0 of the operand."""
    numbers = _gather(
        collapsed_slice_dims="{}",
        operand_batching_dims="{0}",
        start_indices_batching_dims=indices_dims,
        start_index_map="{1}",
        slice_sizes="{1,1}",
    )
    return f"f32[2,1] gather({operand}, j), {numbers}"


def _batched_scatter(indices_dims: str, operand: str = "x") -> str:
    numbers = _scatter(
        update_window_dims="{}",
        inserted_window_dims="{1}",
        input_batching_dims="{0}",
        scatter_indices_batching_dims=indices_dims,
        scatter_dims_to_operand_dims="{1}",
    )
    kind = "f32[4,3]" if operand == "u" else "f32[2,3]"
    return f"{kind} scatter({operand}, j, d), {numbers}"


def _at(line: str, part: str, rule: str) -> tuple[str, str, int]:
    """The complaint stands where the part stands in the line."""
    return line, rule, line.index(part) + 1


WRONG_INDEXING = [
    _at("f32[1,2] dynamic-slice(x, s), dynamic_slice_sizes={1,2}", "s)", "dynamic-slice-C1"),
    _at("f32[1,2] dynamic-slice(x, f, f), dynamic_slice_sizes={1,2}", "f, f", "dynamic-slice-C2"),
    _at("f32[1,2] dynamic-slice(x, s, t), dynamic_slice_sizes={1,2}", "t)", "dynamic-slice-C2"),
    _at("f32[1] dynamic-slice(x, s, s), dynamic_slice_sizes={1}", "dynamic_slice_sizes",
        "dynamic-slice-C3"),
    _at("f32[1,4] dynamic-slice(x, v), dynamic_slice_sizes={1,4}", "dynamic_slice_sizes",
        "dynamic-slice-C3"),
    _at("f32[2,3] dynamic-update-slice(x, b, i)", "i)", "dynamic-update-slice-C1"),
    _at("f32[2,3] dynamic-update-slice(x, b, f, f)", "f, f", "dynamic-update-slice-C2"),
    _at("f32[2,3] dynamic-update-slice(x, d, s, s)", "d,", "dynamic-update-slice-C3"),
    _at("f32[2,3] dynamic-update-slice(x, u, s, s)", "u,", "dynamic-update-slice-C4"),
    _at("f32[4,3] gather(x, u), " + _gather(), "u)", "gather-C1"),
    _at(_G + _gather(index_vector_dim="2"), "index_vector_dim", "gather-C1"),
    _at(_G + _gather(start_index_map="{0,1}"), "start_index_map", "gather-C2"),
    _at(_G + _gather(start_index_map="{2}"), "start_index_map", "gather-C3"),
    _at(_batched("{0}").replace("start_index_map={1}", "start_index_map={0}"), "start_index_map",
        "gather-C3"),
    _at(_G + _gather(slice_sizes="{1,4}"), "slice_sizes", "gather-C4"),
    _at(_G + _gather(collapsed_slice_dims="{2}"), "collapsed_slice_dims", "gather-C5"),
    _at(_G + _gather(collapsed_slice_dims="{1,0}"), "collapsed_slice_dims", "gather-C5"),
    _at(_G + _gather(slice_sizes="{2,3}"), "slice_sizes", "gather-C6"),
    _at(_G + _gather(offset_dims="{0,1}"), "offset_dims", "gather-C7"),
    _at(_G + _gather(offset_dims="{2}"), "offset_dims", "gather-C8"),
    _at(_batched("{1}"), "start_indices_batching_dims", "gather-C9"),
    _at(_batched("{0}", "u"), "start_indices_batching_dims", "gather-C10"),
    _at("f32[2,3] scatter(x, u, u), " + _scatter(), "u, u", "scatter-C1"),
    _at(_S + _scatter(scatter_dims_to_operand_dims="{0,1}"), "scatter_dims", "scatter-C2"),
    _at(_S + _scatter(scatter_dims_to_operand_dims="{-1}"), "scatter_dims", "scatter-C3"),
    _at("f32[2,3] scatter(x, i, k), " + _scatter(), "k)", "scatter-C4"),
    _at("(f32[2,3], f32[2,3]) scatter(x, x, i, u, d), " + _scatter(to_apply="both"), "d)",
        "scatter-C5"),
    _at(_S + _scatter(inserted_window_dims="{0,0}"), "inserted_window_dims", "scatter-C6"),
    _at(_S + _scatter(update_window_dims="{}"), "update_window_dims", "scatter-C7"),
    _at(_S + _scatter(update_window_dims="{5}"), "update_window_dims", "scatter-C8"),
    _at("f32[2,3] scatter(x, j, u), " + _scatter(), "u)", "scatter-C9"),
    _at("f32[2,3] scatter(x, z, u), " + _scatter(update_window_dims="{0}",
        inserted_window_dims="{1}", scatter_dims_to_operand_dims="{1}"), "u)", "scatter-C10"),
    _at(_batched_scatter("{1}"), "scatter_indices_batching_dims", "scatter-C11"),
    _at(_batched_scatter("{0}", "u"), "scatter_indices_batching_dims", "scatter-C12"),
    _at(_S + _scatter(to_apply="less"), "to_apply", "scatter-C13"),
    _at("f32[2,3] pad(x, f), padding=0_0", "padding", "pad-C1"),
    _at("f32[2,3] pad(x, s), padding=0_0x0_0", "s)", "pad-C2"),
    _at("f32[2,3] pad(x, f), padding=0_-3x0_0", "padding", "pad-C3"),
    _at("f32[2,3] pad(x, f), padding=0_0x5_0_-1", "padding", "pad-C3"),
    _at("f32[2,3] reverse(x), dimensions={1,1}", "dimensions", "reverse-C1"),
    _at("s32[] get-dimension-size(x), dimensions={2}", "dimensions", "get-dimension-size-C1"),
    _at("s32[] get-dimension-size(long), dimensions={0}", "long", "get-dimension-size-C2"),
    _at("(f32[2,3], s32[2]) sort(x, j), dimensions={0}, to_apply=less_of_two", "j)", "sort-C1"),
    _at("f32[2,3] sort(x), dimensions={2}, to_apply=less", "dimensions", "sort-C2"),
    _at("f32[2,3] sort(x), dimensions={0}, to_apply=sum", "to_apply", "sort-C3"),
    _at("(f32[2,4], s32[2,4]) topk(x), k=4", "k=", "topk-C1"),
    _at("(c64[2], s32[2]) topk(c), k=2", "c)", "topk-C2"),
    _at('f32[2,3] custom-call(x), custom_call_target="What"', "custom_call", "custom-call-C1"),
    _at('s32[2,3] custom-call(x), custom_call_target="MoveToHost"', "custom-call(",
        "custom-call-C2"),
    _at('f32[2,3] custom-call(x), custom_call_target="ncc.barrier", backend_config={"to": 1}',
        '{"to', "custom-call-C3"),
    _at('(f32[2,4], s32[2,4]) custom-call(x), custom_call_target="TopK"', "custom-call(",
        "custom-call-C2"),
    _at('f32[2,4] custom-call(x, f), custom_call_target="PartialReduce"', "custom_call_target",
        "custom-call-C1"),
    *(
        _at('f32[1,3] custom-call(x, f), custom_call_target="ApproxTopK", '
            f"called_computations={{%less}}, backend_config={{{options}}}",
            "backend_config", "custom-call-C4")
        for options in (
            '"top_k": 1, "reduction_dim": 0, "aggregate_to_topk": false',
            '"top_k": 1, "aggregate_to_topk": true',
            '"top_k": 3, "reduction_dim": 0, "aggregate_to_topk": true',
            '"top_k": 1, "reduction_dim": 2, "aggregate_to_topk": true',
        )
    ),
    _at('f32[1,3] custom-call(x, j), custom_call_target="ApproxTopK", '
        'called_computations={%less}, backend_config={"top_k": 1, "reduction_dim": 0, '
        '"aggregate_to_topk": true}', "custom-call(", "custom-call-C2"),
    _at('f32[1,3] custom-call(x, f), custom_call_target="ApproxTopK", '
        'backend_config={"top_k": 1, "reduction_dim": 0, "aggregate_to_topk": true}',
        "custom-call(", "custom-call-C2"),
    _at('f32[1,3] custom-call(x, f), custom_call_target="ApproxTopK", '
        'called_computations={%sum}, backend_config={"top_k": 1, "reduction_dim": 0, '
        '"aggregate_to_topk": true}', "called_computations", "custom-call-C2"),
    _at('f32[2,3] custom-call(x), custom_call_target="lapack_strsm_ffi", backend_config={}',
        "backend_config", "custom-call-C4"),
]  # fmt: skip
