"""A PyTorch step, or the program of each rank that makes one, as a program of all ranks."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import numpy as np
import torch
import torch.distributed as dist
from torch.utils import _pytree as pytree

from ncc_compiler.diagnostics import CompileError
from ncc_compiler.frontends.foreign import ModelText
from ncc_compiler.frontends.pytorch.devices import runs_on_devices, trace_on_devices
from ncc_compiler.frontends.pytorch.mirror import Mirror
from ncc_compiler.frontends.pytorch.names import Arguments
from ncc_compiler.frontends.pytorch.ranks import Output, StepTrace, merged, whole
from ncc_compiler.frontends.pytorch.trace import as_numpy, trace
from ncc_compiler.frontends.pytorch.world import World, as_rank
from ncc_compiler.frontends.users_code import explained, refusal

_MOST_ROUNDS = 16  # set-ups of all ranks, each of which gets at least one collective further


@attrs.frozen(eq=False)
class TorchSignature:
    """How a step takes and gives tensors (`CallSignature` of the runtime).

    What is not given has the value that it had when the step was traced.
    """

    tree: Any  # of (args, kwargs)
    arguments: tuple[int | None, ...]  # of every leaf of it, the input that it is
    names: tuple[str, ...]  # of the inputs
    values: tuple[np.ndarray, ...]  # of the inputs, [ranks, *shape] or [*shape]
    dtypes: tuple[torch.dtype, ...]  # of the outputs
    returned: tuple[Any, Any]  # leaves and tree
    states: Mapping[str, int]  # outputs that are states which the step changed

    def flatten(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """The arrays that the program takes, by number; None if the arguments are others."""
        given: dict[Any, Any] = dict(enumerate(self.values))
        leaves, tree = pytree.tree_flatten((tuple(args), dict(kwargs)))
        if tree == self.tree:
            for number, leaf in zip(self.arguments, leaves, strict=True):
                if number is not None:
                    given[number] = _given(leaf)
            return given
        if not args and not kwargs:
            return given
        if len(args) == 1 and isinstance(args[0], Mapping) and not kwargs:
            for key, value in args[0].items():
                found = [number for number, name in enumerate(self.names) if name == key]
                given[found[0] if len(found) == 1 else key] = _given(value)
            return given
        return None

    def unflatten(self, results: Sequence[np.ndarray]) -> Any:
        """What the step returns; of one that changes its state `(returned, state by name)`."""
        tensors = [
            _as_torch(array, dtype) for array, dtype in zip(results, self.dtypes, strict=True)
        ]
        parts, tree = self.returned
        parts = [tensors[part.number] if isinstance(part, Output) else part for part in parts]
        returned = pytree.tree_unflatten(parts, tree)
        if not self.states:
            return returned
        return returned, {name: tensors[number] for name, number in self.states.items()}

    def __str__(self) -> str:
        """What the step takes, for a message."""
        words = [
            "_" if number is None else self.names[number] or f"arg{number}"
            for number in self.arguments
        ]
        return f"({', '.join(words)})"


def _given(value: Any) -> Any:
    return as_numpy(value) if isinstance(value, torch.Tensor) else value


def _as_torch(array: np.ndarray, dtype: torch.dtype) -> torch.Tensor:
    array = np.array(array, order="C")  # torch wants to write to it
    if array.dtype.kind == "V" or array.dtype.name == str(dtype).removeprefix("torch."):
        bits = {1: np.uint8, 2: np.uint16}.get(array.dtype.itemsize)
        if bits is not None and array.dtype.name not in _SHARED:
            return torch.from_numpy(array.view(bits)).view(dtype)
    return torch.from_numpy(array).to(dtype)


_SHARED = frozenset({"bool", "uint8", "int8", "int16", "uint16", "float16"})


@attrs.frozen(eq=False)
class TorchProgram:
    """What one rank runs, and how the step takes and gives tensors."""

    name: str
    model: ModelText
    signature: TorchSignature


def torch_program(
    function: Any, args: Sequence[Any], kwargs: Mapping[str, Any], ranks: int | None
) -> TorchProgram:
    """The program of a step; with `ranks` and no arguments, of what sets a rank up.

    Raises CompileError.
    """
    name = _name_of(function)
    if not callable(function):
        raise refusal(f"from_torch takes a module or a function, not a {type(function).__name__}")
    if ranks is not None and (not isinstance(ranks, int) or ranks < 1):
        raise refusal(f"ranks is the size of a world, a positive number, not {ranks!r}")
    arguments = Arguments(tuple(args), dict(kwargs))
    model: ModelText | None = None
    traces: Sequence[StepTrace]
    if ranks is not None:
        model, traces = _of_all_ranks(name, function, arguments, ranks)
    elif runs_on_devices(function, arguments):
        with explained(f"tracing {name}"):
            model, of_all = trace_on_devices(name, function, arguments, ranks)
        traces = [of_all]
    else:
        with explained(f"tracing {name}"):
            traces = [trace(function, arguments, _alone)]
    text = model.text if model is not None else merged(name, traces)
    first = traces[0]
    values = [_of_ranks([trace.values[k] for trace in traces]) for k in range(len(first.inputs))]
    returned, tree = first.returned
    count = sum(isinstance(part, Output) for part in returned)
    signature = TorchSignature(
        first.tree,
        first.arguments,
        tuple(array.name for array in first.inputs),
        tuple(values),
        first.dtypes,
        (returned, tree),
        {array.name: k for k, array in enumerate(first.outputs) if k >= count},
    )
    if model is None:
        parameters, results = (
            tuple(map(whole, zip(*parts, strict=True)))
            for parts in (
                [trace.inputs for trace in traces],
                [trace.outputs for trace in traces],
            )
        )
        model = ModelText(text, parameters=parameters, results=results)
    return TorchProgram(name, model, signature)


def _alone(_: Mirror) -> None:
    """The step of a program without ranks begins."""


def _name_of(function: Any) -> str:
    name = getattr(function, "__name__", type(function).__name__)
    return re.sub(r"[^\w.]", "_", name) or "step"


def _of_ranks(values: Sequence[np.ndarray]) -> np.ndarray:
    """[*shape] if all ranks have the same bits, else [ranks, *shape]."""
    first = values[0].tobytes()
    if all(value.tobytes() == first for value in values[1:]):
        return values[0]
    return np.stack(values)


def _of_all_ranks(
    name: str, function: Any, arguments: Arguments, ranks: int
) -> tuple[ModelText | None, Sequence[StepTrace]]:
    """The step of every rank; of one on XLA devices the model of all of them."""
    if dist.is_available() and dist.is_initialized():
        raise refusal(
            "this process has a default process group, which has other ranks than the program's",
            advice="set it up inside of the function that from_torch calls for each rank, or call "
            "torch.distributed.destroy_process_group() first",
        )
    is_step = isinstance(function, torch.nn.Module) or arguments != Arguments()

    def step_of(rank: int) -> tuple[Any, Arguments]:
        if is_step:
            return function, arguments
        with explained(f"tracing {name} of rank {rank}"):
            made = function()
        return _step(name, made)

    def traced(*, scalars_are_inputs: bool) -> tuple[ModelText | None, list[StepTrace]]:
        world = World(ranks)
        for _ in range(_MOST_ROUNDS):
            world.is_settled, traces = True, []
            for rank in range(ranks):
                with as_rank(world, rank):
                    step, given = step_of(rank)
                    if not world.is_settled:
                        continue  # a later round will trace it
                    with explained(f"tracing {name}"):
                        if runs_on_devices(step, given):  # one program of all ranks
                            model, of_all = trace_on_devices(name, step, given, ranks)
                            return model, [of_all]
                        traces.append(
                            trace(step, given, world.trace, scalars_are_inputs=scalars_are_inputs)
                        )
                    world.mirror = None
            if world.is_settled:
                return None, traces
        raise refusal(f"{name}: collectives in the set-up of the ranks never come to an end")

    model, traces = traced(scalars_are_inputs=False)
    if model is None:
        try:
            merged(name, traces)
        except CompileError:  # perhaps numbers differ, such as the first row of a rank's part
            return traced(scalars_are_inputs=True)
    return model, traces


def _step(name: str, made: Any) -> tuple[Any, Arguments]:
    """The step and its arguments that the program of a rank returns."""
    if isinstance(made, tuple) and len(made) in (2, 3) and callable(made[0]):
        function, args, *rest = made
        kwargs = rest[0] if rest else {}
        if isinstance(args, list | tuple) and isinstance(kwargs, Mapping):
            return function, Arguments(tuple(args), dict(kwargs))
    raise refusal(
        f"{name} is called once for each rank, since it is given without arguments, and returns "
        f"{type(made).__name__} in place of the step and its arguments",
        advice="return (step, (x, y)), or give from_torch the step's arguments",
    )
