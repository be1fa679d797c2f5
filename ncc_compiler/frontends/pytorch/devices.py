"""Steps on XLA devices, whose tensors carry `mark_sharding`: traced once, for XLA to partition."""

import contextlib
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import attrs
import torch
import torch_xla
import torch_xla.runtime as xr
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch_xla.core import xla_model as xm

from ncc_compiler.frontends.foreign import ModelText, to_hlo_text
from ncc_compiler.frontends.pytorch.mirror import XLA, is_execution, line_of, users_line
from ncc_compiler.frontends.pytorch.names import Arguments, State, argument_names, tensors_in
from ncc_compiler.frontends.pytorch.ranks import Output, RankPart, StepTrace
from ncc_compiler.frontends.pytorch.trace import as_numpy, gradients_of, put_back, states_of
from ncc_compiler.frontends.users_code import refusal


def runs_on_devices(function: Callable[..., Any], arguments: Arguments) -> bool:
    """Whether a tensor that a step uses is on an XLA device."""
    named = [*State.of(function, arguments).named(), *argument_names(function, arguments)]
    return any(tensor.device.type == "xla" for _, tensor in named)


def trace_on_devices(
    name: str, function: Callable[..., Any], arguments: Arguments, ranks: int | None
) -> tuple[ModelText, StepTrace]:
    """The HLO of one rank, partitioned by XLA; modules and optimizers are left as they were.

    Without `ranks` it is for as many as the process has virtual devices.
    """
    partitions = xr.global_runtime_device_count() if xr.is_spmd() else 1
    if ranks not in (None, partitions):
        raise refusal(
            f"{ranks} ranks, but this process traces for {partitions} devices",
            advice=f"set CPU_NUM_DEVICES={ranks} in the environment before torch_xla is first "
            "used, and call torch_xla.runtime.use_spmd()",
        )
    torch_xla.sync(wait=True)  # what came before the step is not part of it
    xm.wait_device_ops()  # until then tensors have no handles, and to ask for them is a crash
    given = argument_names(function, arguments)
    before = State.of(function, arguments)
    named = [(label, x) for label, x in [*before.named(), *given] if x.device.type == "xla"]
    handles = XLA._get_tensors_handle([tensor for _, tensor in named])
    names = {handle: label for handle, (label, _) in zip(handles, named, strict=True)}
    leaves, spec = pytree.tree_flatten((arguments.args, dict(arguments.kwargs)))
    kept = [(tensor, tensor.detach().clone()) for _, tensor in named]
    argument_handles = [
        XLA._get_tensors_handle([x])[0]
        if isinstance(x, torch.Tensor) and x.device.type == "xla"
        else None
        for x in leaves
    ]
    states, gradients = states_of(before), gradients_of(before)
    try:
        with _no_execution(), _HostReads():
            result = _called(function, arguments)
        results = [(path, x) for path, x in tensors_in(result, "result") if x.device.type == "xla"]
        parts, tree = pytree.tree_flatten(result)
        numbers = itertools.count()
        parts = [
            Output(next(numbers)) if isinstance(x, torch.Tensor) and x.device.type == "xla" else x
            for x in parts
        ]
        results += _changed(State.of(function, arguments), {id(x) for _, x in results})
        if not results:
            raise refusal("the step returns no tensor on an XLA device and changes no parameter")
        tensors = [tensor for _, tensor in results]
        stablehlo = xm.get_stablehlo_bytecode(tensors)
        _, data = XLA._get_tensors_xla_device_data_node(tensors)
        inputs = XLA._get_tensors_handle(data)
        values = tuple(as_numpy(tensor) for tensor in data)
    finally:
        with torch.no_grad():
            for tensor, old in kept:
                if XLA._check_tensor_need_materialization([tensor])[0]:
                    tensor.copy_(old)
        put_back(states, gradients)
    labels = [names.get(handle, f"captured.{k}") for k, handle in enumerate(inputs)]
    model = to_hlo_text(stablehlo, "StableHLO", name, partitions, advice="")
    model = attrs.evolve(
        model,
        parameters=tuple(
            attrs.evolve(array, name=label)
            for array, label in zip(model.parameters, labels, strict=True)
        ),
        results=tuple(
            attrs.evolve(array, name=label)
            for array, (label, _) in zip(model.results, results, strict=True)
        ),
        text=model.text.replace("HloModule IrToHlo", f"HloModule {name}", 1),
    )
    trace = StepTrace(
        model.text,
        (),
        tuple(map(RankPart, labels)),
        values,
        tuple(RankPart(label) for label, _ in results),
        tuple(tensor.dtype for tensor in tensors),
        spec,
        tuple(inputs.index(handle) if handle in inputs else None for handle in argument_handles),
        (parts, tree),
    )
    return model, trace


def _called(function: Callable[..., Any], arguments: Arguments) -> Any:
    """What the step returns. Raises CompileError where PyTorch/XLA would have to leave XLA."""
    XLA._clear_xla_counters()
    try:
        result, line = function(*arguments.args, **arguments.kwargs), ""
    except RuntimeError as error:
        if not is_execution(error):
            raise
        result, line = None, line_of(error)
    on_host = XLA._get_executed_fallback_ops()
    if on_host or line:
        names = ", ".join(on_host) or "an operation"
        fact = f"PyTorch/XLA has no HLO for {names} and would compute it on the host"
        raise refusal(fact, line=line)
    return result


def _changed(after: State, known: set[int]) -> list[tuple[str, torch.Tensor]]:
    """What the step leaves behind: tensors that wait for a value; gradients if nothing else."""

    def waits(tensor: torch.Tensor | None) -> bool:
        if tensor is None or tensor.device.type != "xla" or id(tensor) in known:
            return False
        return bool(XLA._check_tensor_need_materialization([tensor])[0])

    named = list({id(tensor): (name, tensor) for name, tensor in after.named()}.values())
    changed = [(name, tensor) for name, tensor in named if waits(tensor)]
    if any(tensor.requires_grad for _, tensor in changed):
        return changed
    return changed + [(f"{name}.grad", tensor.grad) for name, tensor in named if waits(tensor.grad)]


class _HostReads(TorchFunctionMode):
    """Refuses what would have to execute the step so far to give the host a value."""

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Pass on all other functions."""
        name = _READS.get(func)
        if name is not None and isinstance(args[0], torch.Tensor) and args[0].device.type == "xla":
            raise refusal(
                f"{name} needs a value that the program computes, so it is not one XLA graph but "
                "several, with the host between them",
                line=users_line(),
                advice="return the tensor, and read it after the step; choose with torch.where",
            )
        return func(*args, **(kwargs or {}))


_READS = {
    torch.Tensor.item: ".item()",
    torch.Tensor.tolist: ".tolist()",
    torch.Tensor.numpy: ".numpy()",
    torch.Tensor.cpu: ".cpu()",
    torch.Tensor.__bool__: "a condition",
    torch.Tensor.__int__: "int()",
    torch.Tensor.__float__: "float()",
    torch.Tensor.__array__: "numpy.asarray",
    torch.Tensor.nonzero: ".nonzero()",
    torch.nonzero: "torch.nonzero",
}


@contextlib.contextmanager
def _no_execution() -> Iterator[None]:
    """Lets nothing cut the step in two: synchronisations do nothing, executions are errors."""
    marks = (
        "_xla_step_marker",
        "_xla_sync_multi",
        "_xla_wait_device_ops",
        "_xla_sync_live_tensors",
    )
    saved = [(XLA, name, getattr(XLA, name)) for name in marks]
    saved += [(xm, name, getattr(xm, name)) for name in _COLLECTIVES]
    for owner, name, _ in saved:
        setattr(owner, name, _nothing if owner is XLA else _refused)
    XLA._set_allow_execution(False)
    try:
        yield
    finally:
        XLA._set_allow_execution(True)
        for owner, name, function in saved:
            setattr(owner, name, function)


_COLLECTIVES = (
    "all_reduce",
    "all_gather",
    "all_to_all",
    "collective_permute",
    "collective_broadcast",
    "reduce_scatter",
)


def _nothing(*_: Any, **__: Any) -> None:
    """Stands for a synchronisation."""


def _refused(*_: Any, **__: Any) -> Any:
    raise refusal(
        "a collective of xla_model is of one process for each device, and this is one process",
        line=users_line(),
        advice="mark shardings, from which XLA makes collectives; or have the program of a rank on "
        "the CPU, with collectives of torch.distributed",
    )
