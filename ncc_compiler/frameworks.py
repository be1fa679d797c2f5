"""Programs of Python frameworks, from the function to the compiled program."""

from typing import Any

import attrs

from ncc_compiler.codegen.generate import Neff
from ncc_compiler.driver import compile_model
from ncc_compiler.frontends.foreign import ModelText, to_hlo_text
from ncc_compiler.frontends.jax_program import JaxProgram, jax_program
from ncc_compiler.frontends.pytorch.errors import require_torch
from ncc_compiler.ir.whole_array import WholeArray
from ncc_compiler.options import CompileOptions


def from_jax(
    function: Any,
    *args: Any,
    mesh: Any = None,
    in_shardings: Any = None,
    out_shardings: Any = None,
    static_argnums: Any = None,
    static_argnames: Any = None,
    options: CompileOptions | None = None,
    **kwargs: Any,
) -> Neff:
    """The compiled program of a function of JAX, which XLA partitions over the devices of its mesh.

    `function` is a function, plain or made by `jax.jit` and the like, and is traced with `args` and
    `kwargs`: arrays, `jax.ShapeDtypeStruct`s, numbers, keys, in any trees. Or it is a
    `jax.stages.Traced` or `Lowered`, or a `jax.export.Exported`, which have their arguments.

    `mesh` is a Mesh, an AbstractMesh, or sizes by axis, {"data": 2, "model": 4}; with the last two
    this process needs no devices. While tracing it is the mesh of the context. Shardings are as of
    `jax.jit`; a PartitionSpec is of the mesh. Those that arguments have already are kept. Without
    any mesh the program is for one rank.

    The program remembers the trees: `ncc_runtime.load(neff).run(*args)` takes such arguments, whole
    or [ranks, *shape], and `result` of the run is the function's. Raises CompileError with what JAX
    or XLA says.
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
    )
    return compile_jax(program, options)


def from_torch(
    function: Any,
    *args: Any,
    ranks: int | None = None,
    options: CompileOptions | None = None,
    **kwargs: Any,
) -> Neff:
    """The compiled program of a step of PyTorch: a module, or a function that trains one.

    The step is called with `args` and `kwargs`. Parameters, buffers, states of optimizers and other
    tensors that it uses become inputs, and outputs where it changes them; its own are not changed.

    `ranks` is the size of torch.distributed's world. Without arguments `function` is then the
    program of one rank, as torchrun starts it, and returns `(step, args)`; it is called for each.
    What runs on XLA devices with `mark_sharding` is partitioned over its mesh.

    `ncc_runtime.load(neff).run()` runs the step on the values that were there, `run(*args)` on
    others, whole or [ranks, *shape]; `result` of the run is what the step returns, and where it
    changes parameters `(returned, state by name)`. Raises CompileError.
    """
    require_torch()
    from ncc_compiler.frontends.pytorch.program import torch_program  # it imports torch

    program = torch_program(function, args, kwargs, ranks)
    neff = compile_model(program.model, options, program.name)
    return attrs.evolve(neff, signature=program.signature)


def compile_jax(program: JaxProgram, options: CompileOptions | None = None) -> Neff:
    """The compiled program, which carries the trees of its arrays."""
    options = options or CompileOptions()
    if program.replicated_on > 1 and options.ranks is None:
        options = attrs.evolve(options, ranks=program.replicated_on)
    neff = compile_model(jax_text(program), options, program.name)
    return attrs.evolve(neff, signature=program.signature)


def jax_text(program: JaxProgram) -> ModelText:
    """The HLO text of what one rank runs."""
    model = to_hlo_text(program.stablehlo, "StableHLO", program.name, advice="")
    if len(program.parameter_names) == len(model.parameters):
        named = map(_renamed, model.parameters, program.parameter_names)
        model = attrs.evolve(model, parameters=tuple(named))
    if program.replicated_on > 1:
        whole = (attrs.evolve(result, sharding="{replicated}") for result in model.results)
        model = attrs.evolve(model, results=tuple(whole))
    return model


def _renamed(array: WholeArray, name: str) -> WholeArray:
    return attrs.evolve(array, name=name)
