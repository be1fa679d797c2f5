"""Programs of Python frameworks, from the function to the compiled program."""

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from ncc_compiler.codegen.generate import Neff
from ncc_compiler.driver import compile_model
from ncc_compiler.frontends import python_file
from ncc_compiler.frontends.foreign import ModelText, to_hlo_text
from ncc_compiler.frontends.jax_program import JAX_OPTIONS, JaxProgram, jax_program
from ncc_compiler.frontends.pytorch.errors import require_torch
from ncc_compiler.frontends.users_code import refusal
from ncc_compiler.options import CompileOptions


def from_jax(
    function: Any,
    *args: Any,
    mesh: Any = None,
    in_shardings: Any = None,
    out_shardings: Any = None,
    static_argnums: Any = None,
    static_argnames: Any = None,
    donate_argnums: Any = None,
    donate_argnames: Any = None,
    options: CompileOptions | None = None,
    **kwargs: Any,
) -> Neff:
    """The compiled program of a function of JAX, which XLA partitions over the devices of its mesh.

    `function` is a function, plain or made by `jax.jit` and the like, and is traced with `args` and
    `kwargs`: arrays, `jax.ShapeDtypeStruct`, numbers, keys, in any trees. Or it is a
    `jax.stages.Traced` or `Lowered`, or a `jax.export.Exported`, which have their arguments.

    `mesh` is a Mesh, an AbstractMesh, or sizes by axis, {"data": 2, "model": 4}; with the last two
    this process needs no devices. While tracing it is the mesh of the context. Shardings are as of
    `jax.jit`; a PartitionSpec is of the mesh; donated arguments are what
    `Model.run_steps` feeds from step to step. Those that arguments have already are kept. Without
    any mesh the program is for one rank.

    The program remembers the trees: `ncc_runtime.load(neff).run(*args)` takes such arguments, whole
    or `[ranks, *shape]`, and `result` of the run is the function's. Raises CompileError with what
    JAX or XLA says.
    """
    program = jax_program(
        function,
        args,
        kwargs,
        mesh,
        in_shardings=in_shardings,
        out_shardings=out_shardings,
        static_argnums=static_argnums,
        static_argnames=static_argnames,
        donate_argnums=donate_argnums,
        donate_argnames=donate_argnames,
    )
    options = options or CompileOptions()
    neff = compile_model(_text_of_jax(program, options.ranks), options, program.name)
    return _callable(neff, program.signature, options)


def from_torch(
    function: Any,
    *args: Any,
    mesh: Any = None,
    ranks: int | None = None,
    options: CompileOptions | None = None,
    **kwargs: Any,
) -> Neff:
    """The compiled program of a step of PyTorch: a module, or a function that trains one.

    The step is called with `args` and `kwargs`. Parameters, buffers, states of optimizers and other
    tensors that it uses become inputs, and outputs where it changes them; its own are not changed.

    `ranks` is the size of torch.distributed's world. It is also the number of devices of a `mesh`:
    {"data": 2, "model": 4}, an `xs.Mesh` or a DeviceMesh. Without arguments `function` is then the
    program of one rank, as torchrun starts it, and returns `(step, args)`; it is called for each.
    What runs on XLA devices with `mark_sharding` is partitioned over its mesh.

    `ncc_runtime.load(neff).run()` runs the step on the values that were there, `run(*args)` on
    others, whole or `[ranks, *shape]`; `result` of the run is what the step returns, and where it
    changes parameters `(returned, state by name)`. Raises CompileError.
    """
    if mesh is not None:
        devices = math.prod(mesh.values()) if isinstance(mesh, Mapping) else mesh.size()
        if ranks not in (None, devices):
            raise refusal(
                f"the mesh has {devices} devices, and ranks is {ranks}", "give one of them"
            )
        ranks = devices
    require_torch(ranks)
    from ncc_compiler.frontends.pytorch.program import torch_program  # it imports torch

    program = torch_program(function, args, kwargs, ranks)
    neff = compile_model(program.model, options, program.name)
    return _callable(neff, program.signature, options)


def _callable(neff: Neff, signature: Any, options: CompileOptions | None) -> Neff:
    """The program with the trees of its function, unless it has other inputs than that."""
    if options is not None and options.partial_all_reduce is not None:
        return neff
    return attrs.evolve(neff, signature=signature)


def read_python(
    file: str,
    function: str,
    ranks: int | None = None,
    mesh: Mapping[str, int] | None = None,
    stage: int | None = None,
) -> ModelText:
    """The HLO text of what a function of a Python file returns: what `from_jax` takes.

    That is (fn, args) or (fn, args, kwargs), where `kwargs` may have those of `from_jax`, or one
    object; or a list of such, stages that run together, of which `stage` is the number of one,
    from 0. The file sees `ranks` virtual devices, or DEVICES of `frontends/python_file.py`; with
    `mesh` the function is called with a mesh of them. Of a file that imports torch it is what
    `from_torch` takes; with `ranks` the function is called once for each. Raises CompileError, and
    OSError if the file cannot be read.
    """
    if mesh is not None:
        ranks = math.prod(mesh.values())
    found = python_file.found(file, function, ranks, mesh)
    with python_file.as_script(Path(file)):  # its functions run while they are traced
        return _text_of_found(found, file, function, ranks, stage)


def _text_of_found(
    found: Callable[[], Any], file: str, function: str, ranks: int | None, stage: int | None
) -> ModelText:
    where = f"{file}: {function}"
    if "torch" in sys.modules and "jax" not in sys.modules:
        if stage is not None:
            raise refusal(f"{where} is of PyTorch, which has no list of stages")
        return _text_of_torch(where, found, ranks)
    given = found()
    stages = None
    if isinstance(given, list):
        stages, stage = len(given), stage or 0
        if stage >= stages:
            raise refusal(f"{where} gives {stages} stages, from 0; there is no stage {stage}")
        given = given[stage]
    elif stage is not None:
        raise refusal(f"{where} gives no list of stages", "leave out --stage")
    value, args, kwargs = _call(given, where)
    torch = sys.modules.get("torch")  # of a file that imports both
    if torch is not None and any(
        isinstance(one, torch.Tensor | torch.nn.Module) for one in (value, *args, *kwargs.values())
    ):
        return _text_of_torch(where, found, ranks)
    options = {key: kwargs.pop(key) for key in JAX_OPTIONS if key in kwargs}
    text = _text_of_jax(jax_program(value, args, kwargs, **options), ranks)
    return attrs.evolve(text, stages=stages)


def _text_of_torch(where: str, found: Callable[[], Any], ranks: int | None) -> ModelText:
    """The HLO text of what a function of a Python file sets up, on each rank if there are some."""
    require_torch(ranks)
    from ncc_compiler.frontends.pytorch.program import torch_program  # it imports torch

    if ranks is not None:
        return torch_program(found, (), {}, ranks).model
    value, args, kwargs = _call(found(), where)
    return torch_program(value, args, kwargs, None).model


def _call(value: Any, where: str) -> tuple[Any, Sequence[Any], dict[str, Any]]:
    """A function, its arguments and its keywords."""
    if not isinstance(value, tuple):
        return value, (), {}
    function, args, kwargs = (*value, None, None, None)[:3]
    args, kwargs = () if args is None else args, {} if kwargs is None else kwargs
    if (
        not 1 <= len(value) <= 3
        or not isinstance(args, list | tuple)
        or not isinstance(kwargs, dict)
    ):
        kinds = ", ".join(type(one).__name__ for one in value)
        raise refusal(
            f"{where} gives ({kinds}), which is no function, tuple of arguments, dict of keywords",
            'return (fn, (x, y)) or (fn, (x, y), {"mesh": mesh})',
        )
    return function, args, dict(kwargs)


def _text_of_jax(program: JaxProgram, ranks: int | None) -> ModelText:
    """The HLO text of what one rank runs."""
    model = to_hlo_text(program.stablehlo, "StableHLO", program.name, ranks, advice="")
    if len(program.parameter_names) == len(model.parameters):
        parameters = zip(model.parameters, program.parameter_names, strict=True)
        named = (attrs.evolve(array, name=name) for array, name in parameters)
        model = attrs.evolve(model, parameters=tuple(named))
    header, newline, rest = model.text.partition("\n")
    replicas = ranks if program.replicated_on == 1 else program.replicated_on
    if replicas is not None and replicas > 1 and " num_partitions=" not in header:
        text = f"{header}, num_partitions={replicas}{newline}{rest}"
        whole = (attrs.evolve(array, sharding="{replicated}") for array in model.results)
        model = attrs.evolve(model, text=text, results=tuple(whole))
    return model
