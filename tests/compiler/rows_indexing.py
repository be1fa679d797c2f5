"""Right lines of ops that place or order elements, on the parameters of `broken_indexing`."""

GATHER = "collapsed_slice_dims={0}, start_index_map={0}, index_vector_dim=1"
SCATTER = "inserted_window_dims={0}, scatter_dims_to_operand_dims={0}, index_vector_dim=1"

RIGHT_INDEXING = (
    "f32[1,2] dynamic-slice(x, s, s), dynamic_slice_sizes={1,2}",
    "f32[2,0] dynamic-slice(x, v), dynamic_slice_sizes={2,0}",
    "f32[] dynamic-slice(f), dynamic_slice_sizes={}",
    "f32[2,3] dynamic-update-slice(x, x, s, s)",
    "f32[2,3] dynamic-update-slice(x, b, v)",
    f"f32[4,3] gather(x, i), offset_dims={{1}}, {GATHER}, slice_sizes={{1,3}}",
    f"f32[1,4] gather(x, i), offset_dims={{0}}, {GATHER}, slice_sizes={{1,1}}",
    "f32[4] gather(x, w), collapsed_slice_dims={0,1}, start_index_map={1,0}, index_vector_dim=1, "
    "slice_sizes={1,1}, indices_are_sorted=true",
    "f32[2,1] gather(x, j), offset_dims={1}, operand_batching_dims={0}, start_index_map={1}, "
    "start_indices_batching_dims={0}, index_vector_dim=1, slice_sizes={1,1}",
    f"f32[2,3] scatter(x, i, u), update_window_dims={{1}}, {SCATTER}, to_apply=sum",
    f"(f32[2,3], f32[2,3]) scatter(x, x, i, u, u), update_window_dims={{1}}, {SCATTER}, "
    "to_apply=both",
    "f32[2,3] scatter(x, j, d), input_batching_dims={0}, scatter_dims_to_operand_dims={1}, "
    "scatter_indices_batching_dims={0}, index_vector_dim=1, to_apply=sum, unique_indices=true, "
    "inserted_window_dims={1}",
    "f32[7,1] pad(x, f), padding=2_3_0x-1_-1",
    "f32[0,13] pad(x, f), padding=0_-2x2_2_3",
    "f32[] pad(f, f)",
    "f32[2,3] reverse(x), dimensions={1,0}",
    "s32[] get-dimension-size(x), dimensions={1}",
    "f32[2,3] sort(x), dimensions={0}, to_apply=less",
    "(f32[2,3], s32[2,3]) sort(x, k), dimensions={1}, is_stable=true, to_apply=less_of_two",
    "(f32[2,2], s32[2,2]) topk(x), k=2",
    "(f32[2,3], s32[2,3]) topk(x), k=3, largest=false",
    '(f32[2,1], s32[2,1]) custom-call(x), custom_call_target="TopK"',
    '(f32[2,1], s32[2,1]) custom-call(x), custom_call_target="TopK", '
    "called_computations={%less_of_two}",
    '(f32[2,1], s32[2,1]) custom-call(x, k, f, s), custom_call_target="ApproxTopK", '
    'called_computations={%less_of_two}, backend_config={"top_k": 1, "reduction_dim": 1, '
    '"aggregate_to_topk": true}',
    'f32[1,3] custom-call(x, f), custom_call_target="ApproxTopK", called_computations={%less}, '
    "backend_config={aggregate_to_topk = true, reduction_dim = 0 : i64, top_k = 1 : i64}",
    'f32[2,3] custom-call(x), custom_call_target="MoveToHost", api_version=API_VERSION_TYPED_FFI',
)
