"""A step on XLA devices with mark_sharding: torch_xla decides on its devices once per process."""

import numpy as np
import torch
import torch_xla
import torch_xla.runtime as xr
from torch import nn
from torch_xla.distributed import spmd

from tests.torch.steps import assert_trained, batch, mlp, run, training


def step() -> tuple:
    """Data-parallel over 2 and tensor-parallel over 4 ranks."""
    xr.use_spmd()
    mesh = spmd.Mesh(np.arange(8), (2, 4), ("data", "model"))
    model = mlp().to(torch_xla.device())
    spmd.mark_sharding(model.up.weight, mesh, ("model", None))
    spmd.mark_sharding(model.down.weight, mesh, (None, "model"))
    tensors = [tensor.to(torch_xla.device()) for tensor in batch(0)]
    for tensor in tensors:
        spmd.mark_sharding(tensor, mesh, ("data", None))
    return training(model, torch.optim.SGD), tuple(tensors)


def check() -> None:
    made, args = step()  # before any backward, since autograd counts devices only once
    want = mlp()
    loss = training(want, torch.optim.SGD)(*batch(0))
    for _ in range(2):  # the first leaves the model as it was
        done = run(made, *args)
        got, state = done.result
        np.testing.assert_allclose(got, loss.detach(), rtol=1e-6)
        assert_trained(state, want)
        assert {row.group_size for row in done.collectives} == {2, 4}
    other = run(made, *args, given=batch(5)).result[0]
    want = mlp()
    np.testing.assert_allclose(other, nn.functional.mse_loss(want(batch(5)[0]), batch(5)[1]).item())
    print("as torch has it")


if __name__ == "__main__":
    check()
