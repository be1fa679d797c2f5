"""Training steps over ranks of torch.distributed, against torch on one CPU."""

from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import _functional_collectives as collectives
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

from tests.torch.steps import TOLERANCE, assert_trained, batch, mlp, run, training

# These divide a gradient by its own size, which makes the rounding of one near 0 as large as a
# step: the order of an all-reduce would show. With this added to the size it does not.
EPS = 1e-3

OPTIMIZERS = [
    lambda parameters, lr: torch.optim.AdamW(parameters, lr, eps=EPS),
    torch.optim.SGD,
    lambda parameters, lr: torch.optim.SGD(parameters, lr, momentum=0.9, nesterov=True),
    lambda parameters, lr: torch.optim.Adam(parameters, lr, eps=EPS, foreach=True),
    lambda parameters, lr: torch.optim.Adagrad(parameters, lr, eps=EPS),
    lambda parameters, lr: torch.optim.RMSprop(parameters, lr, eps=EPS),
]


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_data_parallel_training_reduces_gradients_over_8_ranks(optimizer: Any) -> None:
    def program() -> Any:
        dist.init_process_group("gloo")
        model = nn.parallel.DistributedDataParallel(mlp())
        return training(model, optimizer), batch(dist.get_rank())

    done = run(program, ranks=8)
    losses, state = done.result
    model = mlp()
    parts = [batch(rank) for rank in range(8)]
    x, y = (torch.cat(tensors) for tensors in zip(*parts, strict=True))
    loss = training(model, optimizer)(x, y)
    assert losses.mean() == pytest.approx(loss.item(), rel=1e-6)
    assert_trained(state, model)
    (row,) = done.collectives
    assert row.op == "all-reduce"
    assert row.bytes == 4 * sum(parameter.numel() for parameter in model.parameters())


def test_gradients_are_reduced_in_buckets_of_the_size_that_was_asked_for() -> None:
    def program() -> Any:
        dist.init_process_group("gloo")
        model = nn.parallel.DistributedDataParallel(mlp(), bucket_cap_mb=0.004)
        step = training(model)
        step(*batch(dist.get_rank()))  # DistributedDataParallel takes one bucket for the first step
        return step, batch(2 + dist.get_rank())

    _, state = (done := run(program, ranks=2)).result
    model = mlp()
    step = training(model)
    for first in (0, 2):
        step(*(torch.cat(pair) for pair in zip(batch(first), batch(first + 1), strict=True)))
    assert_trained(state, model)
    assert [row.op for row in done.collectives] == ["all-reduce"] * 2


def test_tensor_parallel_modules_train_as_one() -> None:
    def program() -> Any:
        mesh = init_device_mesh("cpu", (4,))
        plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
        return training(parallelize_module(mlp(), mesh, plan)), batch(0)

    done = run(program, ranks=4)
    losses, state = done.result
    model = mlp()
    loss = training(model)(*batch(0))
    np.testing.assert_allclose(losses, [loss.item()] * 4, rtol=1e-6)
    assert state["up.weight"].shape == (64, 16)
    assert_trained(state, model)
    assert {row.group_size for row in done.collectives} == {4}


def test_data_and_tensor_parallel_over_a_mesh_of_two_axes() -> None:
    def program() -> Any:
        mesh = init_device_mesh("cpu", (2, 4), mesh_dim_names=("data", "model"))
        plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
        model = parallelize_module(mlp(), mesh["model"], plan)
        updating = torch.optim.AdamW(model.parameters(), lr=0.01)

        def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            updating.zero_grad()
            loss = nn.functional.mse_loss(model(x), y)
            loss.backward()
            for parameter in model.parameters():
                part = parameter.grad.to_local()
                dist.all_reduce(part, dist.ReduceOp.AVG, group=mesh.get_group("data"))
            updating.step()
            return loss

        return step, batch(mesh.get_local_rank("data"))

    done = run(program, ranks=8)
    losses, state = done.result
    model = mlp()
    x, y = (torch.cat(tensors) for tensors in zip(batch(0), batch(1), strict=True))
    training(model)(x, y)
    assert_trained(state, model)
    assert {row.group_size for row in done.collectives} == {2, 4}
    assert losses[0] == losses[3] != losses[4]


class _CopyIn(torch.autograd.Function):
    """Megatron's f: identity forward, all-reduce backward."""

    @staticmethod
    def forward(_: Any, x: torch.Tensor) -> torch.Tensor:
        return x

    @staticmethod
    def backward(_: Any, gradient: torch.Tensor) -> torch.Tensor:
        return collectives.all_reduce(gradient, "sum", dist.group.WORLD)


class _Reduce(torch.autograd.Function):
    """Megatron's g: all-reduce forward, identity backward."""

    @staticmethod
    def forward(_: Any, x: torch.Tensor) -> torch.Tensor:
        return collectives.all_reduce(x, "sum", dist.group.WORLD)

    @staticmethod
    def backward(_: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient


class MegatronMlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        rank, size, whole = dist.get_rank(), dist.get_world_size(), mlp()
        rows = slice(rank * 64 // size, (rank + 1) * 64 // size)
        self.up_weight = nn.Parameter(whole.up.weight.detach()[rows].clone())
        self.up_bias = nn.Parameter(whole.up.bias.detach()[rows].clone())
        self.down_weight = nn.Parameter(whole.down.weight.detach()[:, rows].clone())
        self.down_bias = nn.Parameter(whole.down.bias.detach().clone())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = _CopyIn.apply(x)
        hidden = nn.functional.gelu(nn.functional.linear(x, self.up_weight, self.up_bias))
        return _Reduce.apply(nn.functional.linear(hidden, self.down_weight)) + self.down_bias


def test_a_megatron_mlp_of_functional_collectives_trains_as_one() -> None:
    def program() -> Any:
        dist.init_process_group("nccl")
        return training(nn.Sequential(MegatronMlp(), MegatronMlp()), torch.optim.SGD), batch(0)

    done = run(program, ranks=8)
    losses, state = done.result
    model = nn.Sequential(mlp(), mlp())
    loss = training(model, torch.optim.SGD)(*batch(0))
    np.testing.assert_allclose(losses, [loss.item()] * 8, rtol=1e-6)
    wholes = {}
    for layer in "01":
        wholes[f"{layer}.up.weight"] = torch.cat(list(state[f"{layer}.up_weight"]))
        wholes[f"{layer}.up.bias"] = torch.cat(list(state[f"{layer}.up_bias"]))
        wholes[f"{layer}.down.weight"] = torch.cat(list(state[f"{layer}.down_weight"]), 1)
        wholes[f"{layer}.down.bias"] = state[f"{layer}.down_bias"]
    assert_trained(wholes, model)
    # g of both layers, f of the second: nobody asks for the gradient of the first one's input
    assert [row.op for row in done.collectives] == ["all-reduce"] * 3


def test_a_vocabulary_over_ranks_whose_first_row_is_a_number_of_each_rank() -> None:
    def program() -> Any:
        dist.init_process_group("gloo")
        torch.manual_seed(0)
        first = 8 * dist.get_rank()
        table = torch.randn(32, 4)[first : first + 8]

        def look_up(ids: torch.Tensor) -> torch.Tensor:
            is_here = (ids >= first) & (ids < first + 8)
            rows = table[torch.where(is_here, ids - first, 0)]
            return collectives.all_reduce(rows * is_here[:, None], "sum", dist.group.WORLD)

        return look_up, (torch.tensor([3, 31, 8, 15, 16]),)

    got = run(program, ranks=4).result
    torch.manual_seed(0)
    want = torch.randn(32, 4)[[3, 31, 8, 15, 16]]
    assert torch.equal(got, want.expand(4, 5, 4))


def test_distributed_tensors_come_and_go_as_wholes() -> None:
    def program() -> Any:
        mesh = init_device_mesh("cpu", (2, 2))
        rows = distribute_tensor(torch.arange(32.0).view(8, 4), mesh, [Shard(0), Shard(1)])

        def double(x: DTensor) -> tuple[DTensor, DTensor]:
            return x * 2, x.redistribute(mesh, [Replicate(), Shard(0)])

        return double, (rows,)

    whole = torch.arange(32.0).view(8, 4)
    doubled, moved = run(program, ranks=4).result
    assert torch.equal(doubled, whole * 2)
    assert torch.equal(moved, whole)
    doubled, _ = run(program, ranks=4, given=(whole + 1,)).result
    assert torch.equal(doubled, (whole + 1) * 2)


def test_what_a_step_leaves_behind_is_an_output_and_its_own_objects_stay_as_they_were() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    step = training(model, lambda parameters, lr: torch.optim.SGD(parameters, lr, momentum=0.9))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    done = run(step, *batch(0, width=4))
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    loss, state = done.result
    want = step(*batch(0, width=4))
    np.testing.assert_allclose(loss, want.detach(), rtol=1e-6)
    assert_trained(state, model)
    np.testing.assert_allclose(state["1.running_mean"], model[1].running_mean, atol=TOLERANCE)
    assert state["1.num_batches_tracked"] == 1
    assert "updating.momentum_buffer.0.weight" in state
    second = run(step, *batch(1, width=4))  # with the optimizer's state as it is now
    want = step(*batch(1, width=4))
    np.testing.assert_allclose(second.result[0], want.detach(), rtol=1e-6)
    assert_trained(second.result[1], model)


def test_without_an_optimizer_the_gradients_are_what_is_left() -> None:
    model = mlp()

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        return loss

    _, state = run(step, *batch(0)).result
    step(*batch(0))
    assert sorted(state) == ["down.bias.grad", "down.weight.grad", "up.bias.grad", "up.weight.grad"]
    for name, parameter in model.named_parameters():
        np.testing.assert_allclose(state[f"{name}.grad"], parameter.grad, atol=TOLERANCE)
