"""Rows of ops that move or order elements: reshapes, slices, gather, scatter, sort; custom calls.

Their result types: `type_rules/indexing.py`; their meaning: `reference/indexing.py`, `ordering.py`.
"""

from ncc_compiler.ir.graph import Padding
from ncc_compiler.ir.op_tables.op_row import (
    AttributeDef,
    AttrKind,
    OpDef,
    dimension_lists,
    optional,
    required,
)

_INDICES = "the indices are integers, and index_vector_dim is one of their dimensions or the next"
_ONE_EACH = "{} has one entry for each number of an index vector"
_NEITHER = "{} has one entry for each dimension that is neither in {} nor in {}"
_STARTS = (
    "there is one scalar start index for each dimension, or one vector of them",
    "the start indices are integers of one type",
)
_SIZES = "{} has one entry for each dimension, and 0 <= size <= the dimension's size"
_DIMENSIONS = required(dimensions=AttrKind.INTEGERS)
_REGION = required(to_apply=AttrKind.CALLEE)
_SORTED = AttributeDef("indices_are_sorted", AttrKind.BOOLEAN, False, False)

MOVE_ROWS = (
    OpDef(
        "broadcast",
        1,
        1,
        dimension_lists("dimensions"),
        (
            "dimensions has one entry for each dimension of the operand",
            "dimensions are distinct dimensions of the result",
            "each dimension has the size of the operand's",
        ),
    ),
    OpDef("reshape", 1, 1, (), ("the result has as many elements as the operand",)),
    OpDef("transpose", 1, 1, _DIMENSIONS, ("dimensions is a permutation of the operand's",)),
    OpDef(
        "slice",
        1,
        1,
        required(slice=AttrKind.SLICES),
        (
            "slice has one entry for each dimension of the operand",
            "0 <= start <= limit <= the dimension's size, and stride >= 1",
        ),
    ),
    OpDef(
        "concatenate",
        1,
        None,
        _DIMENSIONS,
        (
            "dimensions names one dimension of the operands",
            "the operands have one element type and rank",
            "the operands agree in every other dimension",
        ),
    ),
)

_SLICING = (
    OpDef(
        "dynamic-slice",
        1,
        None,
        required(dynamic_slice_sizes=AttrKind.INTEGERS),
        (*_STARTS, _SIZES.format("dynamic_slice_sizes")),
    ),
    OpDef(
        "dynamic-update-slice",
        2,
        None,
        (),
        (
            *_STARTS,
            "the update has the operand's element type and rank",
            "the update is no larger than the operand in any dimension",
        ),
    ),
)

_GATHER = OpDef(
    "gather",
    2,
    2,
    (
        *dimension_lists("offset_dims", "collapsed_slice_dims", "start_index_map"),
        *dimension_lists("operand_batching_dims", "start_indices_batching_dims"),
        *required(index_vector_dim=AttrKind.INTEGER, slice_sizes=AttrKind.INTEGERS),
        _SORTED,
    ),
    (
        _INDICES,
        _ONE_EACH.format("start_index_map"),
        "start_index_map are distinct dimensions of the operand, none of operand_batching_dims",
        _SIZES.format("slice_sizes"),
        "collapsed_slice_dims and operand_batching_dims are distinct dimensions of the operand, "
        "each list in order",
        "a dimension in collapsed_slice_dims or operand_batching_dims has slice size 0 or 1",
        _NEITHER.format("offset_dims", "collapsed_slice_dims", "operand_batching_dims"),
        "offset_dims are distinct dimensions of the result, in order",
        "start_indices_batching_dims are distinct dimensions of the indices without "
        "index_vector_dim, one for each of operand_batching_dims",
        "paired batching dimensions have the same size",
    ),
)

_SCATTER = OpDef(
    "scatter",
    3,
    None,
    (
        *dimension_lists("update_window_dims", "inserted_window_dims"),
        *dimension_lists("scatter_dims_to_operand_dims"),
        *dimension_lists("input_batching_dims", "scatter_indices_batching_dims"),
        *required(index_vector_dim=AttrKind.INTEGER),
        _SORTED,
        AttributeDef("unique_indices", AttrKind.BOOLEAN, False, False),
        *_REGION,
    ),
    (
        _INDICES,
        _ONE_EACH.format("scatter_dims_to_operand_dims"),
        "scatter_dims_to_operand_dims are distinct dimensions of the operands, none of "
        "input_batching_dims",
        "there are as many updates as operands, of the same element types",
        "the operands have one shape, and so have the updates",
        "inserted_window_dims and input_batching_dims are distinct dimensions of the operands, "
        "each list in order",
        _NEITHER.format("update_window_dims", "inserted_window_dims", "input_batching_dims"),
        "update_window_dims are distinct dimensions of the updates, in order",
        "the other dimensions of the updates are those of the indices without index_vector_dim",
        "a window is no larger than the operands in any dimension",
        "scatter_indices_batching_dims are distinct dimensions of the indices without "
        "index_vector_dim, one for each of input_batching_dims",
        "paired batching dimensions have the same size",
        "to_apply takes the element types twice and returns them once",
    ),
)

_PADDING = (
    OpDef(
        "pad",
        2,
        2,
        (AttributeDef("padding", AttrKind.PADDING, False, Padding(())),),
        (
            "padding has one entry for each dimension",
            "the padding value is a scalar of the operand's element type",
            "interior padding is not negative, and no dimension becomes negative",
        ),
    ),
    OpDef(
        "reverse",
        1,
        1,
        _DIMENSIONS,
        ("dimensions are distinct dimensions of the operand",),
    ),
    OpDef(
        "get-dimension-size",
        1,
        1,
        _DIMENSIONS,
        ("dimensions names one dimension of the operand", "the size fits in s32"),
    ),
)

_ORDER = (
    OpDef(
        "sort",
        1,
        None,
        (*_DIMENSIONS, AttributeDef("is_stable", AttrKind.BOOLEAN, False, False), *_REGION),
        (
            "the operands have one shape",
            "dimensions names one dimension of the operands",
            "to_apply takes two scalars of each operand's element type and returns pred[]",
        ),
    ),
    OpDef(
        "topk",
        1,
        1,
        (
            *required(k=AttrKind.INTEGER),
            AttributeDef("largest", AttrKind.BOOLEAN, False, True),
        ),
        (
            "0 <= k <= the size of the last dimension, which fits in s32",
            "the elements have an order",
        ),
    ),
)

_CUSTOM_CALL = OpDef(
    "custom-call",
    0,
    None,
    (
        *required(custom_call_target=AttrKind.STRING),
        *optional(called_computations=AttrKind.CALLEES),
    ),
    (
        "custom_call_target has a public meaning, and does not stand for partitioning to be done",
        "the operands and the result fit the target",
        "backend_config of a collective is a JSON object of its attributes",
        "backend_config of linear algebra and of ApproxTopK gives each option a value that it has",
    ),
    takes_tuples=True,
)

INDEXING_ROWS = (*_SLICING, _GATHER, _SCATTER, *_PADDING, *_ORDER, _CUSTOM_CALL)
