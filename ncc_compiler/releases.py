"""What the compiler of a release of the SDK joined, as far as published times of it tell.

This compiler joins whatever it may. A measured program was compiled by another one, whose rules are
not public; its times say how much less that joined (docs/fidelity.md). So a release is nothing but
options of passes, chosen by how many rows the program works on and whether they fit into SBUF.
"""

from collections import Counter
from collections.abc import Mapping

import attrs

from ncc_compiler.ir.graph import Module
from ncc_compiler.ir.types import ArrayType
from ncc_compiler.options import CompileOptions
from ncc_runtime.neff.work.work import PARTITIONS, SBUF_BYTES

JOINED: Mapping[str, str] = {
    "fuse.limit_nodes": "3",
    "fuse-products.enabled": "0",
    "fuse-attention.enabled": "0",
}
"""Of SDK 2.18, rows that fit: a hardware instruction does two operations and a cast (tensor_scalar,
activation). Fitted to published prefills, and so is that products stay apart."""

SPILLED: Mapping[str, str] = {"fuse.enabled": "0", "fuse-attention.enabled": "0"}
"""Of SDK 2.18, rows that do not fit: each operation reads and writes HBM, as neuronx-cc spills what
overflows (nki_perf_guide.rst, opt 2), but what a product gives is worked on as it leaves PSUM."""


def as_released(options: CompileOptions, module: Module) -> CompileOptions:
    """The options of passes that stand for `options.sdk`, beneath those that are given.

    Nothing changes without a release, at level 0, which joins nothing, or for a program of fewer
    rows than an engine has lanes, such as a step of decoding: published ones were joined as here.
    """
    stream = _residual_stream(module) if options.sdk and options.level else None
    if stream is None or stream.elements < PARTITIONS * stream.shape[-1]:
        return options
    chosen = JOINED if stream.size_bytes <= SBUF_BYTES else SPILLED
    return attrs.evolve(options, pass_options={**chosen, **options.pass_options})


def _residual_stream(module: Module) -> ArrayType | None:
    """The floats that ranks add up most often, or without those that products give most often."""
    for op in ("all-reduce", "dot"):
        found = Counter(
            node.type
            for body in module.computations.values()
            for node in body.nodes
            if node.op == op and isinstance(node.type, ArrayType) and node.type.rank
        )
        if found:
            return max(found, key=lambda array: (found[array], array.size_bytes))
    return None
