"""A script: a foreign format on standard input, HLO text on standard output.

It runs in a child process because jaxlib can end the whole process on a broken file. `python
jaxlib_child.py KIND FOLDER RANKS` prints a line of JSON, then the text, and exits with 0; or it
prints jaxlib's error about the file and exits with REFUSED. XLA writes dumps into FOLDER. RANKS is
what the user says, 0 for nothing. Only jaxlib and numpy are imported.

The JSON has `counts`, the header attributes that jaxlib's text lacks; `is_partitioned`, whether
XLA's partitioner has run; and, of StableHLO, what the text does not keep: `parameters`, each with
the shape of the whole array, and `results`, with name, sharding and shape of the whole.

StableHLO that is annotated with shardings is partitioned by XLA's own passes, on as many virtual
devices of its CPU client as the module has partitions. XLA offers no way to stop there; so the
passes run as part of a compilation, in a thread, and the process ends as soon as XLA has dumped
the module behind them. What follows, code generation above all, takes several times as long.
"""

import io
import itertools
import json
import math
import os
import re
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, TypeAlias

import numpy as np
from jaxlib import _hlo, _jax, xla_client
from jaxlib.mlir import ir
from jaxlib.mlir._mlir_libs import _jax_mlir_ext
from jaxlib.mlir.dialects import chlo, func, sdy, stablehlo

REFUSED = 4
"""Exit code that neither the interpreter nor a signal gives."""


def stablehlo_to_hlo(data: bytes, ranks: int, folder: Path) -> str:
    """StableHLO as text, bytecode or portable artifact."""
    module = _parsed(data)
    if module is not None and _is_dynamic(module):
        module = _parsed(_jax.mlir.refine_polymorphic_shapes(_bytecode(module)))
    if module is None:
        _refuse_several_meshes(data)
        return _answer(_converted(data))
    with module.context:
        if _awaits_partitioning(module, ranks):
            return _partitioned(module, folder)
        _list_groups(module)
        for op in list(_operations(module.operation)):
            if op.name == "stablehlo.all_to_all":
                _split_all_to_all(op)
            elif op.name == "stablehlo.custom_call":
                _force_exact_top_k(op)
        _spell_out_bits(module)
        _add_barriers(module)
        counts = "".join(f", {key}={size}" for key, size in _rank_counts(module).items())
        arrays = _arrays_of(module)
        text = _without_barriers(_converted(_bytecode(module)))
    return _answer(text, counts, arrays)


def _is_dynamic(module: ir.Module) -> bool:
    """Whether sizes of intermediate arrays have to be computed from those of the arguments."""
    takes, _ = _ends(module)
    return all(_shape(kind) is not None for kind, _ in takes) and any(
        isinstance(result.type, ir.RankedTensorType) and not result.type.has_static_shape
        for op in _operations(module.operation)
        for result in op.results
    )


def _bytecode(module: ir.Module) -> bytes:
    data = io.BytesIO()
    module.operation.write_bytecode(data)
    return data.getvalue()


def _converted(module: bytes) -> str:
    computation = _jax.mlir.mlir_module_to_xla_computation(
        module, use_tuple_args=False, return_tuple=False
    )
    return _printed(computation.as_hlo_module())


def proto_to_hlo(data: bytes, ranks: int, folder: Path) -> str:  # noqa: ARG001 - as of every kind
    """An HloModuleProto."""
    return _answer(_printed(_hlo.HloModule.from_serialized_hlo_module_proto(data)))


def sharded_to_hlo(data: bytes, ranks: int, folder: Path) -> str:
    """HLO text, or an HloModuleProto, with shardings that nobody has acted upon."""
    if data.lstrip().startswith(b"HloModule"):
        data = _hlo.hlo_module_from_text(data.decode()).as_serialized_hlo_module_proto()
    return stablehlo_to_hlo(_jax.mlir.hlo_to_stablehlo(data), ranks, folder)


_Arrays: TypeAlias = dict[str, list[dict[str, Any]]]


def _answer(
    text: str, counts: str = "", arrays: _Arrays | None = None, *, is_partitioned: bool = False
) -> str:
    facts = {"counts": counts, "is_partitioned": is_partitioned, **(arrays or {})}
    return f"{json.dumps(facts)}\n{text}"


def _arrays_of(module: ir.Module) -> _Arrays:
    """What the module says of the whole arrays that it takes and gives."""
    takes, gives = _ends(module)
    return {
        "parameters": [
            {
                "shape": _shape(kind),
                "output": _aliased(attributes),
                "is_donated": _DONOR in attributes,
            }
            for kind, attributes in takes
        ],
        "results": [
            {
                "name": _text_attribute(attributes, "jax.result_info"),
                "sharding": "",
                "shape": _shape(kind),
            }
            for kind, attributes in gives
        ],
    }


_ALIASING, _DONOR = "tf.aliasing_output", "jax.buffer_donor"
"""Of an argument: which result takes its memory, or that one may that XLA finds."""

_End: TypeAlias = tuple[ir.Type, dict[str, ir.Attribute]]


def _ends(module: ir.Module) -> tuple[list[_End], list[_End]]:
    """Types and attributes of the arguments of the function `main`, and of its results."""
    main = _main(module)
    ends = []
    for key, kinds in (("arg_attrs", main.type.inputs), ("res_attrs", main.type.results)):
        rows = list(main.attributes[key]) if key in main.attributes else [()] * len(kinds)
        ends.append(
            [
                (kind, {item.name: item.attr for item in row})
                for kind, row in zip(kinds, rows, strict=True)
            ]
        )
    return ends[0], ends[1]


def _main(module: ir.Module) -> Any:
    """The function `main`; ValueError without one."""
    for op in module.body.operations:
        if op.operation.name == "func.func" and op.name.value == "main":
            return op
    raise ValueError("the module has no `main` function")


def _shape(kind: ir.Type) -> list[int] | None:
    """Sizes of an array; None of a token and of what has no static shape."""
    if not isinstance(kind, ir.RankedTensorType) or not kind.has_static_shape:
        return None
    return list(kind.shape)


def _aliased(attributes: Mapping[str, ir.Attribute]) -> int | None:
    return ir.IntegerAttr(attributes[_ALIASING]).value if _ALIASING in attributes else None


def _text_attribute(attributes: Mapping[str, ir.Attribute], name: str) -> str:
    return ir.StringAttr(attributes[name]).value if name in attributes else ""


_SHARDING = ("sdy.sharding", "mhlo.sharding")
_SHARDINGS = (*_SHARDING, "sdy.sharding_per_value")
_PARTITIONING_CALLS = ("Sharding", "SPMDFullToShardShape", "SPMDShardToFullShape")
_RANK_OPS = frozenset(
    f"stablehlo.{name}"
    for name in (
        "all_gather",
        "all_reduce",
        "all_to_all",
        "collective_broadcast",
        "collective_permute",
        "partition_id",
        "reduce_scatter",
        "replica_id",
    )
)


def _awaits_partitioning(module: ir.Module, ranks: int) -> bool:
    """Whether a module is annotated with shardings that no partitioner has acted upon.

    Partitioned modules keep shardings, of the older spelling, on arguments and results only. Where
    that is all and no op tells ranks apart, a number of ranks from the user says that it was done.
    """
    is_for_ranks = False
    for op in _operations(module.operation):
        if op.name.startswith("sdy.") and op.name != "sdy.mesh":
            return True
        if op.name == "stablehlo.custom_call":
            target = ir.StringAttr(op.attributes["call_target_name"]).value
            if target in _PARTITIONING_CALLS:
                return True
            if "callback" in target:  # JAX puts it on one device, also where there is only one
                continue
        if any(name in op.attributes for name in _SHARDINGS):
            return True
        is_for_ranks |= op.name in _RANK_OPS
    ends = [attributes for side in _ends(module) for _, attributes in side]
    if any("sdy.sharding" in attributes for attributes in ends):
        return True
    return any("mhlo.sharding" in end for end in ends) and not ranks and not is_for_ranks


def _partitioned(module: ir.Module, folder: Path) -> str:
    """The answer for a module that XLA has to partition first. Raises XLA's errors."""
    counts = _rank_counts(module)
    replicas = counts.get("replica_count", 1)
    partitions = counts.get("num_partitions", 1)
    if partitions == 1:
        partitions = _devices_of(module)
    for op in list(_operations(module.operation)):
        if op.name == "stablehlo.custom_call":
            _refuse_python(op)
    arrays = _arrays_of(module)
    options = _compile_options(module, replicas, partitions)
    proto = _dumped(_bytecode(module), options, folder)
    hlo = _hlo.HloModule.from_serialized_hlo_module_proto(proto)
    for array, sharding in zip(arrays["results"], _output_shardings(hlo), strict=False):
        array["sharding"] = str(sharding)
    header = f", replica_count={replicas}, num_partitions={partitions}"
    return _answer(_printed(hlo), header, arrays, is_partitioned=True)


def _devices_of(module: ir.Module) -> int:
    """How many devices the meshes of a module name, or else its shardings."""
    meshes = [
        _mesh(sdy, op.attributes["mesh"])
        for op in module.body.operations
        if op.operation.name == "sdy.mesh"
    ]
    if meshes:
        return max(len(devices) for _, devices in meshes)
    tiles = re.findall(r"devices=\[([\d,]+)\]", str(module))
    return max((math.prod(map(int, sizes.split(","))) for sizes in tiles), default=1)


def _refuse_python(call: ir.Operation) -> None:
    """Erases a call that inspects a sharding; ValueError for one that partitions by Python code.

    Both hold pointers into the process that wrote the module.
    """
    target = ir.StringAttr(call.attributes["call_target_name"]).value
    if target == "InspectSharding":
        call.erase()
    elif target == "CustomSPMDPartitioning":
        raise ValueError(
            "jax.experimental.custom_partitioning partitions by a Python function, which only the "
            "process that traced it can call: write it as jax.shard_map"
        )


def _compile_options(
    module: ir.Module, replicas: int, partitions: int
) -> xla_client.CompileOptions:
    """The options that JAX sets, as far as partitioning reads them."""
    options = xla_client.CompileOptions()
    build = options.executable_build_options
    for counts in (options, build):
        counts.num_replicas, counts.num_partitions = replicas, partitions
    ids = np.arange(replicas * partitions).reshape(replicas, partitions)
    options.device_assignment = _jax.DeviceAssignment.create(ids)
    build.use_spmd_partitioning = True
    takes, gives = _ends(module)
    spellings = {name for side in (takes, gives) for _, attributes in side for name in attributes}
    is_shardy = "sdy.sharding" in spellings or "xla.sdy." in str(module.operation.attributes)
    build.use_shardy_partitioner = is_shardy or "mhlo.sharding" not in spellings
    # what has no sharding gets the one that suits the program
    without = [[not set(_SHARDING) & set(row) for _, row in side] for side in (takes, gives)]
    build.allow_spmd_sharding_propagation_to_parameters = without[0]
    build.allow_spmd_sharding_propagation_to_output = without[1]
    return options


_PARTITIONER = "spmd-partitioning"
"""The pass that makes the program of a rank."""

_REMOVERS = ("sharding-remover", "shardy-xla")
"""The passes that drop annotations where there is one partition, in their order."""


def _dumped(module: bytes, options: xla_client.CompileOptions, folder: Path) -> bytes:
    """The HloModuleProto behind the last of the partitioning passes. Raises XLA's errors."""
    is_single = options.num_partitions == 1
    debug = options.executable_build_options.debug_options
    debug.xla_dump_to = str(folder)
    debug.xla_dump_hlo_pass_re = "|".join(_REMOVERS if is_single else (_PARTITIONER,))
    debug.xla_dump_hlo_as_proto = True
    devices = options.num_replicas * options.num_partitions
    failures: list[Exception] = []

    def compile_it() -> None:
        try:
            client = _jax.get_tfrt_cpu_client(num_devices=devices)
            client.compile_and_load(module, _jax.DeviceList(tuple(client.devices())), options)
        except Exception as error:  # noqa: BLE001 - raised again where it is read
            failures.append(error)

    compilation = threading.Thread(target=compile_it, daemon=True)
    compilation.start()
    last = _REMOVERS[-1] if is_single else _PARTITIONER
    while compilation.is_alive():
        for path in folder.glob(f"*.after_{last}.*.hlo.pb"):
            if (proto := _whole_module(path)) is not None:
                return proto
        compilation.join(0.005)
    # what comes after the passes may have failed; and a pass that changes nothing is not dumped
    for pattern in ("*.after_*.hlo.pb", "*.before_*.hlo.pb"):
        for path in sorted(folder.glob(pattern), reverse=True):  # they are numbered
            proto = _whole_module(path)
            if proto is not None and (not failures or f".after_{last}." in path.name):
                return proto
    raise failures[0] if failures else ValueError("XLA dumped nothing behind its partitioner")


def _whole_module(path: Path) -> bytes | None:
    """The HloModuleProto, field 1 of a dumped HloProto; None while XLA still writes the file."""
    size = 0
    with path.open("rb") as file:
        for at, byte in enumerate(file.read(6)[1:], start=1):
            size |= (byte & 0x7F) << 7 * (at - 1)
            if byte < 0x80:
                if os.fstat(file.fileno()).st_size <= at + size:
                    return None
                file.seek(at + 1)
                return file.read(size)
    return None


def _output_shardings(module: _hlo.HloModule) -> list[_hlo.HloSharding]:
    """The shardings of the results, one for each; none where the module does not say."""
    proto = module.spmd_output_sharding
    if proto is None:
        return []
    whole = _hlo.HloSharding.from_proto(proto)
    return list(whole.tuple_elements()) or [whole]


_NAMES = {"replica_count": "mhlo.num_replicas", "num_partitions": "mhlo.num_partitions"}


def _rank_counts(module: ir.Module) -> dict[str, int]:
    """The counts of replicas and partitions in an MLIR module, spelled as in HLO."""
    attributes = module.operation.attributes
    return {
        key: ir.IntegerAttr(attributes[name]).value
        for key, name in _NAMES.items()
        if name in attributes
    }


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
        # A portable artifact parses as MLIR, too, but into versioned ops that only its own reader
        # turns back into StableHLO. Its producer stands behind MLIR's magic and version.
        if data.startswith(b"ML\xefR") and b"StableHLO_v" in data[:64]:
            return stablehlo.deserialize_portable_artifact(context, data)
        return ir.Module.parse(data, context)
    except (ir.MLIRError, ValueError):
        return None


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
    """Spells out replica groups that name axes of a mesh, if there are several meshes.

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
    if len(meshes) < 2 and all(_is_mesh_name(groups.mesh) for _, groups in by_axes):
        return
    for op, groups in by_axes:
        mesh = groups.mesh
        known = meshes[mesh.value] if _is_mesh_name(mesh) else _mesh(stablehlo, mesh)
        op.attributes[_GROUPS] = ir.DenseElementsAttr.get(_groups_along(groups.axes, known))


def _split_all_to_all(all_to_all: ir.Operation) -> None:
    """Makes one operation for each operand of an all_to_all.

    jaxlib's converter makes an op of several operands HLO's all-to-all of tuples, which gives each
    member a whole operand instead of a part of each, and drops the dimensions.
    """
    if len(all_to_all.operands) < 2:
        return
    attributes = dict(all_to_all.attributes.items())
    for operand, result in zip(all_to_all.operands, all_to_all.results, strict=True):
        single = ir.Operation.create(
            all_to_all.name,
            [result.type],
            [operand],
            attributes,
            loc=all_to_all.location,
            ip=ir.InsertionPoint(all_to_all),
        )
        result.replace_all_uses_with(single.result)
    all_to_all.erase()


def _force_exact_top_k(call: ir.Operation) -> None:
    """Has the converter expand an ApproxTopK that gives the first k to a sort and slices.

    Otherwise large ones become a PartialReduce, whose results only a TPU defines.
    """
    key = "mhlo.backend_config"
    if ir.StringAttr(call.attributes["call_target_name"]).value != "ApproxTopK":
        return
    if key not in call.attributes:
        return
    options = {option.name: option.attr for option in ir.DictAttr(call.attributes[key])}
    aggregates = options.get("aggregate_to_topk")
    if aggregates is not None and ir.BoolAttr(aggregates).value:
        options["is_fallback"] = ir.BoolAttr.get(True)
        call.attributes[key] = ir.DictAttr.get(options)


_BARRIER_MARK = "ncc_constant"
_CONSTANTS = ("stablehlo.constant", "chlo.constant", "chlo.constant_like")
_SHAPES_FROM: Mapping[str, int] = {
    "stablehlo.dynamic_broadcast_in_dim": 1,
    "stablehlo.dynamic_gather": 2,
    "stablehlo.dynamic_iota": 0,
    "stablehlo.dynamic_pad": 2,
    "stablehlo.dynamic_reshape": 1,
    "stablehlo.real_dynamic_slice": 1,
}
"""Dynamic ops that become static HLO where their shape operands are constants: the position of the
first shape operand."""


def _add_barriers(module: ir.Module) -> None:
    """Puts an optimization barrier behind each constant, so that the converter does not fold it.

    Its folding does not always keep the meaning of StableHLO: i1 adds as xor, -0.0 + 0.0 is -0.0,
    -1.5 is 2 as f8E8M0FNU, and an integer divided by zero ends the process. Our passes fold.
    """
    operations = list(_operations(module.operation))
    of_shapes = _constants_of_shapes(operations)
    flag = ir.DictAttr.get({_BARRIER_MARK: ir.StringAttr.get("1")})
    for op in operations:
        if op.name not in _CONSTANTS or op in of_shapes:
            continue
        users = [use.owner for use in op.result.uses]
        users = [user for user in users if not user.operation.name.endswith(".return")]
        if not users:
            continue
        barrier = ir.Operation.create(
            "stablehlo.optimization_barrier",
            [op.result.type],
            [op.result],
            {"mhlo.frontend_attributes": flag},
            loc=op.location,
            ip=ir.InsertionPoint.after(op),
        )
        for user in users:
            user.operation.replace_uses_of_with(op.result, barrier.result)


def _constants_of_shapes(operations: Iterable[ir.Operation]) -> set[ir.Operation]:
    """The ops that shapes of dynamic ops are computed from, which the converter has to fold."""
    worklist = [
        value
        for op in operations
        if op.name in _SHAPES_FROM
        for value in list(op.operands)[_SHAPES_FROM[op.name] :]
    ]
    ops: set[ir.Operation] = set()
    while worklist:
        owner = worklist.pop().owner
        if isinstance(owner, ir.Block) or owner in ops:
            continue
        ops.add(owner)
        worklist += owner.operands
    return ops


_BARRIER = re.compile(
    rf"^ *%(\S+) = \S+ opt-barrier\(%([^\s()]+)\), frontend_attributes=\{{{_BARRIER_MARK}=.*\n",
    re.MULTILINE,
)


def _without_barriers(text: str) -> str:
    """The HLO text with the names of constants in place of those of their barriers."""
    constants = dict(_BARRIER.findall(text))
    if not constants:
        return text
    bare = _BARRIER.sub("", text)
    return re.sub(r"%([\w.\-]+)", lambda name: f"%{constants.get(name[1], name[1])}", bare)


def _is_mesh_name(mesh: ir.Attribute) -> bool:
    return isinstance(mesh, ir.FlatSymbolRefAttr)


_Mesh: TypeAlias = tuple[Mapping[str, int], np.ndarray]  # sizes of axes, devices in their order


def _mesh(dialect: ModuleType, attribute: ir.Attribute) -> _Mesh:
    """The axes and devices of a mesh of either dialect."""
    mesh = dialect.MeshAttr(attribute)
    axes = [dialect.MeshAxisAttr(axis) for axis in mesh.axes]
    sizes = {axis.name: axis.size for axis in axes}
    devices = list(mesh.device_ids or ())
    return sizes, np.array(devices or range(math.prod(sizes.values())), np.int64)


def _groups_along(axes: Iterable[ir.Attribute], mesh: _Mesh) -> np.ndarray:
    """The replica groups along axes and sub-axes of a mesh, s64 [group, member]."""
    sizes, devices = mesh
    # A sub-axis `(pre)size` splits its axis as [pre, size, rest]. It is written as a range of
    # products of sizes, from pre to pre * size, so that the axis is the range from 1 to its size.
    named: list[tuple[str, int, int]] = []
    for attribute in axes:
        axis = stablehlo.AxisRefAttr(attribute)
        low, high = 1, sizes[axis.name]
        if axis.sub_axis_info is not None:
            sub_axis = stablehlo.SubAxisInfoAttr(axis.sub_axis_info)
            low, high = sub_axis.pre_size, sub_axis.pre_size * sub_axis.size
        named.append((axis.name, low, high))
    # The devices get a dimension for each range between two ends in use of each axis.
    dimensions: list[tuple[str, int, int]] = []
    for name, size in sizes.items():
        ends = {1, size}
        for axis_name, low, high in named:
            if axis_name == name:
                ends |= {low, high}
        dimensions += [(name, low, high) for low, high in itertools.pairwise(sorted(ends))]
    shape = [high // low for _, low, high in dimensions]
    # Dimensions that are named go last, in the order of their names: they count a group's members.
    member_dimensions = [
        position
        for name, start, end in named
        for position, (axis_name, low, high) in enumerate(dimensions)
        if axis_name == name and start <= low and high <= end
    ]
    group_dimensions = [
        position for position in range(len(dimensions)) if position not in member_dimensions
    ]
    members = math.prod(shape[position] for position in member_dimensions)
    ordered = devices.reshape(shape).transpose(group_dimensions + member_dimensions)
    return ordered.reshape(-1, members).copy()


_FROM_BITS = """func.func private @{name}(%a: tensor<{bits}xi1>) -> tensor<{dims}{kind}> {{
  %0 = stablehlo.convert %a : (tensor<{bits}xi1>) -> tensor<{bits}xui{bit_count}>
  %1 = stablehlo.iota dim = {rank} : tensor<{bits}xui{bit_count}>
  %2 = stablehlo.shift_left %0, %1 : tensor<{bits}xui{bit_count}>
  %3 = stablehlo.constant dense<0> : tensor<ui{bit_count}>
  %4 = stablehlo.reduce(%2 init: %3) applies stablehlo.or across dimensions = [{rank}]
    : (tensor<{bits}xui{bit_count}>, tensor<ui{bit_count}>) -> tensor<{dims}ui{bit_count}>
  %5 = stablehlo.bitcast_convert %4 : (tensor<{dims}ui{bit_count}>) -> tensor<{dims}{kind}>
  return %5 : tensor<{dims}{kind}>
}}"""
_TO_BITS = """func.func private @{name}(%a: tensor<{dims}{kind}>) -> tensor<{bits}xi1> {{
  %0 = stablehlo.bitcast_convert %a : (tensor<{dims}{kind}>) -> tensor<{dims}ui{bit_count}>
  %1 = stablehlo.broadcast_in_dim %0, dims = [{dimensions}]
    : (tensor<{dims}ui{bit_count}>) -> tensor<{bits}xui{bit_count}>
  %2 = stablehlo.iota dim = {rank} : tensor<{bits}xui{bit_count}>
  %3 = stablehlo.shift_right_logical %1, %2 : tensor<{bits}xui{bit_count}>
  %4 = stablehlo.constant dense<1> : tensor<{bits}xui{bit_count}>
  %5 = stablehlo.and %3, %4 : tensor<{bits}xui{bit_count}>
  %6 = stablehlo.convert %5 : (tensor<{bits}xui{bit_count}>) -> tensor<{bits}xi1>
  return %6 : tensor<{bits}xi1>
}}"""


def _spell_out_bits(module: ir.Module) -> None:
    """Expands bitcast_converts between i1 and wider types to shifts.

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
    used = {ir.StringAttr(op.attributes["sym_name"]).value for op in module.body.operations}
    for op, source, target in casts:
        bit_type, wide_type = (source, target) if _is_bit(source) else (target, source)
        name = next(name for name in names if name not in used)
        text = (_FROM_BITS if _is_bit(source) else _TO_BITS).format(
            name=name,
            bits="x".join(map(str, ir.RankedTensorType(bit_type).shape)),
            dims="".join(f"{size}x" for size in ir.RankedTensorType(wide_type).shape),
            kind=ir.RankedTensorType(wide_type).element_type,
            bit_count=ir.RankedTensorType(bit_type).shape[-1],
            rank=ir.RankedTensorType(wide_type).rank,
            dimensions=", ".join(map(str, range(ir.RankedTensorType(wide_type).rank))),
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


def _operations(operation: ir.Operation) -> Iterator[ir.Operation]:
    """All operations in the regions of an operation, at any depth."""
    for region in operation.regions:
        for block in region.blocks:
            for op in block.operations:
                yield op.operation
                yield from _operations(op.operation)


def _printed(module: _hlo.HloModule) -> str:
    """The HLO text with all constants; by default jaxlib leaves large ones out."""
    options = _hlo.HloPrintOptions()
    options.print_large_constants = True
    return module.to_string(options)


KINDS: Mapping[str, Callable[[bytes, int, Path], str]] = {
    "StableHLO": stablehlo_to_hlo,
    "HLO": proto_to_hlo,
    "sharded HLO": sharded_to_hlo,
}


def main() -> None:
    kind, folder, ranks = sys.argv[1:]
    try:
        answer, code = KINDS[kind](sys.stdin.buffer.read(), int(ranks), Path(folder)), 0
    except Exception as error:  # noqa: BLE001 - jaxlib raises many kinds, all about the file
        answer, code = str(error) or type(error).__name__, REFUSED
    sys.stdout.buffer.write(answer.encode(errors="replace"))
    sys.stdout.flush()
    os._exit(code)  # a compilation may still run


if __name__ == "__main__":
    main()
