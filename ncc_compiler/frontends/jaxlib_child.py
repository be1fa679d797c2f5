"""A program of its own: a foreign format on standard input, HLO text on standard output.

It runs apart because jaxlib can end the whole process on a broken file. `python jaxlib_child.py
KIND` ends with 0 after a line of the header attributes that the text lacks, and the text; or with
REFUSED after what jaxlib has to say about the file. Only jaxlib is imported.
"""

import sys
from collections.abc import Callable, Mapping

from jaxlib import _hlo, _jax
from jaxlib.mlir import ir
from jaxlib.mlir._mlir_libs import _jax_mlir_ext
from jaxlib.mlir.dialects import chlo, sdy, stablehlo

REFUSED = 4
"""Exit code; no interpreter and no signal ends with it."""


def stablehlo_to_hlo(data: bytes) -> str:
    """StableHLO as text, bytecode or portable artifact."""
    computation = _jax.mlir.mlir_module_to_xla_computation(
        data, use_tuple_args=False, return_tuple=False
    )
    return _world_of(data) + _printed(computation.as_hlo_module())


def proto_to_hlo(data: bytes) -> str:
    """An HloModuleProto."""
    return "\n" + _printed(_hlo.HloModule.from_serialized_hlo_module_proto(data))


_NAMES = {"replica_count": "mhlo.num_replicas", "num_partitions": "mhlo.num_partitions"}


def _world_of(data: bytes) -> str:
    """What the attributes of an MLIR module say about replicas and partitions, as a line."""
    registry = ir.DialectRegistry()
    _jax_mlir_ext.register_dialects(registry)
    context = ir.Context()
    context.append_dialect_registry(registry)
    context.allow_unregistered_dialects = True
    for dialect in (stablehlo, chlo, sdy):
        dialect.register_dialect(context)
    try:
        attributes = _parsed(data, context).operation.attributes
    except (ir.MLIRError, ValueError):
        return "\n"  # this reader of jaxlib's is stricter than the one that converts
    sizes = {
        key: ir.IntegerAttr(attributes[name]).value
        for key, name in _NAMES.items()
        if name in attributes
    }
    return "".join(f", {key}={size}" for key, size in sizes.items() if size > 1) + "\n"


def _parsed(data: bytes, context: ir.Context) -> ir.Module:
    try:
        return ir.Module.parse(data, context)
    except ir.MLIRError:
        return stablehlo.deserialize_portable_artifact(context, data)


def _printed(module: _hlo.HloModule) -> str:
    """The text with all constants; by default jaxlib leaves large ones out."""
    options = _hlo.HloPrintOptions()
    options.print_large_constants = True
    return module.to_string(options)


KINDS: Mapping[str, Callable[[bytes], str]] = {"StableHLO": stablehlo_to_hlo, "HLO": proto_to_hlo}


def main() -> int:
    """Convert; anything that jaxlib raises is about the file."""
    try:
        answer, code = KINDS[sys.argv[1]](sys.stdin.buffer.read()), 0
    except Exception as error:  # noqa: BLE001 - jaxlib raises many kinds, all about the file
        answer, code = str(error) or type(error).__name__, REFUSED
    sys.stdout.buffer.write(answer.encode(errors="replace"))
    return code


if __name__ == "__main__":
    sys.exit(main())
