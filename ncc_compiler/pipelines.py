"""The pipelines, read from top to bottom: what -O0, -O1 and -O2 do to the graph."""

from collections.abc import Mapping, Sequence

import attrs

from ncc_compiler.options import CompileOptions, LateGradients
from ncc_compiler.overlap.assign_streams import AssignStreams
from ncc_compiler.overlap.attention import FuseAttention
from ncc_compiler.overlap.bucket import Bucket, SplitVariadicCollectives
from ncc_compiler.overlap.erase_tokens import EraseTokens
from ncc_compiler.overlap.fill_arrays import FillArrays
from ncc_compiler.overlap.fuse import Fuse
from ncc_compiler.overlap.products import FuseProducts
from ncc_compiler.overlap.schedule import Schedule
from ncc_compiler.overlap.split_all_reduces import SplitAllReduces
from ncc_compiler.passes.common_subexpressions import CommonSubexpressions
from ncc_compiler.passes.expand_batch_norm import ExpandBatchNorm
from ncc_compiler.passes.expand_collectives import ExpandCollectives
from ncc_compiler.passes.expand_rng import ExpandRng
from ncc_compiler.passes.expand_scans import ExpandScans
from ncc_compiler.passes.fold_constants import FoldConstants
from ncc_compiler.passes.fold_transposes import FoldTransposes
from ncc_compiler.passes.inline_calls import InlineCalls
from ncc_compiler.passes.join_halves import JoinHalves, JoinTransfers
from ncc_compiler.passes.manager import Pass
from ncc_compiler.passes.partial_all_reduce import PartialAllReduce
from ncc_compiler.passes.remove_dead_code import RemoveDeadCode
from ncc_compiler.passes.simplify import Simplify
from ncc_compiler.passes.spell_out import SpellOut

# Ops that code generation does not know become ops that it knows.
_LEGALIZE: Sequence[Pass] = (
    JoinTransfers(),
    JoinHalves(),
    SpellOut(),
    ExpandBatchNorm(),
    ExpandScans(),
    InlineCalls(),
    ExpandRng(),
)

# What code generation needs.
CANONICAL: Sequence[Pass] = (*_LEGALIZE, ExpandCollectives())

# What costs little and always pays.
STANDARD: Sequence[Pass] = (
    *_LEGALIZE,
    Simplify(),
    FoldConstants(),
    CommonSubexpressions(),
    RemoveDeadCode(),
    FoldTransposes(),
    ExpandCollectives(),
    Simplify(),
    RemoveDeadCode(),
    FuseAttention(),
    Fuse(),
    FuseProducts(),
    FillArrays(),
    RemoveDeadCode(),
)

# In addition, what lets collectives run beside compute.
THOROUGH: Sequence[Pass] = (
    *_LEGALIZE,
    Simplify(),
    FoldConstants(),
    CommonSubexpressions(),
    EraseTokens(),
    SplitVariadicCollectives(),
    Simplify(),
    RemoveDeadCode(),
    FoldTransposes(),
    RemoveDeadCode(),
    SplitAllReduces(),
    RemoveDeadCode(),
    ExpandCollectives(),
    Simplify(),
    RemoveDeadCode(),
    # once more over what the first round uncovered
    FoldConstants(),
    CommonSubexpressions(),
    Simplify(),
    RemoveDeadCode(),
    FuseAttention(),
    Fuse(),
    FuseProducts(),
    FillArrays(),
    # collectives beside compute
    AssignStreams(),
    Bucket(),
    Simplify(),
    RemoveDeadCode(),
    Schedule(),
)

PIPELINES: Mapping[int, Sequence[Pass]] = {0: CANONICAL, 1: STANDARD, 2: THOROUGH}
"""By level of optimisation."""

PUBLISHED_NAMES: Mapping[str, str] = {
    "NEURON_FSDP_NUM_LAYER_EARLY_AG_SHIFT": "schedule.early_all_gather_layers",
    "NEURON_FSDP_NUM_LAYER_LATE_RS_SHIFT": "schedule.late_reduce_scatter_layers",
}
"""The names that AWS publishes for options of passes."""


def pipeline(options: CompileOptions) -> Sequence[Pass]:
    """The passes of a compilation with their options set.

    Raises ValueError for an option that no pass has, or for a value that is not one.
    """
    passes = PIPELINES[options.level]
    if options.partial_all_reduce is not None:
        passes = _with_partial_all_reduces(passes, options.partial_all_reduce)
    known = option_names()
    by_name = {PUBLISHED_NAMES.get(name, name): text for name, text in options.pass_options.items()}
    for name in by_name:
        if name not in known:
            raise ValueError(f"no pass has the option {name!r}, there are {', '.join(known)}")
    return [_with_options(compiler_pass, by_name) for compiler_pass in passes]


def _with_partial_all_reduces(passes: Sequence[Pass], late: LateGradients) -> Sequence[Pass]:
    """The passes with that one once calls are inlined.

    Their all-reduces are not split: the all-gather behind them would wait for late ranks.
    """
    behind = [
        SplitAllReduces(enabled=0) if isinstance(each, SplitAllReduces) else each
        for each in passes[len(_LEGALIZE) :]
    ]
    return (*_LEGALIZE, PartialAllReduce(late), *behind)


def option_names() -> list[str]:
    """Every option of a pass of some level, sorted."""
    passes = (compiler_pass for level in PIPELINES.values() for compiler_pass in level)
    return sorted({name for compiler_pass in passes for name in _fields(compiler_pass)})


def _fields(compiler_pass: Pass) -> Mapping[str, str]:
    """Full names of the pass's options, and the fields they set."""
    return {
        f"{compiler_pass.name}.{field.name}": field.name
        for field in attrs.fields(type(compiler_pass))
    }


_MAX_DIGITS = 18  # such numbers fit into 64 bits


def _with_options(compiler_pass: Pass, options: Mapping[str, str]) -> Pass:
    """The pass with its options set; all options of passes are counts."""
    values = {}
    for name, field in _fields(compiler_pass).items():
        if name not in options:
            continue
        text = options[name]
        if not (text.isascii() and text.isdecimal() and len(text) <= _MAX_DIGITS):
            raise ValueError(f"pass option {name} is {text!r}, not a whole number of 0 or more")
        values[field] = int(text)
    return attrs.evolve(compiler_pass, **values) if values else compiler_pass
