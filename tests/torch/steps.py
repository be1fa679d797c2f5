"""Small models, and a step that trains one, as users write them."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

import ncc_compiler
import ncc_runtime
from ncc_runtime.report.run import Run

TOLERANCE = 2e-6  # float32, of values around 1


class Mlp(nn.Module):
    def __init__(self, width: int = 16, hidden: int = 64) -> None:
        super().__init__()
        self.up = nn.Linear(width, hidden)
        self.down = nn.Linear(hidden, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(nn.functional.gelu(self.up(x)))


def mlp() -> Mlp:
    torch.manual_seed(0)
    return Mlp()


def batch(seed: int, rows: int = 8, width: int = 16) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shape = (rows, width)
    return torch.randn(shape, generator=generator), torch.randn(shape, generator=generator)


def training(
    model: nn.Module, optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.AdamW
) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """A step: forward, backward, update."""
    updating = optimizer(model.parameters(), lr=0.01)

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        updating.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        updating.step()
        return loss

    return step


def run(function: Any, *args: Any, given: tuple[Any, ...] = (), **options: Any) -> Run:
    """A run on trn2 of what from_torch makes of a function; `given` are arguments of the run."""
    neff = ncc_compiler.from_torch(function, *args, **options)
    return ncc_runtime.load(neff, topology="trn2").run(*given)


def assert_trained(state: dict[str, torch.Tensor], model: nn.Module) -> None:
    """That parameters, whole or the same on each rank, are those that torch has trained."""
    for name, parameter in model.named_parameters():
        got = state[name].float()
        want = parameter.detach().float().expand(got.shape)
        np.testing.assert_allclose(got, want, atol=TOLERANCE, rtol=TOLERANCE, err_msg=name)
