"""Names and shardings of the program's parameters, and where an instruction comes from.

Names are those of the user's program, which JAX writes down as `op_name`. Shardings come in the
two forms that XLA prints, `{devices=[2,1,4]<=[8] last_tile_dim_replicate}` and that of mesh axes,
`{mesh['a'=2,'b'=4], [{'a'}, {}]}`. Some do not tell which part of the whole every device has
(`manual`, `unreduced`, `maximal`), or fit neither ranks nor shape: they are passed over, and the
parameter is then given rank by rank. Source of both grammars: hlo_parser.cc and hlo_sharding.h of
XLA.

An instruction's origin is its graph node, the line of the user's own code, and `op_name`: the path
of the scopes that its frameworks named.
"""

import itertools
import math
import operator
import re
from collections.abc import Callable, Sequence
from pathlib import PurePath

import attrs
import numpy as np

from ncc_compiler.codegen.leaves import element_span, leaves
from ncc_compiler.ir.graph import Computation, Module, Node, Raw
from ncc_compiler.ir.text.build import source_frame
from ncc_compiler.ir.text.header import aliases
from ncc_compiler.ir.types import TupleType, Type
from ncc_compiler.ir.whole_array import WholeArray
from ncc_runtime.neff.program import ArrayInfo, Origin, Program, Sharding
from ncc_runtime.neff.shared.partial import CARRIED

_OP_NAME = re.compile(r'\bop_name\s*=\s*"((?:[^"\\]|\\.)*)"')
_ESCAPE = re.compile(r"\\(.)")

_LIST = r"(\d{1,9}(?:,\d{1,9})*)"
_ORDER = rf"(?:\[{_LIST}\](?:T\({_LIST}\))?|{_LIST})"
_TILED = re.compile(rf"devices=\[{_LIST}\](?:<=)?{_ORDER}(.*)")
_NOT_TILES = re.compile(r"last_tile_dims=\{([a-z, ]*)\}")
_MESH = re.compile(
    rf"mesh\[((?:,?'[^']*'=\d{{1,9}})*)\],?(?:device_ids=\({_ORDER}\),?)?"
    r"\[((?:,?\{[^{}]*\})*)\](.*)"
)
_MOST_AXES = 32  # numpy has arrays of 64
_AXIS = re.compile(r"'([^']*)'(?::\((\d{1,9})\)(\d{1,9})|=(\d{1,9}))?")
_METADATA = re.compile(r'metadata=\{(?:[^{}"]|"(?:[^"\\]|\\.)*")*\}')


def parameters_of(
    module: Module, entry: Computation
) -> tuple[tuple[ArrayInfo, ...], tuple[Sharding, ...]]:
    """Parameters in the order of the program's inputs, and the shardings that they have.

    No parameters are listed where none has a name or a sharding.
    """
    shardings: dict[Sharding, int] = {}
    parameters = []
    for position in entry.parameters():
        node = entry.nodes[position]
        name = _op_name(node)
        arrays = leaves(node.type)
        texts = _sharding_texts(node, len(arrays))
        for k, (array, text) in enumerate(zip(arrays, texts, strict=True)):
            array_name = f"{name}[{k}]" if name and len(arrays) > 1 else name
            array_sharding = sharding(text, module.replica_count, module.num_partitions)
            number, whole = None, None
            if array_sharding is not None and len(array_sharding.tiles) == len(array.shape):
                number = shardings.setdefault(array_sharding, len(shardings))
            elif array_sharding is None and _is_replicated(text, module.num_partitions):
                whole = array.shape
            parameters.append(ArrayInfo(array_name, number, whole))
    is_any_known = any(parameter != ArrayInfo() for parameter in parameters)
    return tuple(parameters) if is_any_known else (), tuple(shardings)


def aliases_of(module: Module, entry: Computation) -> tuple[tuple[int, int], ...]:
    """The pairs of `input_output_alias`, as numbers of outputs and inputs, in order.

    XLA pairs whatever is equally large; what has two types is no state that goes on, and left out.
    """
    kinds = [entry.nodes[position].type for position in entry.parameters()]
    starts = list(itertools.accumulate((len(leaves(kind)) for kind in kinds), initial=0))
    result = entry.nodes[entry.root].type
    pairs = []
    for output, parameter, index in aliases(module):
        target, source = _array_at(result, output), _array_at(kinds[parameter], index)
        if leaves(result)[target] == leaves(kinds[parameter])[source]:
            pairs.append((target, starts[parameter] + source))
    return tuple(sorted(pairs))


def _array_at(kind: Type, index: Sequence[int]) -> int:
    """Which of the arrays of a type is at an index."""
    first = 0
    for position in index:
        first += element_span(kind, position).start
        assert isinstance(kind, TupleType), kind
        kind = kind.elements[position]
    return first


def described(
    program: Program, parameters: Sequence[WholeArray], results: Sequence[WholeArray]
) -> Program:
    """The program with what is known of its inputs and outputs besides what its text says.

    Either list is for all of them in order; one of another length says nothing.
    """
    shardings = {sharding: number for number, sharding in enumerate(program.shardings)}

    def merged(array: WholeArray, known: ArrayInfo, tensor: int) -> ArrayInfo:
        shape = program.tensors[tensor].shape
        name, number, whole = array.name or known.name, known.sharding, known.shape
        found = None if number is None else list(shardings)[number]
        if array.sharding:
            text = re.sub(r"\s*([\[\]{}(),=:])\s*", r"\1", array.sharding).strip()[1:-1]
            found = sharding(text, program.replica_count, program.num_partitions)
            if (
                found is None
                and array.shape == shape
                and _is_replicated(text, program.num_partitions)
            ):
                return ArrayInfo(name, None, shape)
        elif found is None and array.shape == shape and program.ranks == 1:
            whole = shape
        if found is not None and array.shape is not None:
            if not found.cuts(array.shape, shape):
                return ArrayInfo(name)
            number = shardings.setdefault(found, len(shardings))
            is_even = array.shape == tuple(map(operator.mul, found.tiles, shape))
            whole = None if is_even else array.shape
        return ArrayInfo(name, number, whole)

    def all_of(
        arrays: Sequence[WholeArray], known: Callable[[int], ArrayInfo], tensors: Sequence[int]
    ) -> tuple[ArrayInfo, ...]:
        if len(arrays) != len(tensors):
            arrays = [WholeArray()] * len(tensors)
        infos = tuple(
            merged(array, known(k), tensor)
            for k, (array, tensor) in enumerate(zip(arrays, tensors, strict=True))
        )
        return infos if set(infos) != {ArrayInfo()} else ()

    inputs = all_of(parameters, program.parameter, program.inputs)
    outputs = all_of(results, program.result, program.outputs)
    program = attrs.evolve(program, parameters=inputs, results=outputs, shardings=tuple(shardings))
    # what partial all-reduces carry is paired already, and says nothing of the model's own state
    is_own = any(
        not program.parameter(number).name.startswith(CARRIED) for _, number in program.aliases
    )
    if is_own or len(parameters) != len(program.inputs):
        return program
    return attrs.evolve(program, aliases=_donated(program, parameters))


def _donated(program: Program, parameters: Sequence[WholeArray]) -> tuple[tuple[int, int], ...]:
    """The pairs of an output and the input that gives it its memory, as a front end knows them.

    XLA's partitioner drops them from the text. Donors are taken in order by the first outputs that
    lie on the ranks as they do, as JAX pairs them (`_set_up_aliases` of its lowering).
    """

    def kind(tensor: int, info: ArrayInfo) -> tuple[str, int | None]:
        return program.tensors[tensor].type_text, info.sharding

    inputs = [kind(tensor, program.parameter(k)) for k, tensor in enumerate(program.inputs)]
    outputs = [kind(tensor, program.result(k)) for k, tensor in enumerate(program.outputs)]
    pairs = dict(program.aliases) | {
        array.output: number
        for number, array in enumerate(parameters)
        if array.output is not None
        and array.output < len(outputs)
        and outputs[array.output][0] == inputs[number][0]
    }
    for number, array in enumerate(parameters):
        free = (k for k, one in enumerate(outputs) if k not in pairs and one == inputs[number])
        if (
            array.is_donated
            and number not in pairs.values()
            and (found := next(free, None)) is not None
        ):
            pairs[found] = number
    return tuple(sorted(pairs.items()))


def _is_replicated(text: str, partitions: int) -> bool:
    """Whether every device has all of the array; some texts do not tell, see above."""
    tiling = _tiling(text, partitions)
    return text == "replicated" or (tiling is not None and math.prod(tiling[0]) == 1)


def _sharding_texts(parameter: Node, arrays: int) -> Sequence[str]:
    """The sharding of every array of a parameter, without its outer braces."""
    attribute = parameter.attributes.get("sharding")
    text = attribute.text if isinstance(attribute, Raw) else ""
    text = re.sub(r"\s*([\[\]{}(),=:])\s*", r"\1", _METADATA.sub("", text)).strip()
    if not text.startswith("{{"):
        return [text[1:-1]] * arrays if arrays == 1 else [""] * arrays
    parts, depth = [""], 0
    for letter in text[1:-1]:
        depth += (letter == "{") - (letter == "}")
        if letter == "," and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return [part[1:-1] for part in parts] if len(parts) == arrays else [""] * arrays


def sharding(text: str, replicas: int, partitions: int) -> Sharding | None:
    """The sharding of a text without its outer braces; None where every device has all of it.

    The text numbers the devices of one replica; all replicas are sharded alike.
    """
    tiling = _tiling(text, partitions)
    if tiling is None or math.prod(tiling[0]) < 2:
        return None
    tiles, parts = tiling
    return Sharding(tiles, tuple(parts.tolist()) * replicas)


_Tiles = tuple[tuple[int, ...], np.ndarray]
"""How many tiles by dimension; by device, the tile that it has."""


def _tiling(text: str, devices: int) -> _Tiles | None:
    return _mesh(text, devices) if text.startswith("mesh[") else _tiled(text, devices)


def _tiled(text: str, devices: int) -> _Tiles | None:
    match = _TILED.fullmatch(text)
    if match is None:
        return None
    sizes, (dims, order, listed, rest) = _numbers(match[1]), match.groups()[1:]
    not_tiles = 0
    if "last_tile_dim_replicate" in rest:
        not_tiles = 1
    elif kinds := _NOT_TILES.search(rest):
        names = kinds[1].replace(" ", "").split(",")
        if set(names) != {"replicated"}:
            return None
        not_tiles = len(names)
    numbering = _numbering(devices, dims, order, listed)
    if numbering is None or math.prod(sizes) != devices or len(sizes) < not_tiles:
        return None
    tiles = sizes[: len(sizes) - not_tiles]
    # The devices that share a tile are next to one another in the numbering.
    count = math.prod(tiles)
    parts: np.ndarray = np.empty(devices, np.int64)
    parts[numbering] = np.repeat(np.arange(count), devices // max(1, count))
    return tiles, parts


def _mesh(text: str, devices: int) -> _Tiles | None:
    match = _MESH.fullmatch(text)
    if match is None or "manual=" in match[6] or "unreduced=" in match[6]:
        return None
    axes = {name: int(size) for name, _, _, size in _AXIS.findall(match[1])}
    numbering = _numbering(devices, match[2], match[3], match[4])
    if numbering is None or len(axes) > _MOST_AXES or math.prod(axes.values()) != devices:
        return None
    coordinates = np.unravel_index(np.arange(devices), tuple(axes.values()) or (1,))
    coordinate = dict(zip(axes, coordinates, strict=bool(axes)))
    tiles: list[int] = []
    part: np.ndarray = np.zeros(devices, np.int64)  # by place in the mesh
    for dimension in re.findall(r"\{([^{}]*)\}", match[5]):
        tiles.append(1)
        for name, before, sub_size, _ in _AXIS.findall(dimension):
            if name not in axes:
                return None
            # A sub-axis `'b':(2)4` is the middle factor of axis b reshaped to [2, 4, inner].
            size = int(sub_size) if sub_size else axes[name]
            inner, rest = divmod(axes[name], int(before or 1) * size) if size else (0, 1)
            if rest or not inner:
                return None
            part = part * size + coordinate[name] // inner % size
            tiles[-1] *= size
    count = math.prod(tiles)
    # An axis, or a sub-axis, that is used twice leaves tiles that no device has.
    if count > devices or (np.bincount(part, minlength=count) != devices // count).any():
        return None
    parts: np.ndarray = np.empty(devices, np.int64)
    parts[numbering] = part
    return tuple(tiles), parts


def _numbering(
    devices: int, dims: str | None, order: str | None, listed: str | None
) -> np.ndarray | None:
    """The device at every place: counted up, through a transposed array, or listed."""
    if listed is not None:
        numbers = np.array(_numbers(listed))
    elif dims is None:
        numbers = np.arange(devices)
    else:
        shape = _numbers(dims)
        if math.prod(shape) != devices or len(shape) > _MOST_AXES:
            return None
        axes = range(len(shape)) if order is None else _numbers(order)
        if sorted(axes) != [*range(len(shape))]:
            return None
        numbers = np.arange(devices).reshape(shape).transpose(axes).ravel()
    is_numbering = np.array_equal(np.sort(numbers), np.arange(devices))
    return numbers if is_numbering else None


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(",")))


def _op_name(node: Node) -> str:
    """XLA's `op_name`: of a parameter the user's name, else a path of named scopes."""
    metadata = node.attributes.get("metadata")
    match = _OP_NAME.search(metadata.text) if isinstance(metadata, Raw) else None
    if match is None:
        return ""
    return _ESCAPE.sub(r"\1", match[1]) if "\\" in match[1] else match[1]


def origin_of(module: Module, node: Node) -> Origin:
    """The node's name and, where its metadata says so, `file:line` and the path of scopes."""
    frame = source_frame(module, node)
    if frame is None:
        return Origin(node.name, op_name=_op_name(node))
    place = f"{frame.file}:{frame.line}" if frame.line else frame.file
    return Origin(node.name, place, _op_name(node))


def text_origin(module: Module, node: Node) -> Origin:
    """Like `origin_of`; where the metadata says nothing, `file:line` of the model's text."""
    origin = origin_of(module, node)
    if origin.place or node.span is None:
        return origin
    source = node.span.source
    line, _ = source.position(node.span.start)
    return attrs.evolve(origin, place=f"{PurePath(source.name).name}:{line}")
