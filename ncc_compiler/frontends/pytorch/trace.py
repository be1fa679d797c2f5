"""One rank's step as HLO text, with names and values of what it takes and gives."""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.utils import _pytree as pytree

from ncc_compiler.frontends.foreign import to_hlo_text
from ncc_compiler.frontends.pytorch.mirror import XLA, Leaf, Mirror, synced, tracing
from ncc_compiler.frontends.pytorch.names import Arguments, State, argument_names, tensors_in
from ncc_compiler.frontends.pytorch.ranks import Output, RankPart, StepTrace
from ncc_compiler.frontends.users_code import refusal


def trace(
    function: Callable[..., Any],
    arguments: Arguments,
    begin: Callable[[Mirror], None],
    *,
    scalars_are_inputs: bool = False,
) -> StepTrace:
    """StepTrace a step on the CPU; its modules and optimizers are left as they were.

    `begin` is told when the step starts. Numbers of Python are constants of the program, or inputs.
    """
    given = argument_names(function, arguments)
    before = State.of(function, arguments)
    known = {id(_local(tensor)): (name, tensor) for name, tensor in [*before.named(), *given]}
    states, gradients = states_of(before), gradients_of(before)
    leaves, spec = pytree.tree_flatten((arguments.args, dict(arguments.kwargs)))
    mirror = Mirror(
        [_local(tensor) for _, tensor in given], [_local(tensor) for _, tensor in known.values()]
    )
    XLA._set_xla_all_numbers_special_scalars(not scalars_are_inputs)
    XLA._set_xla_handle_special_scalars(not scalars_are_inputs)
    XLA._set_xla_enable_device_data_cache(not scalars_are_inputs)  # equal ones would be one input
    begin(mirror)
    try:
        with tracing(mirror):
            result = function(*arguments.args, **arguments.kwargs)
        results = tensors_in(result, "result")
        parts, tree = pytree.tree_flatten(result)
        numbers = itertools.count()
        parts = [Output(next(numbers)) if isinstance(x, torch.Tensor) else x for x in parts]
        results += _changed(mirror, State.of(function, arguments))
        if not results:
            raise refusal("the step returns no tensor and changes no parameter")
        images = [synced(mirror.image(_local(tensor))) for _, tensor in results]
        text = XLA._get_xla_tensors_hlo(images)
        if "{...}" in text:  # large constants, which only jaxlib prints
            proto = XLA._get_xla_tensors_hlo_proto(images)
            text = to_hlo_text(proto, "HLO", "the step", advice="").text
        ids, data = XLA._get_tensors_xla_device_data_node(images)
        by_id = {leaf.id: leaf for leaf in mirror.leaves}
        inputs = [_input(by_id.get(number), known, k) for k, number in enumerate(ids)]
        values = [
            as_numpy(by_id[number].before if number in by_id else tensor)
            for number, tensor in zip(ids, data, strict=True)
        ]
        inputs_by_tensor = {
            id(by_id[number].tensor): k for k, number in enumerate(ids) if number in by_id
        }
    finally:
        XLA._set_xla_all_numbers_special_scalars(False)
        XLA._set_xla_handle_special_scalars(True)
        XLA._set_xla_enable_device_data_cache(True)
        _restore(mirror, states, gradients)
    return StepTrace(
        text,
        tuple(mirror.collectives),
        tuple(inputs),
        tuple(values),
        tuple(_part(name, tensor) for name, tensor in results),
        tuple(tensor.dtype for _, tensor in results),
        spec,
        tuple(
            inputs_by_tensor.get(id(_local(leaf))) if isinstance(leaf, torch.Tensor) else None
            for leaf in leaves
        ),
        (parts, tree),
    )


def _local(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's part of a DTensor, or what a collective in flight gives."""
    if isinstance(tensor, DTensor):
        return _local(tensor._local_tensor)
    if isinstance(tensor, AsyncCollectiveTensor):
        return tensor.elem
    return tensor


def _changed(mirror: Mirror, after: State) -> list[tuple[str, torch.Tensor]]:
    """What the step leaves behind besides its result.

    Parameters, buffers and states of optimizers that it changed or made; gradients, if it changed
    no parameter.
    """
    changed, seen, has_updates = [], set(), False
    named = list(after.named())
    for name, tensor in named:
        local = _local(tensor)
        if id(local) in seen or not mirror.is_computed(local):
            continue
        seen.add(id(local))
        has_updates |= tensor.requires_grad
        changed.append((name, tensor))
    if has_updates:
        return changed
    for name, tensor in named:
        gradient = tensor.grad
        if gradient is None or id(tensor) in seen or not mirror.is_computed(_local(gradient)):
            continue
        seen.add(id(tensor))
        changed.append((f"{name}.grad", gradient))
    return changed


def _input(leaf: Leaf | None, known: dict[int, tuple[str, torch.Tensor]], number: int) -> RankPart:
    if leaf is None:
        return RankPart(f"scalar.{number}")
    name, like = known.get(id(leaf.tensor), (f"captured.{number}", leaf.tensor))
    return _part(name, like)


def _part(name: str, tensor: torch.Tensor) -> RankPart:
    """What is known of the whole array: a DTensor says how it lies on the ranks of its mesh."""
    local = tuple(_local(tensor).shape)
    if not isinstance(tensor, DTensor):
        return RankPart(name, local)
    mesh, placements = tensor.device_mesh, tensor.placements
    coordinate = mesh.get_coordinate()
    if coordinate is None or not all(isinstance(one, Shard | Replicate) for one in placements):
        return RankPart(name, local)  # of a partial sum no whole array lies on the ranks
    tiles, place = [1] * tensor.dim(), [0] * tensor.dim()
    for axis, placement in enumerate(placements):
        if isinstance(placement, Shard):  # the first axis cuts coarsest
            tiles[placement.dim] *= mesh.size(axis)
            place[placement.dim] = place[placement.dim] * mesh.size(axis) + coordinate[axis]
    tile = int(np.ravel_multi_index(place, tiles)) if tiles else 0
    return RankPart(name, local, tuple(tiles), tile, tuple(tensor.shape))


def as_numpy(tensor: torch.Tensor) -> np.ndarray:
    """The values; bfloat16 and the like as ml_dtypes has them."""
    import ml_dtypes

    tensor = tensor.detach().cpu().contiguous()
    name = str(tensor.dtype).removeprefix("torch.")
    if hasattr(ml_dtypes, name):
        return tensor.view(torch.uint8 if tensor.itemsize == 1 else torch.uint16).numpy().view(name)
    return tensor.numpy().copy()


States = Sequence[tuple[torch.optim.Optimizer, dict[Any, dict[str, Any]]]]
Gradients = Sequence[tuple[torch.Tensor, torch.Tensor | None]]


def states_of(state: State) -> States:
    """The optimizers with what they remember of each parameter."""
    return [
        (optimizer, {parameter: dict(values) for parameter, values in optimizer.state.items()})
        for _, optimizer in state.optimizers.values()
    ]


def gradients_of(state: State) -> Gradients:
    """The tensors with their gradients."""
    return [(tensor, tensor.grad) for _, tensor in state.named() if tensor.is_leaf]


def put_back(states: States, gradients: Gradients) -> None:
    """Undoes what a step did to optimizers and gradients."""
    for optimizer, state in states:
        optimizer.state.clear()
        optimizer.state.update(state)
    for tensor, gradient in gradients:
        tensor.grad = gradient


def _restore(mirror: Mirror, states: States, gradients: Gradients) -> None:
    """Undoes what the step did to the user's tensors: other ranks' parts in it are not computed."""
    with torch.no_grad():
        for leaf in mirror.leaves:
            if leaf.is_changed:
                leaf.tensor.detach().copy_(leaf.before)
    put_back(states, gradients)
