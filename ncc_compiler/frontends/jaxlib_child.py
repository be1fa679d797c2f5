"""A program of its own: a foreign format on standard input, HLO text on standard output.

It runs apart because jaxlib can end the whole process on a broken file. `python jaxlib_child.py
KIND` ends with 0 after a line of the header attributes that the text lacks, and the text; or with
REFUSED after what jaxlib has to say about the file. Only jaxlib and numpy are imported.
"""

import io
import itertools
import math
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import ModuleType
from typing import TypeAlias

import numpy as np
from jaxlib import _hlo, _jax
from jaxlib.mlir import ir
from jaxlib.mlir._mlir_libs import _jax_mlir_ext
from jaxlib.mlir.dialects import chlo, func, sdy, stablehlo

REFUSED = 4
"""Exit code; no interpreter and no signal ends with it."""


def stablehlo_to_hlo(data: bytes) -> str:
    """StableHLO as text, bytecode or portable artifact."""
    module = _parsed(data)
    if module is None:
        _refuse_several_meshes(data)
        return "\n" + _converted(data)
    with module.context:
        _list_groups(module)
        for op in list(_operations(module.operation)):
            if op.name == "stablehlo.all_to_all":
                _take_apart(op)
            elif op.name == "stablehlo.custom_call":
                _sort_exactly(op)
        _spell_out_bits(module)
        _shield_constants(module)
    return _world_of(module) + _without_shields(_converted(_bytecode(module)))


def _converted(module: bytes) -> str:
    computation = _jax.mlir.mlir_module_to_xla_computation(
        module, use_tuple_args=False, return_tuple=False
    )
    return _printed(computation.as_hlo_module())


def proto_to_hlo(data: bytes) -> str:
    """An HloModuleProto."""
    return "\n" + _printed(_hlo.HloModule.from_serialized_hlo_module_proto(data))


_NAMES = {"replica_count": "mhlo.num_replicas", "num_partitions": "mhlo.num_partitions"}


def _world_of(module: ir.Module) -> str:
    """What the attributes of an MLIR module say about replicas and partitions, as a line."""
    attributes = module.operation.attributes
    sizes = {
        key: ir.IntegerAttr(attributes[name]).value
        for key, name in _NAMES.items()
        if name in attributes
    }
    return "".join(f", {key}={size}" for key, size in sizes.items()) + "\n"


def _parsed(data: bytes) -> ir.Module | None:
    """The module; None if this reader of jaxlib's is stricter than the one that converts."""
    registry = ir.DialectRegistry()
    _jax_mlir_ext.register_dialects(registry)
    context = ir.Context()
    context.append_dialect_registry(registry)
    context.allow_unregistered_dialects = True
    for dialect in (stablehlo, chlo, sdy):
        dialect.register_dialect(context)
    try:
        return _read(data, context)
    except (ir.MLIRError, ValueError):
        return None


def _read(data: bytes, context: ir.Context) -> ir.Module:
    # A portable artifact parses as MLIR, too, but into versioned ops that only its own reader
    # turns back into StableHLO. Its producer stands behind MLIR's magic and version.
    if data.startswith(b"ML\xefR") and b"StableHLO_v" in data[:64]:
        return stablehlo.deserialize_portable_artifact(context, data)
    return ir.Module.parse(data, context)


_GROUPS = "replica_groups"
_BY_AXES = stablehlo.ReplicaGroupMeshAxesAttr


def _refuse_several_meshes(data: bytes) -> None:
    """Raises ValueError for a text whose groups name axes of one of several meshes."""
    declared = [match.start() for match in re.finditer(rb"\bsdy\.mesh\s+@", data)]
    if len(declared) < 2 or b"#stablehlo.replica_group_mesh_axes" not in data:
        return
    before = data[: declared[1]].split(b"\n")
    place = f"-:{len(before)}:{len(before[-1].decode()) + 1}"
    raise ValueError(
        f"{place}: error: a second mesh, which jaxlib confuses with the first in replica groups, "
        "and the text has ops that only its converter knows; give the .pb or the HLO text of it"
    )


def _list_groups(module: ir.Module) -> None:
    """Lists the groups of collectives that name axes, if there are several meshes.

    jaxlib's converter takes meshes of the same devices for one, and so confuses their axes.
    """
    meshes = {
        ir.StringAttr(op.attributes["sym_name"]).value: _mesh(sdy, op.attributes["mesh"])
        for op in module.body.operations
        if op.operation.name == "sdy.mesh"
    }
    by_axes = [
        (op, _BY_AXES(op.attributes[_GROUPS]))
        for op in _operations(module.operation)
        if _GROUPS in op.attributes and _BY_AXES.isinstance(op.attributes[_GROUPS])
    ]
    if len(meshes) < 2 and all(_is_name(groups.mesh) for _, groups in by_axes):
        return
    for op, groups in by_axes:
        mesh = groups.mesh
        known = meshes[mesh.value] if _is_name(mesh) else _mesh(stablehlo, mesh)
        op.attributes[_GROUPS] = ir.DenseElementsAttr.get(_listed(known, groups.axes))


def _take_apart(all_to_all: ir.Operation) -> None:
    """Makes one operation for each operand of an all_to_all.

    jaxlib's converter makes an op of several operands HLO's all-to-all of tuples, which gives each
    member a whole operand instead of a part of each, and drops the dimensions.
    """
    if len(all_to_all.operands) < 2:
        return
    attributes = dict(all_to_all.attributes.items())
    for operand, result in zip(all_to_all.operands, all_to_all.results, strict=True):
        alone = ir.Operation.create(
            all_to_all.name,
            [result.type],
            [operand],
            attributes,
            loc=all_to_all.location,
            ip=ir.InsertionPoint(all_to_all),
        )
        result.replace_all_uses_with(alone.result)
    all_to_all.erase()


def _sort_exactly(call: ir.Operation) -> None:
    """Has the converter make a sort and slices of an ApproxTopK that gives the first k.

    Else it makes of large ones a PartialReduce, whose results only a TPU knows.
    """
    key = "mhlo.backend_config"
    if ir.StringAttr(call.attributes["call_target_name"]).value != "ApproxTopK":
        return
    if key not in call.attributes:
        return
    options = {one.name: one.attr for one in ir.DictAttr(call.attributes[key])}
    whole = options.get("aggregate_to_topk")
    if whole is not None and ir.BoolAttr(whole).value:
        options["is_fallback"] = ir.BoolAttr.get(True)
        call.attributes[key] = ir.DictAttr.get(options)


_SHIELD = "ncc_constant"
_CONSTANTS = ("stablehlo.constant", "chlo.constant", "chlo.constant_like")
_SHAPES_FROM: Mapping[str, int] = {
    "stablehlo.dynamic_broadcast_in_dim": 1,
    "stablehlo.dynamic_gather": 2,
    "stablehlo.dynamic_iota": 0,
    "stablehlo.dynamic_pad": 2,
    "stablehlo.dynamic_reshape": 1,
    "stablehlo.real_dynamic_slice": 1,
}
"""Ops that HLO has where their shapes are constants, and which operand is the first of these."""


def _shield_constants(module: ir.Module) -> None:
    """Puts a barrier behind each constant, through which the converter does not see.

    It folds constants and lets neutral ones go, and not always with the meaning of StableHLO: i1
    adds as xor, -0.0 + 0.0 is -0.0, -1.5 is 2 as f8E8M0FNU, and an integer divided by zero ends
    the process. What is folded is up to our own passes.
    """
    operations = list(_operations(module.operation))
    needed = _constants_of_shapes(operations)
    flag = ir.DictAttr.get({_SHIELD: ir.StringAttr.get("1")})
    for op in operations:
        if op.name not in _CONSTANTS or op in needed:
            continue
        users = [use.owner for use in op.result.uses]
        shielded = [user for user in users if not user.operation.name.endswith(".return")]
        if not shielded:
            continue
        barrier = ir.Operation.create(
            "stablehlo.optimization_barrier",
            [op.result.type],
            [op.result],
            {"mhlo.frontend_attributes": flag},
            loc=op.location,
            ip=ir.InsertionPoint.after(op),
        )
        for user in shielded:
            user.operation.replace_uses_of_with(op.result, barrier.result)


def _constants_of_shapes(operations: Iterable[ir.Operation]) -> set[ir.Operation]:
    """What the shapes of dynamic ops follow from, which the converter has to fold."""
    open_ = [
        value
        for op in operations
        if op.name in _SHAPES_FROM
        for value in list(op.operands)[_SHAPES_FROM[op.name] :]
    ]
    constants: set[ir.Operation] = set()
    while open_:
        owner = open_.pop().owner
        if isinstance(owner, ir.Block) or owner in constants:
            continue
        constants.add(owner)
        open_ += owner.operands
    return constants


_SHIELDED = re.compile(
    rf"^ *%(\S+) = \S+ opt-barrier\(%([^\s()]+)\), frontend_attributes=\{{{_SHIELD}=.*\n",
    re.MULTILINE,
)


def _without_shields(text: str) -> str:
    """The text with the names of constants in place of those of their barriers."""
    constants = dict(_SHIELDED.findall(text))
    if not constants:
        return text
    bare = _SHIELDED.sub("", text)
    return re.sub(r"%([\w.\-]+)", lambda name: f"%{constants.get(name[1], name[1])}", bare)


def _is_name(mesh: ir.Attribute) -> bool:
    return isinstance(mesh, ir.FlatSymbolRefAttr)


_Mesh: TypeAlias = tuple[Mapping[str, int], np.ndarray]  # sizes of axes, devices in their order


def _mesh(dialect: ModuleType, attribute: ir.Attribute) -> _Mesh:
    """What a mesh of either dialect says."""
    mesh = dialect.MeshAttr(attribute)
    axes = [dialect.MeshAxisAttr(axis) for axis in mesh.axes]
    sizes = {axis.name: axis.size for axis in axes}
    devices = list(mesh.device_ids or ())
    return sizes, np.array(devices or range(math.prod(sizes.values())), np.int64)


def _listed(mesh: _Mesh, axes: Iterable[ir.Attribute]) -> np.ndarray:
    """The groups along axes of a mesh, s64 [group, member]; an axis may be a part of one."""
    sizes, devices = mesh
    named = [_part(stablehlo.AxisRefAttr(axis), sizes) for axis in axes]
    parts = []
    for name, size in sizes.items():
        cuts = {1, size, *(end for one, *ends in named if one == name for end in ends)}
        parts += [(name, *ends) for ends in itertools.pairwise(sorted(cuts))]
    inside = [
        position
        for name, start, end in named
        for position, (axis, low, high) in enumerate(parts)
        if axis == name and start <= low and high <= end
    ]
    across = [position for position in range(len(parts)) if position not in inside]
    shape = [high // low for _, low, high in parts]
    members = math.prod(shape[position] for position in inside)
    return devices.reshape(shape).transpose(across + inside).reshape(-1, members).copy()


def _part(axis: stablehlo.AxisRefAttr, sizes: Mapping[str, int]) -> tuple[str, int, int]:
    """The axis, and how many pieces it falls into before and after the part that is meant."""
    if axis.sub_axis_info is None:
        return axis.name, 1, sizes[axis.name]
    part = stablehlo.SubAxisInfoAttr(axis.sub_axis_info)
    return axis.name, part.pre_size, part.pre_size * part.size


_FROM_BITS = """func.func private @{name}(%a: tensor<{bits}xi1>) -> tensor<{whole}{kind}> {{
  %0 = stablehlo.convert %a : (tensor<{bits}xi1>) -> tensor<{bits}xui{width}>
  %1 = stablehlo.iota dim = {rank} : tensor<{bits}xui{width}>
  %2 = stablehlo.shift_left %0, %1 : tensor<{bits}xui{width}>
  %3 = stablehlo.constant dense<0> : tensor<ui{width}>
  %4 = stablehlo.reduce(%2 init: %3) applies stablehlo.or across dimensions = [{rank}]
    : (tensor<{bits}xui{width}>, tensor<ui{width}>) -> tensor<{whole}ui{width}>
  %5 = stablehlo.bitcast_convert %4 : (tensor<{whole}ui{width}>) -> tensor<{whole}{kind}>
  return %5 : tensor<{whole}{kind}>
}}"""
_TO_BITS = """func.func private @{name}(%a: tensor<{whole}{kind}>) -> tensor<{bits}xi1> {{
  %0 = stablehlo.bitcast_convert %a : (tensor<{whole}{kind}>) -> tensor<{whole}ui{width}>
  %1 = stablehlo.broadcast_in_dim %0, dims = [{dimensions}]
    : (tensor<{whole}ui{width}>) -> tensor<{bits}xui{width}>
  %2 = stablehlo.iota dim = {rank} : tensor<{bits}xui{width}>
  %3 = stablehlo.shift_right_logical %1, %2 : tensor<{bits}xui{width}>
  %4 = stablehlo.constant dense<1> : tensor<{bits}xui{width}>
  %5 = stablehlo.and %3, %4 : tensor<{bits}xui{width}>
  %6 = stablehlo.convert %5 : (tensor<{bits}xui{width}>) -> tensor<{bits}xi1>
  return %6 : tensor<{bits}xi1>
}}"""


def _spell_out_bits(module: ir.Module) -> None:
    """Makes casts between i1 and wider types of shifts.

    An i1 has one bit in StableHLO and eight in HLO, and jaxlib's converter takes the one for the
    other: it makes eight elements of 64 bits, and refuses 64 elements.
    """
    casts = [
        (op, source, target)
        for op in _operations(module.operation)
        if op.name == "stablehlo.bitcast_convert"
        for source, target in [(op.operands[0].type, op.results[0].type)]
        if _is_bit(source) is not _is_bit(target)
    ]
    names = (f"bits.{number}" for number in itertools.count())
    taken = {ir.StringAttr(op.attributes["sym_name"]).value for op in module.body.operations}
    for op, source, target in casts:
        narrow, wide = (source, target) if _is_bit(source) else (target, source)
        name = next(name for name in names if name not in taken)
        text = (_FROM_BITS if _is_bit(source) else _TO_BITS).format(
            name=name,
            bits="x".join(map(str, ir.RankedTensorType(narrow).shape)),
            whole="".join(f"{size}x" for size in ir.RankedTensorType(wide).shape),
            kind=ir.RankedTensorType(wide).element_type,
            width=ir.RankedTensorType(narrow).shape[-1],
            rank=ir.RankedTensorType(wide).rank,
            dimensions=", ".join(map(str, range(ir.RankedTensorType(wide).rank))),
        )
        with module.context, op.location:
            parsed = ir.Module.parse(text)  # owns the function until that is copied
            with ir.InsertionPoint(module.body):
                parsed.body.operations[0].operation.clone()
            with ir.InsertionPoint(op):
                call = func.CallOp([target], name, [op.operands[0]])
        op.results[0].replace_all_uses_with(call.results[0])
        op.erase()


def _is_bit(kind: ir.Type) -> bool:
    return str(ir.RankedTensorType(kind).element_type) == "i1"


def _bytecode(module: ir.Module) -> bytes:
    out = io.BytesIO()
    module.operation.write_bytecode(out)
    return out.getvalue()


def _operations(operation: ir.Operation) -> Iterator[ir.Operation]:
    """All operations inside of one, at any depth."""
    for region in operation.regions:
        for block in region.blocks:
            for op in block.operations:
                yield op.operation
                yield from _operations(op.operation)


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
