"""Programs in the style of XLA's own tests of collectives: as short as its parser allows.

Written for this project, not copied. Each uses spellings that no printer of XLA makes but its
parser takes: types, names, dimensions and headings left out, operations and computations in place.
"""

ADD = """add {
  x = f32[] parameter(0)
  y = f32[] parameter(1)
  ROOT sum = add(x, y)
}
"""
MAX = "max { x = f32[] parameter(0) y = f32[] parameter(1) ROOT m = maximum(x, y) }\n"

FOUR, EIGHT = "num_partitions=4", "replica_count=8"


def _entry(header: str, body: str, before: str = ADD) -> str:
    return f"HloModule m, {header}\n{before}ENTRY e {{\n{body}\n}}\n"


TEXTS: dict[str, str] = {
    # permutes, whole and in cycles
    "permute_of_a_copy": _entry(
        FOUR,
        "p = f32[4] parameter(0)\nc = copy(p)\n"
        "ROOT r = f32[4] collective-permute(c), channel_id=1, "
        "source_target_pairs={{0,1},{1,2},{2,3},{3,0}}",
    ),
    "permute_forward_then_back": _entry(
        FOUR,
        "p = u32[] partition-id()\nf = f32[] convert(p)\nb = f32[8] broadcast(f)\n"
        "there = f32[8] collective-permute(b), source_target_pairs={{0,1},{1,2},{2,3}}, "
        "channel_id=1\n"
        "back = f32[8] collective-permute(there), source_target_pairs={{1,0},{2,1},{3,2}}, "
        "channel_id=2\nROOT r = tuple(there, back)",
    ),
    "permute_written_without_types_in_a_tuple": _entry(
        "num_partitions=2",
        "p = f32[2,3] parameter(0)\n"
        "s = f32[2,3] collective-permute(p), channel_id=3, source_target_pairs={{0,1},{1,0}}\n"
        "t = tuple(p, s)\na = get-tuple-element(t), index=0\nb = get-tuple-element(t), index=1\n"
        "ROOT d = subtract(a, b)",
    ),
    "two_permutes_with_their_own_channels_and_metadata": _entry(
        FOUR,
        "p = f32[4] parameter(0)\n"
        'a = f32[4] collective-permute(p), metadata={op_name="first" source_line=3}, '
        "source_target_pairs={{0,3}}, channel_id=1\n"
        "b = f32[4] collective-permute(p), source_target_pairs={{3,0}}, channel_id=2, "
        'frontend_attributes={_xla_note="second"}\n'
        "ROOT r = add(a, b)",
    ),
    "permute_selected_by_partition": _entry(
        FOUR,
        "p = f32[4] parameter(0)\nid = partition-id()\nzero = u32[] constant(0)\n"
        "first = compare(id, zero), direction=EQ\nwide = pred[4] broadcast(first)\n"
        "s = f32[4] collective-permute(p), channel_id=1, source_target_pairs={{0,1},{1,2},{2,3}}\n"
        "ROOT r = select(wide, p, s)",
    ),
    # combiners: several collectives side by side
    "all_reduces_side_by_side": _entry(
        EIGHT,
        "p = f32[32] parameter(0)\nq = f32[32] parameter(1)\n"
        "a = f32[32] all-reduce(p), replica_groups={}, to_apply=add\n"
        "b = f32[32] all-reduce(q), replica_groups={}, to_apply=add\nROOT t = tuple(a, b)",
    ),
    "all_reduce_of_a_splat": _entry(
        EIGHT,
        "k = f32[16,2] constant(0)\n"
        "ROOT r = f32[16,2] all-reduce(k), to_apply=add, replica_groups={{0,1,2,3},{4,5,6,7}}",
    ),
    "all_gathers_along_two_dimensions": _entry(
        FOUR,
        "p = f32[4,4] parameter(0)\n"
        "a = f32[16,4] all-gather(f32[4,4] p), replica_groups={}, dimensions={0}\n"
        "b = f32[4,16] all-gather(f32[4,4] p), dimensions={1}, replica_groups={}\n"
        "ROOT r = (f32[16,4], f32[4,16]) tuple(a, b)",
    ).replace(FOUR, "replica_count=4"),
    "variadic_all_gather": _entry(
        "replica_count=2",
        "p = f32[4] parameter(0)\nq = f32[2,2] parameter(1)\n"
        "g = (f32[8], f32[4,2]) all-gather(p, q), replica_groups={{0,1}}, dimensions={0}\n"
        "ROOT r = get-tuple-element(g), index=1",
    ),
    "all_gather_with_global_ids": _entry(
        "replica_count=2, num_partitions=2",
        "p = f32[1,8]{1,0} parameter(0)\n"
        "ROOT g = f32[4,8]{1,0} all-gather(f32[1,8]{1,0} p), use_global_device_ids=true, "
        "replica_groups={{0,1,2,3}}, channel_id=1, dimensions={0}",
    ),
    "reduce_scatters_of_one_group": _entry(
        "num_partitions=4",
        "p = f32[8] parameter(0)\nq = f32[8] parameter(1)\n"
        "a = f32[2] reduce-scatter(p), dimensions={0}, replica_groups={{0,1,2,3}}, "
        "channel_id=1, use_global_device_ids=true, to_apply=add\n"
        "b = f32[2] reduce-scatter(q), dimensions={0}, replica_groups={{0,1,2,3}}, "
        "channel_id=2, use_global_device_ids=true, to_apply=add\nROOT t = tuple(a, b)",
    ),
    "all_reduce_with_control_predecessors": _entry(
        EIGHT,
        "p = f32[4] parameter(0)\na = f32[4] all-reduce(p), to_apply=add\n"
        "ROOT b = f32[4] all-reduce(p), to_apply=add, control-predecessors={a}",
    ),
    # simplifiers
    "all_reduce_of_all_equal_values": _entry(
        EIGHT,
        "p = f32[8] parameter(0), parameter_replication={true}\n"
        "ar = f32[8] all-reduce(p), replica_groups={}, to_apply=max\nROOT n = negate(ar)",
        MAX,
    ),
    "all_reduce_of_one": _entry(
        EIGHT,
        "p = f32[8] parameter(0)\n"
        "ROOT ar = f32[8] all-reduce(p), replica_groups={{0},{1},{2},{3},{4},{5},{6},{7}}, "
        "to_apply=add",
    ),
    "all_reduce_of_a_folded_group": _entry(
        EIGHT,
        "p = f32[2] parameter(0)\n"
        "a = f32[2] all-reduce(p), replica_groups=[4,2]<=[8], to_apply=add\n"
        "ROOT b = f32[2] all-reduce(a), replica_groups=[2,4]<=[4,2]T(1,0), to_apply=add",
    ),
    "reassociated_all_reduces": _entry(
        EIGHT,
        "p = f32[8] parameter(0)\nq = f32[8] parameter(1)\n"
        "a = f32[8] all-reduce(p), replica_groups={}, to_apply=add\n"
        "b = f32[8] all-reduce(q), replica_groups={}, to_apply=add\nROOT s = add(a, copy(b))",
    ),
    "all_reduce_times_a_constant": _entry(
        EIGHT,
        "p = f32[8] parameter(0)\nar = f32[8] all-reduce(p), to_apply=add\n"
        "ROOT m = multiply(ar, f32[8] broadcast(f32[] constant(0.125)))",
    ),
    "all_reduce_then_slice_of_own_part": _entry(
        EIGHT,
        "p = f32[16] parameter(0)\nar = f32[16] all-reduce(p), replica_groups={}, to_apply=add\n"
        "id = replica-id()\ntwo = u32[] constant(2)\noffset = multiply(id, two)\n"
        "ROOT ds = f32[2] dynamic-slice(ar, offset), dynamic_slice_sizes={2}",
    ),
    "own_part_by_a_table": _entry(
        EIGHT,
        "p = f32[16] parameter(0)\nar = f32[16] all-reduce(p), to_apply=add\n"
        "table = s32[8] constant({0, 2, 4, 6, 8, 10, 12, 14,})\nid = replica-id()\n"
        "one = s32[1] dynamic-slice(table, id), dynamic_slice_sizes={1}\n"
        "offset = s32[] reshape(one)\n"
        "ROOT ds = f32[2] dynamic-slice(ar, offset), dynamic_slice_sizes={2}",
    ),
    # decomposers
    "all_to_all_along_a_dimension": _entry(
        FOUR,
        "p = f32[8,16] parameter(0)\n"
        "ROOT a = f32[8,16] all-to-all(p), channel_id=1, replica_groups={{0,1,2,3}}, "
        "dimensions={1}",
    ),
    "all_to_all_of_a_tuple": _entry(
        "replica_count=2",
        "p = f32[4] parameter(0)\nq = f32[4] parameter(1)\n"
        "a = (f32[4], f32[4]) all-to-all(p, q), replica_groups={{0,1}}\n"
        "x = get-tuple-element(a), index=0\ny = get-tuple-element(a), index=1\n"
        "ROOT c = concatenate(negate(x), y), dimensions={0}",
    ),
    "all_gather_as_an_all_reduce": _entry(
        "replica_count=4",
        "p = f32[2,3] parameter(0)\nid = replica-id()\nzero = u32[] constant(0)\n"
        "two = u32[] constant(2)\noffset = multiply(id, two)\nnothing = f32[8,3] constant(0)\n"
        "u = f32[8,3] dynamic-update-slice(nothing, p, offset, zero)\n"
        "ROOT ar = f32[8,3] all-reduce(u), replica_groups={}, to_apply=add",
    ),
    "broadcast_to_its_group": _entry(
        "replica_count=4",
        "p = f32[4] parameter(0)\n"
        "ROOT b = f32[4] collective-broadcast(p), replica_groups={{1,0,2,3}}",
    ),
    "reduce_scatter_as_two_steps": _entry(
        "replica_count=4",
        "p = f32[8] parameter(0)\n"
        "ar = f32[8] all-reduce(p), replica_groups={{0,1},{2,3}}, to_apply=add\n"
        "pairs = u32[4] constant({0,4,0,4})\n"
        "o = u32[1] dynamic-slice(pairs, replica-id()), dynamic_slice_sizes={1}\n"
        "ROOT s = f32[4] dynamic-slice(ar, u32[] reshape(o)), dynamic_slice_sizes={4}",
    ),
    # asynchronous forms
    "all_reduce_in_two_halves": _entry(
        EIGHT,
        "p = f32[1024] parameter(0)\n"
        "s = f32[1024] all-reduce-start(p), to_apply=add, replica_groups={}\n"
        "n = negate(p)\nd = f32[1024] all-reduce-done(s)\nROOT r = add(n, d)",
    ),
    "all_gather_in_two_halves": _entry(
        "replica_count=2",
        "p = f32[4] parameter(0)\n"
        "s = (f32[4], f32[8]) all-gather-start(p), dimensions={0}, replica_groups={{0,1}}\n"
        "ROOT d = f32[8] all-gather-done((f32[4], f32[8]) s)",
    ),
    "permute_in_two_halves": _entry(
        "num_partitions=2",
        "p = f32[4] parameter(0)\n"
        "s = (f32[4], f32[4], u32[], u32[]) collective-permute-start(p), channel_id=1, "
        "source_target_pairs={{0,1}}\nROOT d = f32[4] collective-permute-done(s)",
    ),
    "reduce_scatter_in_two_halves": _entry(
        "replica_count=2",
        "p = f32[8] parameter(0)\n"
        "s = ((f32[8]), f32[4]) reduce-scatter-start(p), dimensions={0}, to_apply=add, "
        "replica_groups={{0,1}}\nROOT d = f32[4] reduce-scatter-done(s)",
    ),
    "async_start_with_its_computation_in_place": _entry(
        "replica_count=2",
        "p = f32[8] parameter(0)\n"
        "s = ((f32[8]), f32[4], u32[]) async-start(p), calls={\n"
        "  q = f32[8] parameter(0)\n"
        "  ROOT rs = f32[4] reduce-scatter(q), dimensions={0}, to_apply=add, "
        "replica_groups={{0,1}}\n}\n"
        "ROOT d = f32[4] async-done(s)",
    ),
    "call_start_with_its_computation_in_place": _entry(
        EIGHT,
        "p = f32[8] parameter(0)\n"
        "s = ((f32[8]), f32[8], s32[]) call-start(p), to_apply={\n"
        "  q = f32[8] parameter(0)\n  m = multiply(q, q)\n  ROOT n = negate(m)\n}, "
        'async_execution_thread="main"\n'
        "u = ((f32[8]), f32[8], s32[]) call-update(s)\nROOT d = f32[8] call-done(u)",
    ),
    "fusion_with_its_computation_in_place": _entry(
        EIGHT,
        "p = f32[8] parameter(0)\n"
        "f = f32[8] fusion(p), kind=kLoop, calls={ q = f32[8] parameter(0) ROOT a = add(q, q) }\n"
        "ROOT r = f32[8] all-reduce(f), to_apply=add",
    ),
    "conditional_with_its_branches_in_place": _entry(
        EIGHT,
        "p = f32[4] parameter(0)\ni = s32[] convert(u32[] replica-id())\n"
        "ROOT c = f32[4] conditional(i, p, p, p), branch_computations={\n"
        "  { q = f32[4] parameter(0) ROOT n = negate(q) },\n  same,\n"
        "  { q = f32[4] parameter(0) ROOT n = add(q, q) } }",
        "same { q = f32[4] parameter(0) ROOT c = copy(q) }\n",
    ),
    # loops
    "loop_that_sums_on_every_turn": _entry(
        "replica_count=4",
        "p = f32[4] parameter(0)\nzero = s32[] constant(0)\nt = tuple(zero, p)\n"
        "w = while(t), condition=cond, body=body\nROOT r = get-tuple-element(w), index=1",
        ADD + "cond {\n  t = (s32[], f32[4]) parameter(0)\n  i = get-tuple-element(t), index=0\n"
        "  three = s32[] constant(3)\n  ROOT lt = compare(i, three), direction=LT\n}\n"
        "body {\n  t = (s32[], f32[4]) parameter(0)\n  i = get-tuple-element(t), index=0\n"
        "  x = get-tuple-element(t), index=1\n"
        "  ar = f32[4] all-reduce(x), replica_groups={{0,1},{2,3}}, to_apply=add\n"
        "  one = s32[] constant(1)\n  next = add(i, one)\n  ROOT n = tuple(next, ar)\n}\n",
    ),
    "loop_that_updates_a_slice": _entry(
        "replica_count=2",
        "p = f32[3,8] parameter(0)\nzero = s32[] constant(0)\nt = tuple(zero, p)\n"
        "w = (s32[], f32[3,8]) while(t), condition=cond, body=body\n"
        "ROOT r = f32[3,8] get-tuple-element(w), index=1",
        ADD + "cond {\n  t = (s32[], f32[3,8]) parameter(0)\n  i = get-tuple-element(t), index=0\n"
        "  three = s32[] constant(3)\n  ROOT lt = compare(i, three), direction=LT\n}\n"
        "body {\n  t = (s32[], f32[3,8]) parameter(0)\n  i = get-tuple-element(t), index=0\n"
        "  x = get-tuple-element(t), index=1\n  zero = s32[] constant(0)\n"
        "  row = f32[1,8] dynamic-slice(x, i, zero), dynamic_slice_sizes={1,8}\n"
        "  twice = multiply(row, f32[1,8] broadcast(f32[] constant(2)))\n"
        "  ar = f32[1,8] all-reduce(twice), replica_groups={}, to_apply=add\n"
        "  y = f32[3,8] dynamic-update-slice(x, ar, i, zero)\n"
        "  ROOT n = tuple(add(i, s32[] constant(1)), y)\n}\n",
    ),
    "loop_that_passes_round_a_ring": _entry(
        FOUR,
        "p = f32[4] parameter(0)\nzero = s32[] constant(0)\n"
        "w = while(tuple(zero, p, p)), body=body, condition=cond\n"
        "ROOT r = get-tuple-element(w), index=2",
        "cond {\n  t = (s32[], f32[4], f32[4]) parameter(0)\n"
        "  i = get-tuple-element(t), index=0\n"
        "  ROOT lt = compare(i, s32[] constant(3)), direction=LT\n}\n"
        "body {\n  t = (s32[], f32[4], f32[4]) parameter(0)\n  i = get-tuple-element(t), index=0\n"
        "  moving = get-tuple-element(t), index=1\n  total = get-tuple-element(t), index=2\n"
        "  moved = f32[4] collective-permute(moving), channel_id=1, "
        "source_target_pairs={{0,1},{1,2},{2,3},{3,0}}\n"
        "  ROOT n = tuple(add(i, s32[] constant(1)), moved, add(total, moved))\n}\n",
    ),
    # einsums cut into parts
    "gathered_weights": _entry(
        FOUR,
        "x = f32[8,16] parameter(0)\nw = f32[4,32] parameter(1)\n"
        "g = f32[16,32] all-gather(w), channel_id=1, replica_groups={{0,1,2,3}}, dimensions={0}, "
        "use_global_device_ids=true\n"
        "ROOT d = dot(x, g), lhs_contracting_dims={1}, rhs_contracting_dims={0}",
    ),
    "partial_products_scattered": _entry(
        FOUR,
        "x = f32[8,4] parameter(0)\nw = f32[4,16] parameter(1)\n"
        "d = dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}\n"
        "ROOT rs = f32[2,16] reduce-scatter(d), channel_id=1, replica_groups={{0,1,2,3}}, "
        "dimensions={0}, to_apply=add, use_global_device_ids=true",
    ),
    "batched_product_of_parts": _entry(
        FOUR,
        "x = f32[2,3,4] parameter(0)\n"
        "d = dot(x, x), lhs_batch_dims={0}, rhs_batch_dims={0}, lhs_contracting_dims={2}, "
        "rhs_contracting_dims={2}\n"
        "ROOT r = f32[2,3,3] all-reduce(d), to_apply=add, channel_id=7",
    ),
    # regions
    "map_without_dimensions": _entry(
        EIGHT,
        "p = f32[2,3] parameter(0)\nm = f32[2,3] map(p, p), to_apply=add\n"
        "ROOT r = f32[2,3] all-reduce(m), to_apply=add",
    ),
    "reduce_with_its_region_in_place": _entry(
        EIGHT,
        "p = f32[4,8] parameter(0)\nz = f32[] constant(0)\n"
        "r = reduce(p, z), dimensions={1}, to_apply={\n"
        "  a = f32[] parameter(0)\n  b = f32[] parameter(1)\n  ROOT c = add(a, b)\n}\n"
        "ROOT s = f32[4] all-reduce(r), to_apply=add",
    ),
    "sort_with_its_order_in_place": _entry(
        EIGHT,
        "p = f32[8] parameter(0)\nROOT s = sort(p), dimensions={0}, to_apply={\n"
        "  a = f32[] parameter(0) b = f32[] parameter(1) ROOT c = compare(a, b), direction=GT }",
    ),
    # headings, comments and lines
    "a_colon_behind_the_name": "HloModule m:, replica_count=2\n"
    + ADD
    + "ENTRY e { p = f32[4] parameter(0) ROOT r = f32[4] all-reduce(p), to_apply=add }\n",
    "one_line": "HloModule m, replica_count=2 "
    "add { x = f32[] parameter(0) y = f32[] parameter(1) ROOT z = add(x, y) } "
    "ENTRY e { p = f32[4] parameter(0) ROOT r = f32[4] all-reduce(p), to_apply=add }",
    "comments_everywhere": _entry(
        EIGHT,
        "/* before */ p = f32[/*two*/2] parameter(0) // behind\n"
        "t = (f32[2], /*index=1*/f32[2]) tuple(p, /*index=1*/p)\n"
        "one = get-tuple-element(t), /*which*/ index=/*this*/1\n"
        "ROOT a = f32[2] all-reduce(/*operand*/f32[2] one), to_apply=add",
    ),
    "the_entry_stands_between": "HloModule m, replica_count=2\n"
    + ADD
    + "ENTRY e {\n  p = f32[4] parameter(0)\n"
    "  ROOT r = f32[4] all-reduce(p), to_apply=add\n}\n"
    "unused { x = f32[] parameter(0) ROOT n = negate(x) }\n",
    "no_root_is_marked": _entry(
        EIGHT, "p = f32[4] parameter(0)\nr = f32[4] all-reduce(p), to_apply=add"
    ),
    "a_list_that_ends_with_a_comma": _entry(
        EIGHT, "p = f32[2] parameter(0)\nROOT r = add(p, f32[2] constant({1, 2,}),)"
    ),
    "names_with_and_without_percent": "HloModule %m, replica_count=2\n"
    "%add { %x = f32[] parameter(0) %y = f32[] parameter(1) ROOT %z = f32[] add(x, %y) }\n"
    "ENTRY %e {\n  %p = f32[4]{0} parameter(0)\n"
    "  ROOT r = f32[4]{0:T(1024)} all-reduce(f32[4]{0} p), to_apply=%add\n}\n",
    "layouts_with_tiles_and_spaces": _entry(
        EIGHT,
        "p = f32[8,128]{1,0:T(8,128)} parameter(0)\n"
        "c = bf16[8,128]{1,0:T(8,128)(2,1)S(1)} convert(p)\n"
        "ROOT r = f32[8,128]{0,1:T(8,128)E(32)} convert(c)",
    ),
    "donated_and_aliased": "HloModule m, replica_count=2, "
    "input_output_alias={ {0}: (0, {}, must-alias), {1}: (1, {}) }, buffer_donor={ (2, {}) }, "
    "entry_computation_layout={(f32[4], f32[2,2]{1,0}, f32[8])->(f32[4], f32[2,2])}, "
    "is_scheduled=false\n" + ADD + "ENTRY e {\n  p = f32[4] parameter(0)\n"
    "  q = f32[2,2] parameter(1)\n  unused = f32[8] parameter(2)\n"
    "  a = f32[4] all-reduce(p), to_apply=add\n  ROOT t = tuple(a, negate(q))\n}\n",
    "accuracies": _entry(
        EIGHT,
        "p = f32[4] parameter(0)\n"
        "e = exponential(p), result_accuracy={tolerance={atol=0,rtol=0.5,ulps=2}}\n"
        "ROOT t = tanh(e), result_accuracy={mode=highest}",
    ),
}
"""By what is special about each."""
