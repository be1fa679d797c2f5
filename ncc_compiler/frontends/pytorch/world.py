"""torch.distributed in one process: a world of ranks that are run one after another.

`RankGroup` is the process group that programs get, whichever backend they ask for. What it does
depends on the time. While a rank's program sets itself up, it communicates tensors: a collective
takes what the other ranks passed to theirs when it was their turn. A rank that runs earlier than
one it needs takes its own tensor instead, and the set-up of all ranks is run once more; so each run
gets further, and the last one is right. While the step is traced, it records the collective.
"""

import contextlib
import os
import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor
from torch.distributed.tensor import _random as tensor_random
from torch.testing._internal.distributed.fake_pg import FakeStore

from ncc_compiler.frontends.pytorch.mirror import Mirror, check_equal_splits, users_line
from ncc_compiler.frontends.users_code import refusal

_BACKEND = "ncc"
_Key = tuple[tuple[int, ...], int, int]  # ranks, number among groups of these ranks, of its calls


class World:
    """What ranks pass to collectives while they are set up."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.rank = 0
        self.mirror: Mirror | None = None  # while a step is traced
        self.is_settled = True  # no rank of this round lacked a tensor of another's
        self._passed: dict[_Key, dict[int, list[torch.Tensor]]] = {}
        self._groups: dict[tuple[int, ...], int] = {}

    def begin(self, rank: int) -> None:
        """It is this rank's turn."""
        self.rank = rank
        self._groups = {}

    def trace(self, mirror: Mirror) -> None:
        """From here on collectives are traced."""
        self.mirror = mirror

    def number(self, ranks: tuple[int, ...]) -> int:
        """How many groups of these ranks there were before, on this rank."""
        self._groups[ranks] = self._groups.get(ranks, -1) + 1
        return self._groups[ranks]

    def exchange(self, key: _Key, tensors: Sequence[torch.Tensor]) -> list[list[torch.Tensor]]:
        """What each rank of the group passes to a collective."""
        passed = self._passed.setdefault(key, {})
        own = [tensor.detach().clone() for tensor in tensors]
        before = passed.get(self.rank)
        if before is None or not all(map(torch.equal, before, own)):
            passed[self.rank] = own
            self.is_settled &= before is None  # others have taken the old one
        missing = [rank for rank in key[0] if rank not in passed]
        self.is_settled &= not missing
        return [passed.get(rank, own) for rank in key[0]]


_world: World | None = None


class RankGroup(dist.ProcessGroup):
    """A process group of one rank of a World."""

    def __init__(self, world: World, ranks: Sequence[int]) -> None:
        super().__init__(list(ranks).index(world.rank), len(ranks))
        self._world = world
        self._ranks = tuple(ranks)
        self._number = world.number(self._ranks)
        self._calls = 0

    def getBackendName(self) -> str:  # noqa: N802 - torch's name
        return _BACKEND

    @property
    def group_name(self) -> str:
        return dist.distributed_c10d._world.pg_names[self]

    def _exchange(self, tensors: Sequence[torch.Tensor]) -> list[list[torch.Tensor]]:
        _refuse_devices(tensors)
        self._calls += 1
        return self._world.exchange((self._ranks, self._number, self._calls), tensors)

    def _perform(
        self,
        op: str,
        pairs: Sequence[tuple[torch.Tensor, torch.Tensor]],
        compute: Callable[[Sequence[torch.Tensor]], torch.Tensor],
        reduction: str = "",
        group: Sequence[int] = (),
    ) -> dist.Work:
        """A collective from each operand to its target.

        `compute` gives the value from those of all members, for the set-up.
        """
        mirror = self._world.mirror
        _refuse_devices([operand for operand, _ in pairs])
        if mirror is not None:
            for operand, target in pairs:
                ranks = group or self._ranks
                mirror.assign(target, *mirror.collective(op, ranks, operand, reduction))
        else:
            members = self._exchange([operand for operand, _ in pairs])
            with torch.no_grad():
                for number, (_, target) in enumerate(pairs):
                    value = compute([member[number] for member in members])
                    target.copy_(value.view(target.shape))
        return _done([target for _, target in pairs])

    def allreduce(self, tensors: list[torch.Tensor], opts: Any = None) -> dist.Work:
        name = _reduction(opts)
        return self._perform("all-reduce", [(x, x) for x in tensors], _REDUCE[name], name)

    def allreduce_coalesced(self, tensors: list[torch.Tensor], opts: Any = None) -> dist.Work:
        return self.allreduce(tensors, opts)

    def _allgather_base(
        self, output: torch.Tensor, operand: torch.Tensor, opts: Any = None
    ) -> dist.Work:
        return self.allgather_into_tensor_coalesced([output], [operand], opts)

    def allgather_into_tensor_coalesced(
        self,
        outputs: list[torch.Tensor],
        operands: list[torch.Tensor],
        opts: Any = None,  # noqa: ARG002 - torch's signature
    ) -> dist.Work:
        pairs = [
            (x.view(1) if x.dim() == 0 else x, y) for x, y in zip(operands, outputs, strict=True)
        ]
        return self._perform("all-gather", pairs, torch.cat)

    def allgather(
        self,
        outputs: list[list[torch.Tensor]],
        operands: list[torch.Tensor],
        opts: Any = None,
    ) -> dist.Work:
        for parts, operand in zip(outputs, operands, strict=True):
            whole = operand.new_empty((len(parts), *operand.shape))
            self._allgather_base(whole, operand.unsqueeze(0), opts)
            for part, piece in zip(parts, whole.unbind(0), strict=True):
                part.copy_(piece)
        return _done([part for parts in outputs for part in parts])

    def _reduce_scatter_base(
        self, output: torch.Tensor, operand: torch.Tensor, opts: Any = None
    ) -> dist.Work:
        return self.reduce_scatter_tensor_coalesced([output], [operand], opts)

    def reduce_scatter_tensor_coalesced(
        self, outputs: list[torch.Tensor], operands: list[torch.Tensor], opts: Any = None
    ) -> dist.Work:
        name = _reduction(opts)

        def compute(values: Sequence[torch.Tensor]) -> torch.Tensor:
            return _REDUCE[name](values).chunk(self.size())[self.rank()]

        pairs = list(zip(operands, outputs, strict=True))
        return self._perform("reduce-scatter", pairs, compute, name)

    def reduce_scatter(
        self, outputs: list[torch.Tensor], operands: list[list[torch.Tensor]], opts: Any = None
    ) -> dist.Work:
        for output, parts in zip(outputs, operands, strict=True):
            self._reduce_scatter_base(output.unsqueeze(0), torch.stack(list(parts)), opts)
        return _done(outputs)

    def alltoall_base(
        self,
        output: torch.Tensor,
        operand: torch.Tensor,
        output_split_sizes: list[int],
        input_split_sizes: list[int],
        opts: Any = None,  # noqa: ARG002 - torch's signature
    ) -> dist.Work:
        for sizes in (output_split_sizes, input_split_sizes):
            check_equal_splits(sizes, users_line())

        def compute(values: Sequence[torch.Tensor]) -> torch.Tensor:
            return torch.cat([value.chunk(self.size())[self.rank()] for value in values])

        return self._perform("all-to-all", [(operand, output)], compute)

    def alltoall(
        self, outputs: list[torch.Tensor], operands: list[torch.Tensor], opts: Any = None
    ) -> dist.Work:
        operand = torch.stack(operands)
        whole = torch.empty_like(operand)
        self.alltoall_base(whole, operand, [], [], opts)
        for output, piece in zip(outputs, whole.unbind(0), strict=True):
            output.copy_(piece)
        return _done(outputs)

    def broadcast(self, tensors: list[torch.Tensor], opts: Any) -> dist.Work:
        root = opts.rootRank
        sender = self._ranks[root]
        group = (sender, *(rank for rank in self._ranks if rank != sender))
        pairs = [(x, x) for x in tensors]
        return self._perform("collective-broadcast", pairs, lambda x: x[root], group=group)

    def scatter(
        self, outputs: list[torch.Tensor], operands: list[list[torch.Tensor]], opts: Any
    ) -> dist.Work:
        if self._world.mirror is not None:
            _refuse("scatter")
        parts = operands[0] if operands else []
        sent = self._exchange(parts)[opts.rootRank]
        if sent:  # else it is the turn of a rank before the sender's
            with torch.no_grad():
                outputs[0].copy_(sent[self.rank()])
        else:
            self._world.is_settled = False
        return _done(outputs)

    def gather(
        self, outputs: list[list[torch.Tensor]], operands: list[torch.Tensor], opts: Any
    ) -> dist.Work:
        if self._world.mirror is not None:
            _refuse("gather")
        members = self._exchange(operands)
        if self.rank() == opts.rootRank:
            for output, (value,) in zip(outputs[0], members, strict=True):
                output.copy_(value)
        return _done(operands)

    def reduce(self, tensors: list[torch.Tensor], opts: Any) -> dist.Work:
        if self._world.mirror is not None:
            _refuse("reduce")
        name, members = _reduction(opts), self._exchange(tensors)
        if self.rank() == opts.rootRank:
            for number, tensor in enumerate(tensors):
                tensor.copy_(_REDUCE[name]([member[number] for member in members]))
        return _done(tensors)

    def barrier(self, opts: Any = None) -> dist.Work:  # noqa: ARG002 - torch's signature
        return _done([])

    def send(self, *_: Any) -> dist.Work:
        _refuse("send")

    def recv(self, *_: Any) -> dist.Work:
        _refuse("recv")

    def recv_anysource(self, *_: Any) -> dist.Work:
        _refuse("recv")


def _refuse_devices(tensors: Sequence[torch.Tensor]) -> None:
    if any(tensor.device.type != "cpu" for tensor in tensors):
        raise refusal(
            f"a collective of torch.distributed on {tensors[0].device.type} tensors",
            line=users_line(),
            advice="have the program of a rank on the CPU, whose operations are traced; what is on "
            "XLA devices is partitioned by its shardings",
        )


def _refuse(name: str) -> Any:
    raise refusal(
        f"torch.distributed.{name}: its ranks run different programs, and all of them must run one",
        line=users_line(),
        advice="call all_reduce, all_gather, reduce_scatter, all_to_all or broadcast; stages of a "
        "pipeline are compiled one by one",
    )


def _done(tensors: Sequence[torch.Tensor]) -> dist.Work:
    """Work that is complete; its future has the tensors, as DistributedDataParallel needs it."""
    future: torch.futures.Future[Any] = torch.futures.Future()
    future.set_result(list(tensors))
    return torch._C._distributed_c10d._create_work_from_future(future)


def _reduction(opts: Any) -> str:
    op = opts.reduceOp if opts is not None else dist.ReduceOp.SUM
    name = str(getattr(op, "op", op)).rpartition(".")[2].lower()
    if name not in _REDUCE:
        raise refusal(f"a reduction by {name} is not one that HLO has", line=users_line())
    return name


_REDUCE: Mapping[str, Callable[[Sequence[torch.Tensor]], torch.Tensor]] = {
    "sum": lambda x: torch.stack(list(x)).sum(0, dtype=x[0].dtype),
    "avg": lambda x: torch.stack(list(x)).mean(0),
    "product": lambda x: torch.stack(list(x)).prod(0, dtype=x[0].dtype),
    "min": lambda x: torch.stack(list(x)).amin(0),
    "max": lambda x: torch.stack(list(x)).amax(0),
}


def _create(options: Any, _: Any) -> RankGroup:
    if _world is None:
        raise refusal("the process group is only there while from_torch traces")
    ranks = options.global_ranks_in_group or range(options.group_size)
    return RankGroup(_world, list(ranks))


def _forget_ranks() -> None:
    """Empties what torch remembers of meshes: those of two ranks are equal, but lie elsewhere."""
    DTensor._op_dispatcher.sharding_propagator.propagate_op_sharding.cache.cache_clear()
    tensor_random._rng_tracker = None
    for name, module in list(sys.modules.items()):
        if name.startswith("torch.distributed.tensor"):
            for value in list(vars(module).values()):
                if hasattr(value, "cache_clear"):
                    value.cache_clear()


@contextlib.contextmanager
def as_rank(world: World, rank: int) -> Iterator[None]:
    """Run what is inside as one rank of the world: environment, process group, random state.

    All ranks begin with the random state that there was. A program's own init_process_group joins
    the group that is there.
    """
    global _world  # noqa: PLW0603 - torch creates groups by a function of its own signature
    if _BACKEND.upper() not in dist.Backend._plugins:
        dist.Backend.register_backend(_BACKEND, _create, extended_api=True, devices=["cpu"])
    world.begin(rank)
    _world = world
    _forget_ranks()
    environment = dict(os.environ)
    os.environ.update(
        {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(world.size),
            "LOCAL_WORLD_SIZE": str(world.size),
            "GROUP_RANK": "0",
            "MASTER_ADDR": "localhost",
            "MASTER_PORT": "29500",
        }
    )
    states = torch.get_rng_state(), np.random.get_state(), random.getstate()
    hook = sys.excepthook  # torch.distributed sets one that names the rank
    init, new_group = dist.init_process_group, dist.new_group

    def joined(*_: Any, **__: Any) -> None:
        """The program's own set-up: the group is there."""

    def any_group(*args: Any, **kwargs: Any) -> Any:
        """A group of our backend, whichever the program names."""
        kwargs.pop("backend", None)
        kwargs.pop("pg_options", None)
        return new_group(*args[:2], **kwargs)

    dist.init_process_group(_BACKEND, rank=rank, world_size=world.size, store=FakeStore())
    dist.init_process_group, dist.new_group = joined, any_group
    try:
        yield
    finally:
        dist.init_process_group, dist.new_group = init, new_group
        if dist.is_initialized():
            dist.destroy_process_group()
        sys.excepthook = hook
        torch.set_rng_state(states[0])
        np.random.set_state(states[1])
        random.setstate(states[2])
        os.environ.clear()
        os.environ.update(environment)
        _world = None
