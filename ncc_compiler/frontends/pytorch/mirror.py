"""Traces a PyTorch program of one rank: every operation it runs on the CPU is repeated on XLA.

`Mirror` is a dispatch mode: below autograd, each ATen operation runs as the user's program has it,
on its own tensors, and once more on their images, lazy tensors of PyTorch/XLA, which compute
nothing and record what HLO they would be. So whatever calls ATen is traced, be it autograd, the
reducer of DistributedDataParallel, DTensor or an optimizer, and the program needs no XLA device.

Collectives appear in the HLO as custom calls with the number of a `Collective`, since PyTorch/XLA's
own have a token added to their operands; `ranks.py` spells them out once all ranks are known.
"""

import contextlib
import os
import sys
import traceback
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from types import FrameType
from typing import Any

import attrs
import torch
import torch_xla
from torch._decomp import decomposition_table
from torch._subclasses.fake_tensor import FakeTensor
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils.weak import WeakIdKeyDictionary

from ncc_compiler.frontends.users_code import is_users, refusal

XLA = torch_xla._XLAC
MARK = "ncc.collective"
"""The target of the custom calls that stand for collectives."""


@attrs.frozen
class Collective:
    """A collective that one rank calls."""

    op: str  # HLO's opcode
    group: tuple[int, ...]  # its ranks; a collective-broadcast's first one sends
    reduction: str = ""  # of ADD, MULTIPLY, MINIMUM, MAXIMUM, AND, OR, in lower case
    line: str = ""  # file:line of the user's program

    def matches(self, other: "Collective") -> bool:
        """Whether another rank's call may be the same collective."""
        ours = (self.op, self.reduction, len(self.group))
        return ours == (other.op, other.reduction, len(other.group))

    def __str__(self) -> str:
        return f"{self.op} over {len(self.group)} ranks"


@attrs.define(eq=False)
class Leaf:
    """A tensor that the program did not compute: it becomes an input."""

    tensor: torch.Tensor
    image: torch.Tensor
    id: int  # PyTorch/XLA's, which the HLO's parameters are known by
    before: torch.Tensor
    is_changed: bool = False


_PLAIN = (torch.Tensor, torch.nn.Parameter)
_RANDOM = torch.Tag.nondeterministic_seeded
_NEEDS_VALUES = torch.Tag.data_dependent_output


class Mirror(TorchDispatchMode):
    """While active, mirrors operations on CPU tensors as HLO."""

    def __init__(
        self, arguments: Sequence[torch.Tensor] = (), named: Sequence[torch.Tensor] = ()
    ) -> None:
        """`named` are tensors that the program has by name, its arguments among them."""
        super().__init__()
        self.leaves: list[Leaf] = []
        self.collectives: list[Collective] = []
        self._images = WeakIdKeyDictionary()
        self._is_known_here = WeakIdKeyDictionary()  # whether a value follows from no input
        self._storages: dict[int, tuple[torch.UntypedStorage, torch.Tensor, torch.Tensor]] = {}
        own = {id(tensor): tensor.untyped_storage()._cdata for tensor in named}
        users = Counter(own.values())
        # those become inputs as they are, though perhaps they are views of something larger
        self._inputs = {number for number, storage in own.items() if users[storage] == 1}
        self._leaf_of: dict[int, Leaf] = {}  # by storage
        self._arguments = {id(argument) for argument in arguments}
        self._device = torch_xla.device()

    def image(self, tensor: torch.Tensor) -> torch.Tensor:
        """The lazy tensor that stands for a tensor; one seen first is an input."""
        if tensor not in self._images:
            with _as_lazy():
                self._images[tensor] = self._image_of_leaf(tensor)
        return self._images[tensor]

    def is_computed(self, tensor: torch.Tensor) -> bool:
        """Whether the traced program gave the tensor its value."""
        if tensor not in self._images:
            return False
        leaf = self._leaf(tensor)
        return leaf is None or leaf.is_changed

    def _leaf(self, tensor: torch.Tensor) -> Leaf | None:
        """The input whose memory a tensor has."""
        return self._leaf_of.get(tensor.untyped_storage()._cdata)

    def _write(self, tensor: torch.Tensor) -> None:
        """Notes that the program writes to a tensor. DTensor does not raise its parts' versions."""
        leaf = self._leaf(tensor)
        if leaf is not None:
            leaf.is_changed = True

    def _image_of_leaf(self, tensor: torch.Tensor) -> torch.Tensor:
        self._is_known_here[tensor] = tensor.dim() == 0 and id(tensor) not in self._arguments
        storage = tensor.untyped_storage()
        shared = self._storages.get(storage._cdata)
        if shared is None:
            whole = tensor.detach()
            count = storage.nbytes() // tensor.element_size()
            is_view = tensor.numel() != count or not tensor.is_contiguous()
            if is_view and id(tensor) not in self._inputs:
                whole = whole.as_strided((count,), (1,), 0)
            before = whole.clone()
            lazy = before.to(self._device)
            owner = tensor if whole.shape == tensor.shape else whole
            number = XLA._xla_get_tensor_id(lazy)
            leaf = Leaf(owner, lazy, number, before)
            self.leaves.append(leaf)
            self._leaf_of[storage._cdata] = leaf
            self._storages[storage._cdata] = (storage, lazy, owner)
            if owner is tensor:
                return lazy
            shared = self._storages[storage._cdata]
        _, lazy, owner = shared
        if owner.numel() * owner.itemsize != storage.nbytes() or not owner.is_contiguous():
            raise refusal(
                "two tensors share memory, of which one is an input that is a part of it",
                line=users_line(),
                advice="clone() one of them",
            )
        if owner.dtype != tensor.dtype:
            raise refusal(
                f"two tensors share memory as {owner.dtype} and as {tensor.dtype}",
                line=users_line(),
            )
        return lazy.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Run one ATen operation twice."""
        if any(issubclass(kind, FakeTensor) for kind in types):
            return func(*args, **(kwargs or {}))  # shapes that DTensor works out
        if any(kind not in _PLAIN for kind in types):
            return NotImplemented  # DTensor and its like come again with tensors they consist of
        kwargs = kwargs or {}
        if func.namespace == "_c10d_functional":
            return self._functional_collective(func, args, kwargs)
        operands = [x for x in pytree.tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        if any(x.device.type == "meta" for x in operands) or _is_meta(kwargs.get("device")):
            return func(*args, **kwargs)
        is_factory = any(argument.name == "device" for argument in func._schema.arguments)
        if not operands and not is_factory:
            return func(*args, **kwargs)
        is_known = all(self._is_known(x) for x in operands) and _RANDOM not in func.tags
        if _NEEDS_VALUES in func.tags or _has_open_shape(func, args):
            return self._value(func, args, kwargs, is_known)
        lazy_args, lazy_kwargs = pytree.tree_map(self._lazy, (args, kwargs))
        result = func(*args, **kwargs)
        for tensor in _written(func, args, kwargs):
            self._write(tensor)
        if not operands:
            lazy_kwargs["device"] = self._device
        lazy_kwargs = {
            key: value
            for key, value in lazy_kwargs.items()
            if key not in ("generator", "pin_memory")
        }
        self._bind(result, self._lazily(func, lazy_args, lazy_kwargs), is_known=is_known)
        return result

    def _lazy(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return self.image(value)
        if isinstance(value, torch.Generator):
            return None
        return self._device if isinstance(value, torch.device) else value

    def _is_known(self, tensor: torch.Tensor) -> bool:
        self.image(tensor)
        return self._is_known_here.get(tensor, False)

    def _lazily(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The operation on lazy tensors, or those that it consists of, where XLA has none like it.

        Raises CompileError where it has neither.
        """
        decomposed = _DECOMPOSED.get(func)
        if decomposed is None or func not in _NOT_XLAS:
            with _as_lazy(), _quiet() if func not in _XLAS else contextlib.nullcontext():
                try:
                    made = func(*args, **kwargs)
                except RuntimeError as error:
                    if decomposed is None and not is_execution(error):
                        raise
                else:
                    # with operands that are inputs it computes at once, and executes nothing
                    if not XLA._get_executed_fallback_ops():
                        _XLAS.add(func)
                        return made
            XLA._clear_xla_counters()
            if decomposed is None or _written(func, args, kwargs):
                fact = f"PyTorch/XLA has no HLO for {func.name()} and would compute it on the host"
                raise refusal(fact, line=users_line())
            _NOT_XLAS.add(func)
        with _as_lazy():
            return decomposed(*args, **kwargs)

    def _bind(self, result: Any, lazy: Any, *, is_known: bool) -> None:
        """Remembers the images of an operation's results."""
        results, images = pytree.tree_leaves(result), pytree.tree_leaves(lazy)
        for tensor, image in zip(results, images, strict=True):
            if not isinstance(tensor, torch.Tensor):
                continue
            self._is_known_here[tensor] = is_known
            if tensor not in self._images:
                self._images[tensor] = image
                with contextlib.suppress(NotImplementedError, RuntimeError):  # without a storage
                    storage = tensor.untyped_storage()
                    if tensor.is_contiguous() and tensor.storage_offset() == 0:
                        entry = (storage, image, tensor)
                        self._storages.setdefault(storage._cdata, entry)

    def _value(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], is_known: bool
    ) -> Any:
        """What the host reads of tensors: allowed where no input of the step determines it."""
        if not is_known:
            name = (
                ".item(), or a condition," if "_local_scalar_dense" in func.name() else func.name()
            )
            raise refusal(
                f"{name} needs a value that the program computes, so it is not one program but "
                "several, with the host between them",
                line=users_line(),
                advice="return the tensor, and read it after the step; choose with torch.where",
            )
        return func(*args, **kwargs)

    # Collectives

    def emit(self, collective: Collective, tensor: torch.Tensor, image: torch.Tensor) -> Any:
        """The lazy result of a collective on a lazy operand; `tensor` is its shape on the CPU."""
        shape, members = list(tensor.shape), len(collective.group)
        if collective.op == "all-gather":
            shape[0] *= members
        elif collective.op in ("reduce-scatter", "all-to-all"):
            if shape[0] % members:
                raise refusal(
                    f"{collective.op}: {shape[0]} rows do not divide by {members} ranks",
                    line=users_line(),
                )
            shape[0] //= members if collective.op == "reduce-scatter" else 1
        number = str(len(self.collectives))
        self.collectives.append(attrs.evolve(collective, line=users_line()))
        with _as_lazy():
            made = XLA._xla_custom_call(
                [synced(image)], MARK, [shape], [image.dtype], False, number, 1, {}
            )
        return made[0]

    def collective(
        self, op: str, group: Sequence[int], tensor: torch.Tensor, reduction: str = ""
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """A collective of one operand: a tensor of the result's shape, and the lazy result.

        The values of the first are of no rank in particular, but in the operand's range. `avg` is a
        sum and a division, as NCCL has it.
        """
        kind = _REDUCTIONS.get(reduction, "") if reduction else ""
        if reduction and not kind:
            raise refusal(f"{op} with {reduction}: not one that HLO has", line=users_line())
        image = self.image(tensor)
        lazy = self.emit(Collective(op, tuple(group), kind), tensor, image)
        with _as_lazy():
            if reduction == "avg":
                lazy = lazy / len(group)
            if op == "all-gather":
                result = torch.cat([tensor.detach()] * len(group))
            elif op == "reduce-scatter":
                result = tensor.detach().chunk(len(group))[0].clone()
            else:
                result = tensor.detach().clone()
        return result, lazy

    def assign(self, target: torch.Tensor, value: torch.Tensor, lazy: torch.Tensor) -> None:
        """Overwrites a tensor of the program, whose collective it is."""
        image = self.image(target)
        self._is_known_here[target] = False
        self._write(target)
        with _as_lazy():
            target.detach().copy_(value.view(target.shape))
            image.copy_(lazy.view(target.shape))
        torch.autograd.graph.increment_version(target)

    def _functional_collective(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """One of torch.distributed._functional_collectives."""
        name = func._schema.name.removeprefix("_c10d_functional::")
        if name == "wait_tensor":
            return args[0]
        if name not in _FUNCTIONAL:
            raise refusal(f"collective {name} is not known", line=users_line())
        values = {
            argument.name: value
            for argument, value in zip(func._schema.arguments, args, strict=False)
        } | kwargs
        if name == "all_to_all_single":
            for key in ("output_split_sizes", "input_split_sizes"):
                check_equal_splits(values[key], users_line())
        group = list(group_of(values["group_name"]))
        if "src" in values:
            root = group[values["src"]]
            group = [root, *(rank for rank in group if rank != root)]
        tensors = values["inputs"] if "inputs" in values else [values["input"]]
        results = []
        for tensor in tensors:
            made = self.collective(_FUNCTIONAL[name], group, tensor, values.get("reduce_op", ""))
            if name.endswith("_") or "out" in values:
                target = values.get("out", tensor)
                self.assign(target, *made)
                results.append(target)
            else:
                self._bind(*made, is_known=False)
                results.append(made[0])
        return results if "inputs" in values else results[0]


def _fill(tensor: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    return tensor.copy_(value.expand(tensor.shape))


_DECOMPOSED: Mapping[Any, Any] = {
    **decomposition_table,
    torch.ops.aten.fill_.Tensor: _fill,
}
_XLAS: set[Any] = set()  # operations that PyTorch/XLA has
_NOT_XLAS: set[Any] = set()


def is_execution(error: RuntimeError) -> bool:
    """Whether PyTorch/XLA wanted to execute what it had recorded, as it does to leave XLA."""
    return "Unexpected execution" in str(error)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Nothing reaches standard error: PyTorch/XLA explains there what our errors say shorter."""
    sys.stderr.flush()
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def line_of(error: BaseException) -> str:
    """The innermost line of the user's program that an error came through."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if is_users(frame.filename)]
    return f"{own[-1].filename}:{own[-1].lineno}" if own else ""


def users_line() -> str:
    """Where the user's program is: file:line of the innermost frame that is no library's."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if is_users(file):
            return f"{file}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


_REDUCTIONS = {
    "sum": "add",
    "avg": "add",
    "product": "multiply",
    "prod": "multiply",
    "min": "minimum",
    "max": "maximum",
    "band": "and",
    "bor": "or",
    "bxor": "xor",
}
_FUNCTIONAL = {
    "all_reduce": "all-reduce",
    "all_reduce_": "all-reduce",
    "all_reduce_coalesced": "all-reduce",
    "all_reduce_coalesced_": "all-reduce",
    "all_gather_into_tensor": "all-gather",
    "all_gather_into_tensor_out": "all-gather",
    "all_gather_into_tensor_coalesced": "all-gather",
    "reduce_scatter_tensor": "reduce-scatter",
    "reduce_scatter_tensor_coalesced": "reduce-scatter",
    "all_to_all_single": "all-to-all",
    "broadcast": "collective-broadcast",
    "broadcast_": "collective-broadcast",
}


@contextlib.contextmanager
def _as_lazy() -> Iterator[None]:
    """Operations inside are on lazy tensors: no mode sees them, and views share what is written.

    In a dispatch mode torch leaves out functionalization, which PyTorch/XLA's views depend on.
    """
    is_excluded = torch._C._dispatch_tls_is_dispatch_key_excluded(_FUNCTIONALIZE)
    torch._C._dispatch_tls_set_dispatch_key_excluded(_FUNCTIONALIZE, False)
    try:
        with _disable_current_modes(), torch.no_grad():
            yield
    finally:
        torch._C._dispatch_tls_set_dispatch_key_excluded(_FUNCTIONALIZE, is_excluded)


_FUNCTIONALIZE = torch._C.DispatchKey.Functionalize


def synced(image: torch.Tensor) -> torch.Tensor:
    """The lazy tensor with what was written through its views."""
    if torch._is_functional_tensor(image):
        torch._sync(image)
    return image


def check_equal_splits(sizes: Sequence[int] | None, line: str) -> None:
    """Raises CompileError for an all-to-all whose parts have several sizes."""
    if sizes and len(set(sizes)) > 1:
        raise refusal(
            f"all_to_all_single with parts of several sizes, {list(sizes)}",
            line=line,
            advice="pad the parts to one size",
        )


def group_of(name: str) -> Sequence[int]:
    """The ranks of a process group, in its order."""
    from torch.distributed import distributed_c10d

    group = distributed_c10d._resolve_process_group(name)
    return distributed_c10d.get_process_group_ranks(group)


def _has_open_shape(func: Any, args: tuple[Any, ...]) -> bool:
    """Whether values decide the shape of what an operation gives; of an index, if it is a mask."""
    if func is torch.ops.aten.index.Tensor:
        return any(x is not None and x.dtype in (torch.bool, torch.uint8) for x in args[1])
    return torch.Tag.dynamic_output_shape in func.tags


def _written(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[torch.Tensor]:
    """The operands that an operation writes to."""
    written = []
    if func is torch.ops.aten.native_batch_norm.default and args[5]:
        written += [x for x in args[3:5] if x is not None]  # running averages, which it hides
    for number, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = args[number] if number < len(args) else kwargs.get(argument.name)
            written += [x for x in pytree.tree_leaves(value) if isinstance(x, torch.Tensor)]
    return written


def _is_meta(device: Any) -> bool:
    return device is not None and torch.device(device).type == "meta"


_HOST_READS = {
    torch.Tensor.numpy: ".numpy()",
    torch.Tensor.tolist: ".tolist()",
    torch.Tensor.__array__: "numpy.asarray",
}


class HostReads(TorchFunctionMode):
    """Refuses what reads a tensor's memory without an operation."""

    def __init__(self, mirror: Mirror) -> None:
        super().__init__()
        self._mirror = mirror

    def __torch_function__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Pass on all other functions."""
        if func in _HOST_READS and not self._mirror._is_known(args[0]):
            raise refusal(
                f"{_HOST_READS[func]} reads a value that the program computes, on the host",
                line=users_line(),
                advice="return the tensor, and read it after the step",
            )
        return func(*args, **(kwargs or {}))


@contextlib.contextmanager
def tracing(mirror: Mirror) -> Iterator[None]:
    """Mirrors what runs inside, with those of torch's kernels that have an HLO."""
    fast_path = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    mkldnn = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)  # torch.backends.mkldnn.flags warns of GPUs
    XLA._set_allow_execution(False)
    XLA._clear_xla_counters()  # of operations that it left to the host
    try:
        with (
            torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH),
            torch.autograd.set_multithreading_enabled(False),
            HostReads(mirror),
            mirror,
        ):
            yield
    finally:
        XLA._set_allow_execution(True)
        torch._C._set_mkldnn_enabled(mkldnn)
        torch.backends.mha.set_fastpath_enabled(fast_path)
