"""Attributes that change nothing here, and the form that XLA's parser asks of them all the same.

Unknown keys are kept: XLA gets new ones with every version. A known one whose value XLA would
refuse is refused here too, since whoever wrote it meant something.
"""

import re
from collections.abc import Callable, Collection, Mapping

import attrs

from ncc_compiler.ir.ops import OPS

_STRING = r'"(?:[^"\\]|\\.)*+"'
_SUB_KEY = re.compile(r"\s*([A-Za-z_][\w.\-]*)\s*=\s*")
_BLANKS = re.compile(r"\s*")
_PIECE = re.compile(rf"{_STRING}|[{{}}]")
_SCALAR = re.compile(rf"{_STRING}|[^\s,{{}}\"]+")
_NUMBERED = frozenset(
    {
        "source_column",
        "source_end_column",
        "source_end_line",
        "source_line",
        "stack_frame_id",
    }
)
_TEXTS = frozenset({"deduplicated_name", "op_name", "op_type", "scheduling_name", "source_file"})
_OPERAND_ALIAS = r"\{[\d,\s]*\}\s*:\s*\(\s*\d+\s*,\s*\{[\d,\s]*\}\s*\)"


@attrs.frozen
class Form:
    """What the value of an attribute looks like: a test of its text, and an example."""

    fits: Callable[[str], object]
    example: str


def _pattern(pattern: str, example: str) -> Form:
    return Form(re.compile(rf"\s*{pattern}\s*", re.DOTALL).fullmatch, example)


def _braced(example: str) -> Form:
    return Form(lambda text: text.startswith("{"), example)


def behind_blanks(text: str, at: int) -> int:
    """The offset of what stands at or behind `at` and is no blank."""
    match = _BLANKS.match(text, at)
    assert match
    return match.end()


def braced_end(text: str, at: int) -> int:
    """The offset behind the brace that closes the one at `at`; -1 if none does."""
    depth = 0
    for piece in _PIECE.finditer(text, at):
        depth += {"{": 1, "}": -1}.get(piece[0], 0)
        if depth == 0:
            return piece.end()
    return -1


def _entries(text: str, is_value: Callable[[str, str], bool], *, commas: bool) -> bool:
    """Whether it is `{key=value …}` with these values; commas between them, or blanks too."""
    if not text.startswith("{"):
        return False
    at, end = behind_blanks(text, 1), len(text) - 1
    while at < end:
        key = _SUB_KEY.match(text, at)
        if key is None:
            return False
        start = key.end()
        if text.startswith("{", start):
            stop = braced_end(text, start)
        else:
            scalar = _SCALAR.match(text, start)
            stop = scalar.end() if scalar else -1
        if not start < stop <= end or not is_value(key[1], text[start:stop]):
            return False
        at = behind_blanks(text, stop)
        if text.startswith(",", at):
            at = behind_blanks(text, at + 1)
            if at == end:
                return False
        elif at < end and commas:
            return False
    return True


def _is_frontend_value(_: str, value: str) -> bool:
    return value.startswith(('"', "{"))


def _is_metadata_value(key: str, value: str) -> bool:
    if key in _NUMBERED:
        return re.fullmatch(r"-?\d+", value) is not None
    return key not in _TEXTS or value.startswith('"')


def _is_nonnegative(_: str, value: str) -> bool:
    return re.fullmatch(r"\d+(?:\.\d*)?(?:[eE][-+]?\d+)?", value) is not None


def _is_accuracy(text: str) -> bool:
    """`{mode=highest}` or a tolerance of its three numbers, each once at most."""
    if re.fullmatch(r"\{\s*mode\s*=\s*(?:default|highest)\s*\}", text, re.IGNORECASE):
        return True
    tolerance = re.fullmatch(r"\{\s*tolerance\s*=\s*(\{[^{}]*\})\s*\}", text)
    if tolerance is None or not _entries(tolerance[1], _is_nonnegative, commas=True):
        return False
    keys = re.findall(r"(\w+)\s*=", tolerance[1])
    return len(set(keys)) == len(keys) and {*keys} <= {"atol", "rtol", "ulps"}


_PRECISION = r"(?:default|high|highest|packed_nibble)"

FORMS: Mapping[str, Form] = {
    "api_version": _pattern(
        r"API_VERSION_(?:UNSPECIFIED|ORIGINAL|STATUS_RETURNING|STATUS_RETURNING_UNIFIED|TYPED_FFI)",
        "API_VERSION_STATUS_RETURNING",
    ),
    "async_execution_thread": _pattern(_STRING, '"parallel_thread"'),
    "backend_config": Form(lambda text: text.startswith(('"', "{")), '{"key":"value"}'),
    "custom_call_has_side_effect": _pattern(r"(?:true|false)", "true"),
    "execution_thread": _pattern(_STRING, '"parallel_thread"'),
    "frontend_attributes": Form(
        lambda text: _entries(text, _is_frontend_value, commas=True), '{key="value"}'
    ),
    "kind": _pattern(r"k(?:Loop|Input|Output|Custom)", "kLoop"),
    "metadata": Form(
        lambda text: _entries(text, _is_metadata_value, commas=False),
        '{op_name="add" source_file="a.py" source_line=3}',
    ),
    "operand_layout_constraints": _braced("{f32[2,3]{1,0}}"),
    "operand_precision": _pattern(
        rf"\{{\s*(?:{_PRECISION}\s*(?:,\s*{_PRECISION}\s*)*)?\}}", "{highest,highest}"
    ),
    "origin": _braced('{{"name"}}'),
    "output_to_operand_aliasing": _pattern(
        rf"\{{\s*(?:{_OPERAND_ALIAS}\s*(?:,\s*{_OPERAND_ALIAS}\s*)*,?\s*)?\}}", "{{}: (0, {})}"
    ),
    "parameter_replication": _pattern(
        r"\{\s*(?:(?:true|false)\s*(?:,\s*(?:true|false)\s*)*)?\}", "{true,false}"
    ),
    "result_accuracy": Form(_is_accuracy, "{tolerance={atol=0,rtol=0,ulps=1}} or {mode=highest}"),
    "sharding": _braced("{replicated}"),
    "statistics": _braced("{visualizing_index=0,count=1}"),
}
"""By key; of instructions, and of computations."""


_ELSEWHERE: Mapping[str, frozenset[str]] = {
    "collective-permute": frozenset({"slice_sizes"}),
    "collective-permute-start": frozenset({"slice_sizes"}),
    "custom-call": frozenset(
        {"batch_group_count", "dim_labels", "feature_group_count", "to_apply", "window"}
    ),
    "dot": frozenset({"algorithm"}),
    "ragged-all-to-all": frozenset({"dimensions"}),
    "ragged-all-to-all-start": frozenset({"dimensions"}),
    "recv-done": frozenset({"channel_id", "is_host_transfer"}),
    "send-done": frozenset({"channel_id", "is_host_transfer"}),
}
"""Attributes with a meaning for other ops, which XLA gives these too and we pass over."""

_WITH_ACCURACY = (
    "acos acosh asin asinh atan atanh cbrt cosh cosine erf exponential exponential-minus-one log "
    "log-plus-one logistic rsqrt sine sinh sqrt tan tanh"
)
_ACCURATE = frozenset(_WITH_ACCURACY.split(" "))
"""Ops that `result_accuracy` can be said of."""


_KEYS_OF_OPS = frozenset(row.name for op in OPS.values() for row in op.attributes)
KEYS_OF_HEADERS = frozenset(
    {
        "alias_passthrough_params",
        "allow_spmd_sharding_propagation_to_output",
        "allow_spmd_sharding_propagation_to_parameters",
        "buffer_donor",
        "entry_computation_layout",
        "frontend_attributes",
        "input_output_alias",
        "is_scheduled",
        "num_partitions",
        "replica_count",
    }
)
KEYS_OF_COMPUTATIONS = frozenset({"execution_thread"})


def is_of_other_ops(op: str, key: str) -> bool:
    """Whether a key that has a meaning elsewhere stands on an op that cannot have it."""
    if key == "result_accuracy":
        return op not in _ACCURATE
    if key in KEYS_OF_HEADERS:
        return key not in FORMS
    return key in _KEYS_OF_OPS and key not in _ELSEWHERE.get(op, frozenset())


def is_misplaced(key: str, own: Collection[str]) -> bool:
    """Whether a key that has a meaning elsewhere stands where these are all that have one."""
    elsewhere = _KEYS_OF_OPS | FORMS.keys() | KEYS_OF_HEADERS | KEYS_OF_COMPUTATIONS
    return key in elsewhere and key not in own


def fault_of(key: str, text: str) -> str:
    """What is wrong with the value of an attribute that is kept as it is; nothing for most."""
    form = FORMS.get(key)
    if form is None or form.fits(text):
        return ""
    return f"{key}: {text[:40]!r} is not of the form {form.example}"
