"""Functions of JAX: traced and lowered in this process, to StableHLO and the trees of its arrays.

JAX is imported by these functions only, so that no one waits for it who does not use it. What XLA
has to do is done by the child process of `foreign.py`: it has as many devices as the program needs,
while a process that has begun to use JAX cannot get more.
"""

import contextlib
import importlib
import importlib.util
import inspect
import io
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from ncc_compiler.frontends.users_code import explained, refusal

if TYPE_CHECKING:
    import numpy as np


def _jax() -> Any:
    """JAX, whose types say too little to be checked."""
    return importlib.import_module("jax")


JAX_OPTIONS = (
    *("mesh", "in_shardings", "out_shardings", "static_argnums", "static_argnames"),
    *("donate_argnums", "donate_argnames"),
)
"""Keywords of `from_jax` that are not the function's."""

MISSING = {"jax": "install it: pip install 'neuron-ncc[jax]'"}
"""What to do where a library is missing."""


@attrs.frozen
class JaxSignature:
    """How a function of JAX takes and gives trees of arrays (the runtime's `CallSignature`)."""

    in_tree: Any  # of (args, kwargs), without static ones
    arguments: tuple[Any, ...]  # of every leaf a jax.ShapeDtypeStruct
    kept: tuple[int, ...]  # the leaves that the program takes, in its order
    constants: tuple[Any, ...]  # arrays that JAX passes before them
    out_tree: Any
    results: tuple[Any, ...]  # a jax.ShapeDtypeStruct of every leaf
    is_wrapped: bool = False  # by a library that flattens its own objects, in this order
    prepare: Callable[[Any, Any], tuple[Any, Any]] | None = None  # of args, kwargs
    finish: Callable[[Any], Any] | None = None  # of the tree of results

    def flatten(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> "list[np.ndarray] | None":
        """The arrays that the program takes, in order; None if the trees are others."""
        import numpy as np

        jax = _jax()
        trees = (tuple(args), dict(kwargs))
        if self.prepare is not None:
            with contextlib.suppress(TypeError, ValueError):  # of another number of arguments
                trees = self.prepare(*trees)
        try:
            leaves, tree = jax.tree_util.tree_flatten(trees)
        except ValueError:  # a mapping by name and by number, which has no order
            return None
        if tree != self.in_tree:
            if not self.is_wrapped:
                return None
            leaves = [leaf for leaf in leaves if hasattr(leaf, "shape") and hasattr(leaf, "dtype")]
            kinds = [(leaf.shape, leaf.dtype) for leaf in leaves]
            if not leaves or kinds != [(one.shape, one.dtype) for one in self.arguments]:
                return None
        if not all(map(_holds, [one.dtype for one in self.arguments], leaves)):
            return None
        arrays = [_as_numpy(leaves[k], self.arguments[k].dtype) for k in self.kept]
        return [*(np.asarray(constant) for constant in self.constants), *arrays]

    def unflatten(self, results: "Sequence[np.ndarray]") -> Any:
        """The tree of results of whole arrays in the program's order."""
        jax = _jax()
        leaves = [
            _as_jax_has_it(array, info) for array, info in zip(results, self.results, strict=True)
        ]
        tree = jax.tree_util.tree_unflatten(self.out_tree, leaves)
        return tree if self.finish is None else self.finish(tree)

    def __str__(self) -> str:
        """What the function takes, for a message: `({'w': float32[4,2]}, float32[8])`."""
        jax = _jax()
        words = [f"{one.dtype}[{','.join(map(str, one.shape))}]" for one in self.arguments]
        args, kwargs = jax.tree_util.tree_unflatten(
            self.in_tree, [_Unquoted(word) for word in words]
        )
        named = [f"{name}={value}" for name, value in kwargs.items()]
        return f"({', '.join([*map(str, args), *named])})"


@attrs.frozen(repr=False)
class _Unquoted:
    """A text that is shown without quotes."""

    text: str

    def __repr__(self) -> str:
        return self.text


def _holds(dtype: Any, leaf: Any) -> bool:
    """Whether a type has the value of one of Python's numbers; arrays have types of their own."""
    import numpy as np

    if not isinstance(leaf, bool | int | float) or not isinstance(dtype, np.dtype):
        return True
    try:
        with np.errstate(all="ignore"):
            held = np.asarray(leaf).astype(dtype)
    except (OverflowError, TypeError, ValueError):  # too large, no number
        return False
    return dtype.kind not in "biu" or bool(held == leaf)


def _as_numpy(leaf: Any, dtype: Any) -> "np.ndarray":
    """A leaf as the program takes it: keys as their words, Python's numbers in the dtype traced."""
    import numpy as np

    jax = _jax()
    if jax.dtypes.issubdtype(dtype, jax.dtypes.extended):
        return np.asarray(jax.random.key_data(leaf) if hasattr(leaf, "dtype") else leaf)
    array = np.asarray(leaf)
    if jax.dtypes.canonicalize_dtype(array.dtype) == dtype or isinstance(leaf, bool | int | float):
        with np.errstate(over="ignore"):  # infinity, as in JAX
            return array.astype(dtype, copy=False)
    return array


def _as_jax_has_it(array: "np.ndarray", info: Any) -> Any:
    import numpy as np

    jax = _jax()
    if jax.dtypes.issubdtype(info.dtype, jax.dtypes.extended):
        return jax.random.wrap_key_data(array, impl=info.dtype._impl)
    if info.dtype == jax.dtypes.float0:
        return np.zeros(info.shape, jax.dtypes.float0)
    return array


@attrs.frozen
class JaxProgram:
    """A lowered program: its StableHLO, which XLA has yet to partition, and its trees."""

    name: str
    stablehlo: bytes
    signature: JaxSignature
    parameter_names: tuple[str, ...] = ()  # where the StableHLO has none
    replicated_on: int | None = None  # of a program for one device, how many ranks run it


def jax_program(
    function: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    mesh: Any = None,
    **jit_options: Any,
) -> JaxProgram:
    """What JAX makes of a function, or of what it is a stage of. Raises CompileError.

    `jit_options` are keywords of jax.jit; None stands for not given.
    """
    if importlib.util.find_spec("jax") is None:
        raise refusal("this takes JAX", MISSING["jax"])
    jax = _jax()
    given = {key: value for key, value in jit_options.items() if value is not None}
    mesh = _mesh_of(mesh)
    _refuse_what_is_no_function(function, args, kwargs, given)
    if isinstance(function, jax.export.Exported):
        if not args and not kwargs:
            return _exported(function)
        function = function.call
    wrapper: Any = None
    if isinstance(function, jax.stages.Lowered):
        lowered = function
    elif isinstance(getattr(function, "lowered", None), jax.stages.Lowered):
        wrapper, lowered = function, function.lowered
    else:
        name = getattr(function, "__name__", type(function).__name__)
        with explained(f"tracing {name}"), _used(mesh):
            wrapper, lowered = _lowered(function, args, kwargs, mesh, given)
    program = _of_lowered(lowered, wrapper, 1 if mesh is None else mesh.size)
    if wrapper is None or wrapper is function:
        return program
    return attrs.evolve(program, parameter_names=_paths(program.signature, function, args, kwargs))


def _mesh_of(mesh: Any) -> Any:
    """A mesh of JAX; a mapping of axes to sizes becomes one without devices."""
    if mesh is None or hasattr(mesh, "axis_names"):
        return mesh
    if not isinstance(mesh, Mapping):
        raise refusal(
            f"the mesh is {mesh!r}, no Mesh, AbstractMesh or mapping",
            'write {"data": 2, "model": 4}',
        )
    jax = _jax()
    sizes = tuple(mesh.values())
    if not sizes or not all(isinstance(size, int) and size > 0 for size in sizes):
        raise refusal(
            f"the mesh {dict(mesh)} does not give sizes of axes", 'write {"data": 2, "model": 4}'
        )
    return jax.sharding.AbstractMesh(sizes, tuple(map(str, mesh)))


def mesh_of_devices(sizes: Mapping[str, int]) -> Any:
    """A mesh of virtual devices of this process, in order. Raises CompileError."""
    if importlib.util.find_spec("jax") is None:
        raise refusal("a mesh is one of JAX", MISSING["jax"])
    import numpy as np

    jax = _jax()
    count = math.prod(sizes.values())
    devices = jax.devices()
    if len(devices) < count:
        raise refusal(
            f"the mesh has {count} devices, and JAX found {len(devices)}",
            "leave xla_force_host_platform_device_count out of XLA_FLAGS",
        )
    shaped = np.array(devices[:count]).reshape(tuple(sizes.values()))
    return jax.sharding.Mesh(shaped, tuple(sizes))


def _refuse_what_is_no_function(
    function: Any, args: Sequence[Any], kwargs: Mapping[str, Any], given: Mapping[str, Any]
) -> None:
    jax = _jax()
    stages = jax.stages
    if isinstance(function, stages.Compiled) or isinstance(
        getattr(function, "compiled", None), stages.Compiled
    ):
        raise refusal(
            "a Compiled holds machine code for the devices of this process",
            "give what it was compiled from: from_jax(jax.jit(f).lower(*args))",
        )
    lowered = getattr(function, "lowered", function)  # of a library's own Lowered
    is_stage = isinstance(lowered, stages.Lowered | stages.Traced)
    if is_stage and (args or kwargs or given):
        names = ", ".join(given) or "arguments"
        raise refusal(
            f"a {type(function).__name__} has its arguments and shardings; {names} come too late",
            "give the function, or nothing else",
        )
    if not is_stage and not callable(getattr(function, "call", function)):
        kind = type(function).__name__
        article = "an" if kind[0].lower() in "aeiou" else "a"
        raise refusal(
            f"{article} {kind} is no function that JAX can trace",
            "give a function, a jitted one, or a Traced, Lowered or Exported",
        )


@contextlib.contextmanager
def _used(mesh: Any) -> Iterator[None]:
    """The mesh is that of the context, for PartitionSpecs without one."""
    jax = _jax()
    if mesh is None:
        yield
    elif isinstance(mesh, jax.sharding.AbstractMesh):
        with jax.sharding.use_abstract_mesh(mesh):
            yield
    else:
        with jax.set_mesh(mesh):
            yield


def _lowered(
    function: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    mesh: Any,
    given: Mapping[str, Any],
) -> tuple[Any, Any]:
    """The function lowered by JAX, and the object of a library that wraps it, or None."""
    jax = _jax()
    if isinstance(function, jax.stages.Traced):
        return None, function.lower(lowering_platforms=("cpu",))
    if not given and not hasattr(function, "trace") and hasattr(function, "lower"):
        wrapper = function.lower(*args, **kwargs)  # such as equinox's filter_jit
        if isinstance(wrapper, jax.stages.Lowered):
            return None, wrapper
        return wrapper, wrapper.lowered
    if given or not hasattr(function, "trace"):
        options = {
            key: _named(value, mesh) if key.endswith("_shardings") else value
            for key, value in given.items()
        }
        function = jax.jit(function, **options)
    if isinstance(function, type(jax.jit(len))):
        args, kwargs = jax.tree.map(_without_device, (tuple(args), dict(kwargs)))
    traced = function.trace(*args, **kwargs)
    if not isinstance(traced, jax.stages.Traced):  # such as flax's nnx.jit
        wrapper = function.lower(*args, **kwargs)
        return wrapper, wrapper.lowered
    return None, traced.lower(lowering_platforms=("cpu",))


def _without_device(leaf: Any) -> Any:
    """An array of one device as its type: it may go to any of a mesh that has no devices."""
    jax = _jax()
    if not isinstance(leaf, jax.Array) or isinstance(leaf, jax.core.Tracer):
        return leaf
    if not isinstance(leaf.sharding, jax.sharding.SingleDeviceSharding):
        return leaf
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, weak_type=leaf.aval.weak_type)


def _named(shardings: Any, mesh: Any) -> Any:
    """A tree of shardings in which the PartitionSpecs are those of the mesh."""
    jax = _jax()
    if mesh is None:
        return shardings
    spec = jax.sharding.PartitionSpec
    return jax.tree.map(
        lambda leaf: jax.sharding.NamedSharding(mesh, leaf) if isinstance(leaf, spec) else leaf,
        shardings,
        is_leaf=lambda leaf: leaf is None or isinstance(leaf, spec),
    )


def _of_lowered(lowered: Any, wrapper: Any, ranks: int) -> JaxProgram:
    """The program of a Lowered, of which JAX has made public all but what it drops and adds."""
    jax = _jax()
    lowering = lowered._lowering
    facts = lowering.compile_args
    if facts.get("mut") is not None:
        raise refusal(
            "the function takes or holds arrays that it changes in place (jax.new_ref)",
            "take and return them as arrays",
        )
    arguments = tuple(
        jax.ShapeDtypeStruct(info.shape, info.dtype)
        for info in jax.tree_util.tree_leaves(lowered.args_info)
    )
    constants = tuple(getattr(lowering, "const_args", ()) or ())
    kept = sorted(facts["kept_var_idx"])
    module = lowered.compiler_ir("stablehlo")
    data = io.BytesIO()
    module.operation.write_bytecode(data)
    signature = JaxSignature(
        in_tree=lowered.in_tree,
        arguments=arguments,
        kept=tuple(k - len(constants) for k in kept if k >= len(constants)),
        constants=tuple(constants[k] for k in kept if k < len(constants)),
        out_tree=lowered.out_tree,
        results=tuple(
            jax.ShapeDtypeStruct(info.shape, info.dtype)
            for info in jax.tree_util.tree_leaves(lowered.out_info)
        ),
        is_wrapped=wrapper is not None,
        # equinox's filter_jit splits arguments into arrays and the rest
        prepare=(
            (lambda args, kwargs: (wrapper.preprocess(wrapper.info, args, kwargs), {}))
            if hasattr(wrapper, "preprocess") and hasattr(wrapper, "info")
            else None
        ),
        finish=getattr(wrapper, "postprocess", None),
    )
    (main,) = [op for op in module.body.operations if str(op.attributes["sym_name"]) == '"main"']
    if "arg_attrs" in main.attributes and "jax.global_constant" in str(
        main.attributes["arg_attrs"]
    ):
        raise refusal(
            "the program was lowered for several platforms, of which a run would choose one",
            'lower it for one: traced.lower(lowering_platforms=("cpu",))',
        )
    name = str(module.operation.attributes["sym_name"]).strip('"')
    is_for_one = facts.get("num_devices", 1) == 1
    return JaxProgram(name, data.getvalue(), signature, (), ranks if is_for_one else None)


def _exported(exported: Any) -> JaxProgram:
    jax = _jax()
    symbolic = [
        str(aval) for aval in exported.in_avals if not all(isinstance(n, int) for n in aval.shape)
    ]
    if symbolic or len(exported.platforms) > 1:
        what = (
            f"arguments of unknown size, {symbolic[0]}"
            if symbolic
            else f"several platforms, {', '.join(exported.platforms)}"
        )
        raise refusal(
            f"the Exported {exported.fun_name} is for {what}",
            "give arguments with it: from_jax(exported, *args)",
        )
    paths = jax.tree_util.tree_flatten_with_path(
        jax.tree_util.tree_unflatten(exported.in_tree, [*range(len(exported.in_avals))])
    )[0]
    names = [  # a path in (args, kwargs), as JAX writes it: `args[0]['w']`
        ("args", "kwargs")[first.idx] + jax.tree_util.keystr(tuple(rest))
        for (first, *rest), _ in paths
    ]
    signature = JaxSignature(
        in_tree=exported.in_tree,
        arguments=tuple(jax.ShapeDtypeStruct(one.shape, one.dtype) for one in exported.in_avals),
        kept=tuple(exported.module_kept_var_idx),
        constants=(),
        out_tree=exported.out_tree,
        results=tuple(jax.ShapeDtypeStruct(one.shape, one.dtype) for one in exported.out_avals),
    )
    kept = tuple(names[k] for k in exported.module_kept_var_idx)
    return JaxProgram(exported.fun_name, exported.mlir_module_serialized, signature, kept)


def _paths(
    signature: JaxSignature, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[str, ...]:
    """Names of the arrays that a library's wrapper takes apart, `model.layers[0].weight`.

    None are known if it takes them apart in another order than JAX.
    """
    tree_util = _jax().tree_util
    try:
        named = inspect.signature(function).bind(*args, **kwargs).arguments
    except (TypeError, ValueError):
        return ()
    leaves = [
        (f"{name}{tree_util.keystr(path)}", leaf)
        for name, tree in named.items()
        for path, leaf in tree_util.tree_flatten_with_path(tree)[0]
        if hasattr(leaf, "shape") and hasattr(leaf, "dtype")
    ]
    kinds = [(one.shape, one.dtype) for one in signature.arguments]
    if [(leaf.shape, leaf.dtype) for _, leaf in leaves] != kinds:
        return ()
    return tuple(leaves[k][0] for k in signature.kept)
