"""Rows of the collectives of HLO, and of those that HLO lacks.

The latter are custom calls in a text (backend_config.py); in the graph they are ops with the name
of the call's target. Their result types: `type_rules/collectives.py`.
"""

from collections.abc import Iterable

from ncc_compiler.ir.op_tables.op_row import AttributeDef, AttrKind, OpDef, optional, required
from ncc_runtime.neff.shared.groups import ExplicitGroups

_DIMENSIONS = required(dimensions=AttrKind.INTEGERS)
_CHANNEL = optional(channel_id=AttrKind.INTEGER)
_GROUPS = (
    AttributeDef("replica_groups", AttrKind.GROUPS, False, ExplicitGroups(())),
    *_CHANNEL,
)
_GLOBAL_IDS = optional(use_global_device_ids=AttrKind.BOOLEAN)
_LAYOUT = optional(constrain_layout=AttrKind.BOOLEAN)
_REGION = required(to_apply=AttrKind.CALLEE)
_ROOT = required(root=AttrKind.INTEGER)

RANKS_ONCE = "no rank appears twice in the groups"
IDS_EXIST = "every id in the groups exists"
EVERYBODY = "the groups name everybody, or there are none"
NO_EMPTY_GROUP = "no group is empty"
CHANNEL_FOR_GLOBAL_IDS = "use_global_device_ids=true comes with a channel_id"
_SOME_GROUPS = (RANKS_ONCE, IDS_EXIST, NO_EMPTY_GROUP)
_GROUP_RULES = (RANKS_ONCE, IDS_EXIST, EVERYBODY, NO_EMPTY_GROUP, CHANNEL_FOR_GLOBAL_IDS)
EQUAL_SIZES = "all groups have the same size"
SCALAR_REGION = "to_apply takes two scalars of the operands' element type and returns one"
KNOWN_REGION = (
    "to_apply is one of add, multiply, minimum, maximum, and, or on its two parameters, "
    "narrow floats perhaps in f32"
)
ONE_DIMENSION = "dimensions names one dimension of every operand"
DIVIDES = "the dimension divides into one part for each member of a group"
OPERAND_FOR_EACH = (
    "without dimensions there is one operand for each member of a group, all of one type"
)
SOURCES_ONCE = "no rank is the source of two pairs"
TARGETS_ONCE = "no rank is the target of two pairs"
PAIRS_EXIST = "every id in the pairs exists"
SLICE_SIZES = "slice_sizes"
"""The attribute by which a permute moves slices, of its input into its output."""

INPUT_AND_OUTPUT = (
    "with slice_sizes there are four operands: input and output, arrays of one element type and "
    "rank or tuples of such, and starts in each"
)
STARTS_OF_SLICES = (
    "starts are a tuple of an integer for each dimension, or for several slices a tuple of those; "
    "of tuples a tuple of either"
)
SIZES_OF_SLICES = "slice_sizes has the sizes of each slice, which fit in input and output"
ROOT_IS_MEMBER = "root counts a member of every group"
KNOWN_REDUCTION = (
    "reduction is one of add, multiply, minimum, maximum, and, or, average, for these elements"
)
AVERAGES = "the elements are floats or complex numbers"

ONE_LAYOUT = (
    "operand and output are arrays of one element type, alike in all dimensions but the first"
)
COUNTS_ARE_VECTORS = "offsets and sizes are vectors of s32, s64, u32 or u64, equally long"
UPDATES_FOR_EACH = "offsets and sizes have as many entries for each member of a group"
METADATA = "metadata is u32 or s32, [3, members]: send counts, send offsets, receive counts"
METADATA_WITH_OFFSETS = (
    "metadata is u32 or s32, [3, members]: send counts, send offsets, receive counts; "
    "or [4, members]: and receive offsets"
)
SLOTS = "dimension 0 of the output divides into a slot for each member of a group"
SLOTS_OR_OFFSETS = (
    "without receive offsets dimension 0 of the output divides into a slot for each member of a "
    "group"
)
ONE_KIND_OF_IDS = "with receive offsets the program has replicas or partitions, not both"

NCC = "ncc."
"""Prefix of the names of ops that HLO lacks."""


def _collective(
    name: str,
    attributes: Iterable[AttributeDef],
    rules: Iterable[str] = (),
    tuples_with: str = "",
) -> OpDef:
    rows = tuple(attributes), tuple(rules)
    return OpDef(name, 1, None, *rows, collective=True, tuples_with=tuples_with)


def _variable_size(
    name: str, operands: int, attributes: Iterable[AttributeDef], rules: Iterable[str]
) -> OpDef:
    """The row of a variable-size (v-) collective; see VARIABLE_SIZE."""
    return OpDef(name, operands, operands, tuple(attributes), tuple(rules), collective=True)


HLO_COLLECTIVES = (
    _collective(
        "all-reduce",
        (*_GROUPS, *_GLOBAL_IDS, *_LAYOUT, *_REGION),
        (*_GROUP_RULES, SCALAR_REGION, KNOWN_REGION),
    ),
    _collective(
        "all-gather",
        (*_GROUPS, *_DIMENSIONS, *_GLOBAL_IDS, *_LAYOUT),
        (*_GROUP_RULES, EQUAL_SIZES, ONE_DIMENSION),
    ),
    _collective(
        "reduce-scatter",
        (*_GROUPS, *_GLOBAL_IDS, *_LAYOUT, *_DIMENSIONS, *_REGION),
        (*_GROUP_RULES, SCALAR_REGION, KNOWN_REGION, EQUAL_SIZES, ONE_DIMENSION, DIVIDES),
    ),
    _collective(
        "all-to-all",
        (*_GROUPS, *_LAYOUT, *optional(dimensions=AttrKind.INTEGERS)),
        (*_GROUP_RULES, EQUAL_SIZES, ONE_DIMENSION, DIVIDES, OPERAND_FOR_EACH),
    ),
    _collective(
        "collective-permute",
        (
            *_CHANNEL,
            *required(source_target_pairs=AttrKind.PAIRS),
            *optional(slice_sizes=AttrKind.LISTS),
        ),
        (
            SOURCES_ONCE,
            TARGETS_ONCE,
            PAIRS_EXIST,
            INPUT_AND_OUTPUT,
            STARTS_OF_SLICES,
            SIZES_OF_SLICES,
        ),
        SLICE_SIZES,
    ),
    _collective("collective-broadcast", _GROUPS, _SOME_GROUPS),
    _variable_size(
        "ragged-all-to-all",
        6,
        _GROUPS,
        (*_GROUP_RULES, EQUAL_SIZES, ONE_LAYOUT, COUNTS_ARE_VECTORS, UPDATES_FOR_EACH),
    ),
)

NCC_COLLECTIVES = (
    _collective("ncc.avg_all_reduce", (*_GROUPS, *_GLOBAL_IDS), (*_GROUP_RULES, AVERAGES)),
    _collective(
        "ncc.avg_reduce_scatter",
        (*_GROUPS, *_GLOBAL_IDS, *_DIMENSIONS),
        (*_GROUP_RULES, AVERAGES, EQUAL_SIZES, ONE_DIMENSION, DIVIDES),
    ),
    _collective(
        "ncc.reduce",
        (*_GROUPS, *_GLOBAL_IDS, *required(reduction=AttrKind.WORD), *_ROOT),
        (*_GROUP_RULES, KNOWN_REDUCTION, ROOT_IS_MEMBER),
    ),
    _collective(
        "ncc.gather",
        (*_GROUPS, *_GLOBAL_IDS, *_DIMENSIONS, *_ROOT),
        (*_GROUP_RULES, EQUAL_SIZES, ONE_DIMENSION, ROOT_IS_MEMBER),
    ),
    _collective(
        "ncc.scatter",
        (*_GROUPS, *_GLOBAL_IDS, *_DIMENSIONS, *_ROOT),
        (*_GROUP_RULES, EQUAL_SIZES, ONE_DIMENSION, DIVIDES, ROOT_IS_MEMBER),
    ),
    _variable_size(
        "ncc.all_gather_v",
        3,
        (*_GROUPS, *_GLOBAL_IDS),
        (*_GROUP_RULES, EQUAL_SIZES, ONE_LAYOUT, METADATA, SLOTS),
    ),
    _variable_size(
        "ncc.reduce_scatter_v",
        3,
        (*_GROUPS, *_GLOBAL_IDS, *required(reduction=AttrKind.WORD)),
        (*_GROUP_RULES, EQUAL_SIZES, ONE_LAYOUT, METADATA, KNOWN_REDUCTION),
    ),
    _variable_size(
        "ncc.all_to_all_v",
        3,
        (*_GROUPS, *_GLOBAL_IDS),
        (
            *_GROUP_RULES,
            EQUAL_SIZES,
            ONE_LAYOUT,
            METADATA_WITH_OFFSETS,
            SLOTS_OR_OFFSETS,
            ONE_KIND_OF_IDS,
        ),
    ),
    OpDef(
        "ncc.barrier",
        0,
        None,
        (*_GROUPS, *_GLOBAL_IDS),
        _GROUP_RULES,
        collective=True,
        takes_tuples=True,
        has_side_effect=True,
    ),
)

VARIABLE_SIZE = frozenset(
    {"ragged-all-to-all", "ncc.all_gather_v", "ncc.reduce_scatter_v", "ncc.all_to_all_v"}
)
"""Variable-size (v-) collectives: arrays of counts give the number of rows at run time."""
