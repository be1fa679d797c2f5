"""Names for tensors of a PyTorch program: those of modules, optimizers, variables, arguments."""

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import attrs
import torch
from torch.utils import _pytree as pytree


@attrs.frozen
class Arguments:
    """What a step is called with."""

    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = attrs.field(factory=dict)


@attrs.define(eq=False)
class State:
    """The modules and optimizers that a function reaches, and the tensors they hold by name."""

    modules: dict[int, tuple[str, torch.nn.Module]] = attrs.field(factory=dict)
    optimizers: dict[int, tuple[str, torch.optim.Optimizer]] = attrs.field(factory=dict)
    tensors: dict[int, tuple[str, torch.Tensor]] = attrs.field(factory=dict)

    @classmethod
    def of(cls, function: Callable[..., Any], arguments: "Arguments") -> "State":
        """What is found through closures, globals that the code names, attributes and arguments."""
        state = cls()
        state._visit("", function, 0, set())
        for argument in (*arguments.args, *arguments.kwargs.values()):
            if not isinstance(argument, torch.Tensor):
                state._visit("", argument, 0, set())
        return state

    def _visit(self, name: str, value: Any, depth: int, seen: set[int]) -> None:
        if id(value) in seen or depth > _DEPTH:
            return
        seen.add(id(value))
        if isinstance(value, torch.Tensor):
            self.tensors.setdefault(id(value), (name, value))
        elif isinstance(value, torch.nn.Module):
            self.modules.setdefault(id(value), (name, value))
        elif isinstance(value, torch.optim.Optimizer):
            self.optimizers.setdefault(id(value), (name, value))
        elif isinstance(value, Mapping):
            for key, item in list(value.items())[:_MOST_ITEMS]:
                self._visit(f"{name}[{key!r}]", item, depth + 1, seen)
        elif isinstance(value, list | tuple | set):
            for number, item in enumerate(list(value)[:_MOST_ITEMS]):
                self._visit(f"{name}[{number}]", item, depth + 1, seen)
        elif isinstance(value, functools.partial):
            for item in (value.func, *value.args, *value.keywords.values()):
                self._visit(name, item, depth, seen)
        elif inspect.ismethod(value):
            self._visit(name, value.__self__, depth, seen)
            self._visit(name, value.__func__, depth, seen)
        elif inspect.isfunction(value):
            for key, item in _referenced(value):
                self._visit(key, item, depth + 1, seen)
        elif hasattr(value, "__dict__") and not inspect.ismodule(value) and _is_users(value):
            for key, item in vars(value).items():
                self._visit(f"{name}.{key}" if name else key, item, depth + 1, seen)

    def named(self) -> Iterator[tuple[str, torch.Tensor]]:
        """All tensors with their names: parameters, buffers, states of optimizers, variables."""
        roots = [
            (name, module)
            for name, module in self.modules.values()
            if not any(
                module is not other and any(module is child for child in other.modules())
                for _, other in self.modules.values()
            )
        ]
        of_parameters: dict[int, str] = {}
        for name, module in roots:
            prefix = f"{name}." if len(roots) > 1 and name else ""
            inner = module.module if _is_wrapper(module) else module
            arrays = [*inner.named_parameters(), *inner.named_buffers()]
            for key, tensor in arrays:
                of_parameters.setdefault(id(tensor), f"{prefix}{key}")
                yield f"{prefix}{key}", tensor
        for name, optimizer in self.optimizers.values():
            numbers = _numbers_of(optimizer)
            for parameter, values in optimizer.state.items():
                known = self.tensors.get(id(parameter), ("", None))[0]
                owner = of_parameters.get(id(parameter)) or known or str(numbers[id(parameter)])
                for key, value in values.items():
                    if isinstance(value, torch.Tensor):
                        yield f"{name or 'optimizer'}.{key}.{owner}", value
        for name, tensor in self.tensors.values():
            if name:
                yield name, tensor


_DEPTH = 4
_MOST_ITEMS = 10_000


def _numbers_of(optimizer: torch.optim.Optimizer) -> dict[int, int]:
    """The number of each parameter of an optimizer."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    return {id(parameter): number for number, parameter in enumerate(parameters)}


def _is_wrapper(module: torch.nn.Module) -> bool:
    return isinstance(module, torch.nn.parallel.DistributedDataParallel)


def _is_users(value: Any) -> bool:
    module = type(value).__module__ or ""
    return module.partition(".")[0] not in ("torch", "torch_xla", "builtins", "numpy")


def _referenced(function: Any) -> Iterator[tuple[str, Any]]:
    """The variables that a function takes from around it, and its defaults."""
    variables = inspect.getclosurevars(function)
    yield from variables.nonlocals.items()
    for name, value in variables.globals.items():
        if not inspect.isclass(value) and not inspect.ismodule(value):
            yield name, value
    for value in function.__defaults__ or ():
        yield "", value


def argument_names(
    function: Callable[..., Any], arguments: "Arguments"
) -> list[tuple[str, torch.Tensor]]:
    """The tensors in the arguments, named as the function's parameters: `x`, `batch['ids']`."""
    target = function.forward if isinstance(function, torch.nn.Module) else function
    try:
        bound = inspect.signature(target).bind(*arguments.args, **arguments.kwargs)
    except (TypeError, ValueError):  # the call will say what is wrong
        return []
    return [pair for name, value in bound.arguments.items() for pair in tensors_in(value, name)]


def tensors_in(value: Any, name: str) -> list[tuple[str, torch.Tensor]]:
    """The tensors in a value, with the path to each."""
    return [
        (f"{name}{pytree.keystr(path)}", leaf)
        for path, leaf in pytree.tree_flatten_with_path(value)[0]
        if isinstance(leaf, torch.Tensor)
    ]
