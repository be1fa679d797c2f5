"""Whole programs: modules, files on the command line, XLA devices."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import _functional_collectives as collectives

import ncc_compiler
import ncc_runtime
from ncc_compiler.cli import main
from tests import documents
from tests.torch.steps import TOLERANCE, mlp, run

ROOT = documents.ROOT


def child(
    *arguments: str, cwd: Path = ROOT, **environment: str
) -> subprocess.CompletedProcess[str]:
    """A fresh Python, since torch_xla decides on its devices once."""
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PJRT_DEVICE": "CPU", **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def test_marked_shardings_are_partitioned_by_xla() -> None:
    done = child("-m", "tests.torch.programs.sharded", CPU_NUM_DEVICES="8")
    assert done.stdout == "as torch has it\n", done.stderr


COMPILE = "import sys; from ncc_compiler.cli import main; sys.exit(main(sys.argv[1:]))"


def test_a_file_that_marks_shardings_gets_as_many_devices_as_ranks(tmp_path: Path) -> None:
    target = tmp_path / "step.neff"
    program = "tests/torch/programs/sharded.py:step"
    done = child("-c", COMPILE, "compile", program, "--ranks", "8", "-o", str(target), "--json")
    assert done.returncode == 0, done.stdout
    assert json.loads(done.stdout)["ranks"] == 8
    names = [info.name for info in ncc_runtime.load(str(target)).executable.program.parameters]
    assert {"up.weight", "up.bias", "down.weight", "down.bias", "x", "y"} <= set(names)


PROGRAM = """
import torch
import torch.distributed as dist

def step():
    dist.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 2))

    def train(x):
        model(x).square().mean().backward()

    return train, (torch.ones(3, 4),)

def alone():
    return torch.nn.Linear(4, 2), (torch.ones(3, 4),)
"""


def test_a_file_sets_up_each_rank(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    assert main(["compile", f"{tmp_path}/train.py:step", "--ranks", "4", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["ranks"], facts["collectives"]) == (4, 1)
    program = ncc_runtime.load(facts["neff"]).executable.program
    assert [info.name for info in program.results] == ["weight.grad", "bias.grad"]


def test_a_file_without_ranks_is_one_program(tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text(PROGRAM)
    assert main(["compile", f"{tmp_path}/one.py:alone"]) == 0
    done = ncc_runtime.load(f"{tmp_path}/alone.neff").run(
        {"weight": np.ones((2, 4)), "bias": np.zeros(2), "input": np.ones((3, 4))}
    )
    np.testing.assert_array_equal(done.result["result"], np.full((3, 2), 4))


def test_a_file_that_wants_ranks_is_told_how_it_gets_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "none.py").write_text(PROGRAM)
    assert main(["compile", f"{tmp_path}/none.py:step"]) == 1
    assert "--ranks N calls it once for each of N ranks" in capsys.readouterr().err


class Convolutions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2)
        )
        self.head = nn.Linear(8 * 4 * 4, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(x).flatten(1))


@pytest.mark.parametrize(
    ("make", "shape"),
    [
        (lambda: nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True), (2, 6, 16)),
        (lambda: nn.MultiheadAttention(16, 4, batch_first=True), None),
        (lambda: nn.LSTM(8, 12, batch_first=True), (2, 5, 8)),
        (Convolutions, (2, 3, 8, 8)),
        (lambda: nn.Sequential(nn.Embedding(11, 6), nn.LayerNorm(6), nn.SiLU()), (2, 7, None)),
        (lambda: nn.GroupNorm(2, 8), (2, 8, 5)),
    ],
)
def test_modules_forward_and_backward(make: Any, shape: tuple[int, ...] | None) -> None:
    torch.manual_seed(0)
    module = make().eval()
    if shape is None:
        args: tuple[torch.Tensor, ...] = tuple(torch.randn(2, 5, 16) for _ in range(3))
    elif shape[-1] is None:
        args = (torch.randint(0, 11, shape[:-1]),)
    else:
        args = (torch.randn(shape),)

    def step(*args: torch.Tensor) -> torch.Tensor:
        result = module(*args)
        result = result[0] if isinstance(result, tuple) else result
        result.square().mean().backward()
        return result

    got, gradients = run(step, *args).result
    with torch.no_grad():
        forward = run(module, *args).result
    want = step(*args)
    np.testing.assert_allclose(got, want.detach(), atol=TOLERANCE)
    forward = forward[0] if isinstance(forward, tuple) else forward
    np.testing.assert_allclose(forward, want.detach(), atol=TOLERANCE)
    for name, parameter in module.named_parameters():
        np.testing.assert_allclose(
            gradients[f"{name}.grad"], parameter.grad, atol=TOLERANCE, err_msg=name
        )


def test_a_module_in_bfloat16_and_one_under_autocast() -> None:
    x = torch.randn(8, 16)
    module = mlp().to(torch.bfloat16)
    got = run(module, x.bfloat16()).result
    assert got.dtype is torch.bfloat16
    np.testing.assert_allclose(
        got.float(), module(x.bfloat16()).float().detach(), atol=0.02, rtol=0.02
    )
    module = mlp()

    def cast(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return module(x)

    got = run(cast, x).result
    assert got.dtype is torch.bfloat16
    np.testing.assert_allclose(got.float(), cast(x).float().detach(), atol=0.02, rtol=0.02)


def test_trees_of_arguments_and_results_are_kept() -> None:
    def step(batch: dict[str, torch.Tensor], scale: float = 1.0) -> dict[str, Any]:
        return {"sum": batch["x"].sum() * scale, "parts": [batch["x"][0], None]}

    neff = ncc_compiler.from_torch(step, {"x": torch.ones(3, 2)}, scale=2.0)
    model = ncc_runtime.load(neff)
    assert [info.name for info in neff.program.parameters] == ["batch['x']"]
    assert model.run().result["sum"] == 12
    done = model.run({"x": torch.full((3, 2), 2.0)}, scale=2.0).result
    assert done["sum"] == 24
    assert torch.equal(done["parts"][0], torch.tensor([2.0, 2.0]))
    assert done["parts"][1] is None
    assert model.run({"batch['x']": np.full((3, 2), 3.0, np.float32)}).result["sum"] == 36


EVERY = {
    "all_reduce": (lambda x, group: collectives.all_reduce(x, "sum", group), lambda x: x.sum(0)),
    "average": (lambda x, group: collectives.all_reduce(x, "avg", group), lambda x: x.mean(0)),
    "maximum": (lambda x, group: collectives.all_reduce(x, "max", group), lambda x: x.amax(0)),
    "all_gather": (
        lambda x, group: collectives.all_gather_tensor(x, 0, group),
        lambda x: x.flatten(0, 1),
    ),
    "gather of columns": (
        lambda x, group: collectives.all_gather_tensor(x, 1, group),
        lambda x: torch.cat(list(x), 1),
    ),
    "broadcast": (lambda x, group: collectives.broadcast(x, 1, group), lambda x: x[1]),
}


@pytest.mark.parametrize("name", EVERY)
def test_functional_collectives_over_all_ranks(name: str) -> None:
    function, want = EVERY[name]

    def program() -> Any:
        dist.init_process_group("gloo")
        torch.manual_seed(dist.get_rank())
        return lambda x: function(x, dist.group.WORLD) + 0, (torch.randn(4, 3),)

    got = run(program, ranks=4).result
    given = []
    for rank in range(4):
        torch.manual_seed(rank)
        given.append(torch.randn(4, 3))
    for part in got:
        np.testing.assert_allclose(part, want(torch.stack(given)), atol=TOLERANCE)


def test_collectives_that_give_each_rank_another_part() -> None:
    def program() -> Any:
        dist.init_process_group("gloo")
        pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
        group = pairs[dist.get_rank() // 2]

        def step(x: torch.Tensor) -> Any:
            scattered = collectives.reduce_scatter_tensor(x, "sum", 0, group)
            swapped = collectives.all_to_all_single(x, None, None, group)
            out = torch.empty(2, 4)
            dist.all_gather_into_tensor(out, x[:1], group=group)
            parts = [torch.empty(4), torch.empty(4)]
            dist.all_gather(parts, x[1], group=group)
            return scattered + 0, swapped + 0, out, parts

        return step, (torch.arange(8.0).view(2, 4) + 100 * dist.get_rank(),)

    scattered, swapped, out, (first, second) = run(program, ranks=4).result
    x = torch.arange(8.0).view(2, 4) + 100 * torch.arange(4.0)[:, None, None]
    for rank in range(4):
        low, place = 2 * (rank // 2), rank % 2
        np.testing.assert_array_equal(scattered[rank, 0], x[low, place] + x[low + 1, place])
        np.testing.assert_array_equal(swapped[rank], x[low : low + 2, place])
        np.testing.assert_array_equal(out[rank], x[low : low + 2, 0])
        np.testing.assert_array_equal(first[rank], x[low, 1])
        np.testing.assert_array_equal(second[rank], x[low + 1, 1])


def test_a_language_model_of_transformers_trains_as_torch_does() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=100,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=64,
    )
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(config)
    updating = torch.optim.SGD(model.parameters(), lr=0.1)
    ids = torch.randint(0, 100, (2, 16))

    def step(ids: torch.Tensor) -> torch.Tensor:
        updating.zero_grad()
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        updating.step()
        return loss

    got, state = run(step, ids).result
    want = step(ids)
    np.testing.assert_allclose(got, want.detach(), rtol=1e-6)
    for name, parameter in model.named_parameters():
        np.testing.assert_allclose(state[name], parameter.detach(), atol=1e-5, err_msg=name)
