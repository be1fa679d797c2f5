"""Loop analysis: which elements of a loop's state are invariant, and its trip count."""

import re
from collections.abc import Mapping

import attrs
import numpy as np

from ncc_compiler.codegen.leaves import Leaf, leaves, sources
from ncc_compiler.ir.graph import Computation, Literal, Node, Raw
from ncc_compiler.ir.types import ArrayType

_KNOWN_TRIP_COUNT = re.compile(r'"known_trip_count"\s*:\s*\{\s*"n"\s*:\s*"(\d{1,18})"')
_MIRRORED = {"LT": "GT", "GT": "LT", "LE": "GE", "GE": "LE", "NE": "NE"}


def invariants(body: Computation) -> frozenset[int]:
    """Arrays of the state that the body gives back as it got them."""
    (parameter,) = body.parameters()
    result = sources(body)[body.root]
    return frozenset(k for k, leaf in enumerate(result) if leaf == (parameter, k))


@attrs.frozen
class _Test:
    """The loop goes on while `variable direction limit`."""

    variable: int  # of the state
    direction: str
    limit: int


def trip_count(
    loop: Node, condition: Computation, body: Computation, initial: Mapping[int, int]
) -> int | None:
    """How often the body runs: by its induction variable, or as XLA wrote into backend_config.

    `initial` holds the integers that arrays of the state are known to start with.
    """
    count = _trips_of_counter(condition, body, initial)
    if count is not None:
        return count
    config = loop.attributes.get("backend_config")
    match = _KNOWN_TRIP_COUNT.search(config.text) if isinstance(config, Raw) else None
    return int(match[1]) if match else None


def _trips_of_counter(
    condition: Computation, body: Computation, initial: Mapping[int, int]
) -> int | None:
    """The count where the induction variable starts, moves and ends at constants."""
    fixed = {k: initial[k] for k in invariants(body) if k in initial}
    test = _test(condition, fixed)
    if test is None or test.variable not in initial:
        return None
    step = _step(body, test.variable)
    if step is None:
        return None
    start = initial[test.variable]
    count = _iterations(start, step, test)
    (parameter,) = condition.parameters()
    dtype = leaves(condition.nodes[parameter].type)[test.variable].dtype.numpy
    # numpy knows no bounds of the narrow types of ml_dtypes
    if count is None or dtype.kind not in "iu" or dtype.isbuiltin != 1:
        return None
    info = np.iinfo(dtype)
    return count if info.min <= start + count * step <= info.max else None


def _constant(computation: Computation, leaf: Leaf) -> int | None:
    """The value of an integer scalar that is a constant of the program."""
    node = computation.nodes[leaf[0]]
    literal = node.attributes.get("literal")
    is_scalar = isinstance(node.type, ArrayType) and not node.type.shape
    if not isinstance(literal, Literal) or not is_scalar or literal.array.dtype.kind not in "iu":
        return None
    return int(literal.array)


def _test(condition: Computation, fixed: Mapping[int, int]) -> _Test | None:
    """The comparison at the condition's root, with the counter on its left."""
    (parameter,), flow = condition.parameters(), sources(condition)
    root = condition.nodes[flow[condition.root][0][0]]
    direction = str(root.attributes.get("direction"))
    if root.op != "compare" or direction not in _MIRRORED:
        return None
    left, right = (flow[operand][0] for operand in root.operands)

    def value(leaf: Leaf) -> int | None:
        if leaf[0] == parameter:
            return fixed.get(leaf[1])
        return _constant(condition, leaf)

    if left[0] != parameter or value(left) is not None:
        left, right, direction = right, left, _MIRRORED[direction]
    limit = value(right)
    return None if left[0] != parameter or limit is None else _Test(left[1], direction, limit)


def _step(body: Computation, variable: int) -> int | None:
    """What an iteration adds to the counter."""
    (parameter,), flow = body.parameters(), sources(body)
    node = body.nodes[flow[body.root][variable][0]]
    if node.op not in ("add", "subtract"):
        return None
    left, right = (flow[operand][0] for operand in node.operands)
    if node.op == "add" and right == (parameter, variable):
        left, right = right, left
    amount = _constant(body, right)
    if left != (parameter, variable) or amount is None:
        return None
    return amount if node.op == "add" else -amount


def _iterations(start: int, step: int, test: _Test) -> int | None:
    """Iterations until the test fails; None where it never does without wrapping round."""
    distance = test.limit - start
    if test.direction == "NE":
        if distance == 0:
            return 0
        reaches = step != 0 and distance % step == 0 and distance // step > 0
        return distance // step if reaches else None
    if test.direction in ("LE", "GE"):  # as LT and GT of the next integer
        distance += 1 if test.direction == "LE" else -1
    sign = 1 if test.direction in ("LT", "LE") else -1
    if distance * sign <= 0:
        return 0
    return -(-distance // step) if step * sign > 0 else None  # rounded up
