"""What cannot be traced is refused, with the line of the user's program."""

import os
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch_xla.core import xla_model

import ncc_compiler
from ncc_compiler.diagnostics import CompileError

X = torch.ones(4, 4)


def refused(function: Any, *args: Any, **options: Any) -> str:
    with pytest.raises(CompileError) as caught:
        ncc_compiler.from_torch(function, *args, **options)
    return str(caught.value)


STEPS: dict[str, tuple[Callable[..., Any], str]] = {
    "item": (lambda x: x.sum().item(), r"test_refusals.py:\d+: .item\(\)"),
    "condition": (lambda x: x if x.sum() > 0 else -x, r"a condition"),
    "numpy": (lambda x: torch.from_numpy((x * 2).numpy()), r"numpy\(\)"),
    "tolist": (lambda x: torch.tensor((x * 2).tolist()), r"tolist\(\)"),
    "mask": (lambda x: x[x > 0], "aten::index.Tensor needs a value"),
    "nonzero": (lambda x: x.nonzero(), "nonzero"),
    "host": (torch.linalg.eigvals, "PyTorch/XLA has no HLO for aten::"),
    "host of what is computed": (lambda x: torch.linalg.eigvals(x * 2), "no HLO for aten::"),
    "nothing": (lambda _: None, "returns no tensor and changes no parameter"),
    "raises": (lambda x: x @ torch.ones(5), r"RuntimeError: .*\(.*test_refusals.py:\d+\)"),
    "arguments": (lambda x, _: x, "missing 1 required positional argument"),
}


@pytest.mark.parametrize("name", STEPS)
def test_a_step_that_is_no_program_is_refused_by_name(name: str) -> None:
    step, message = STEPS[name]
    assert re.search(message, refused(step, X))


def ranks_of(step: Callable[[int], Callable[..., Any]]) -> Callable[[], Any]:
    def program() -> Any:
        dist.init_process_group("gloo")
        return step(dist.get_rank()), (X,)

    return program


def test_ranks_that_run_different_programs_are_refused() -> None:
    def sizes(rank: int) -> Callable[..., Any]:
        return lambda x: x[: rank + 1].sum()

    assert "rank 0 and rank 1 run different programs" in refused(ranks_of(sizes), ranks=2)

    def some(rank: int) -> Callable[..., Any]:
        return lambda x: dist.all_reduce(x) or x if rank else x * 2

    message = refused(ranks_of(some), ranks=2)
    assert "rank 0 calls nothing where rank 1 calls all-reduce over 2 ranks" in message


def test_messages_between_two_ranks_are_refused() -> None:
    def sends(rank: int) -> Callable[..., Any]:
        return lambda x: dist.send(x, 1) if rank == 0 else dist.recv(x, 0)

    assert "torch.distributed.send: its ranks run different" in refused(ranks_of(sends), ranks=2)


def test_parts_of_several_sizes_are_refused() -> None:
    def uneven(_: int) -> Callable[..., Any]:
        return lambda x: dist.all_to_all_single(torch.empty(4, 4), x, [1, 3], [1, 3])

    assert "parts of several sizes" in refused(ranks_of(uneven), ranks=2)


def test_a_program_of_a_rank_returns_its_step() -> None:
    assert "returns Tensor in place of the step and its arguments" in refused(lambda: X, ranks=2)
    assert "ValueError: none" in refused(fails, ranks=2)


def fails() -> None:
    raise ValueError("none")


@pytest.fixture
def group() -> Iterator[None]:
    os.environ.update(MASTER_ADDR="localhost", MASTER_PORT="29517")
    dist.init_process_group("gloo", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("group")
def test_a_process_group_of_the_process_itself_is_in_the_way() -> None:
    assert "destroy_process_group()" in refused(ranks_of(lambda _: torch.neg), ranks=2)


def test_after_a_refusal_the_process_is_as_it_was() -> None:
    environment, state = dict(os.environ), torch.get_rng_state()
    refused(ranks_of(lambda _: lambda x: x.sum().item()), ranks=2)
    assert dict(os.environ) == environment
    assert torch.equal(torch.get_rng_state(), state)
    assert not dist.is_initialized()
    assert (X + 1).sum().item() == 32


def test_collectives_of_other_kinds_of_programs_are_refused() -> None:
    on_device = X.to("xla")
    message = refused(lambda x: xla_model.all_reduce("sum", x), on_device)
    assert "a collective of xla_model is of one process for each device" in message

    def program() -> Any:
        dist.init_process_group("xla")
        return lambda x: dist.all_reduce(x), (X.to("xla"),)

    assert "a collective of torch.distributed on xla tensors" in refused(program, ranks=1)


@pytest.mark.parametrize("ranks", [0, -3, "8"])
def test_a_world_has_a_positive_size(ranks: Any) -> None:
    assert "ranks is the size of a world" in refused(lambda: None, ranks=ranks)


def test_what_is_no_function_is_refused() -> None:
    assert "takes a module or a function, not a Tensor" in refused(X)
