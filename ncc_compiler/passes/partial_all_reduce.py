"""All-reduces of gradients that take the first contributions and do not wait for late ranks.

A step's contribution of a rank that is late is either dropped, as with backup workers, or added
in the next step, as eager-SGD does with its partial all-reduces. Which ranks are late is decided
while the step runs, so it is an input: `takes_part`, pred[ranks], the same on every rank.

    drop    result = all-reduce(takes_part ? g : -0) * n / k
    next    result = all-reduce((takes_part ? g : -0) + (begins ? carried : -0))
            carried' = begins ? (takes_part ? -0 : g) : carried

n is the size of a rank's group and k counts its members that take part. What is dropped is made up
for by n / k: the result estimates what n contributions give, so wherever the program divides by n,
before the all-reduce or behind it, a mean of n becomes the mean of k. What is added later is not
made up for, since every gradient counts once; only sums that end in numbers which no next step
takes, such as the loss, are treated as with `drop`.

A rank `begins` a step unless it still computes the gradient of an older one. Then what the program
computes as its gradient of this step is of no use, and what it carries stays where it is.

The identity of a floating-point sum is -0.0: x + -0.0 is x for every x, 0.0 + -0.0 is 0.0. And x
times 1.0 is x. So while all ranks take part the bits are those of the program as it was.

Only all-reduces on whose results no other collective depends become partial. Ranks that need each
other before their gradients are complete (a model divided over them) are late together.

Sources: Chen, Pan, Monga, Bengio, Jozefowicz, "Revisiting Distributed Synchronous SGD", 2016; Li,
Ben-Nun et al., "Taming Unbalanced Training Workloads in Deep Learning with Partial Collective
Operations", PPoPP 2020.
"""

import itertools
from collections.abc import Mapping, Sequence
from typing import ClassVar

import attrs
import numpy as np

from ncc_compiler.codegen.leaves import leaves, sources
from ncc_compiler.diagnostics import CompileError, Diagnostic
from ncc_compiler.ir.collectives import rank_groups, reduction_by_name, reduction_of
from ncc_compiler.ir.graph import Attribute, Callee, Computation, Module, Node, NodeId, Raw
from ncc_compiler.ir.ops import OPS
from ncc_compiler.ir.order import collectives_in
from ncc_compiler.ir.text.header import aliases
from ncc_compiler.ir.types import ArrayType, TupleType, Type
from ncc_compiler.options import LateGradients
from ncc_compiler.passes.manager import Pass
from ncc_compiler.passes.rebuild import Rebuild, array_types, sum_region
from ncc_runtime.neff.shared.dtypes import DType
from ncc_runtime.neff.shared.groups import Groups
from ncc_runtime.neff.shared.partial import BEGINS, CARRIED, PARTIAL, TAKES_PART
from ncc_runtime.neff.shared.reductions import Reduction

_ALL_REDUCES = frozenset({"all-reduce", "ncc.avg_all_reduce"})
_SUMS = frozenset({Reduction.ADD, Reduction.AVERAGE})
_ELEMENTS = frozenset({DType.BF16, DType.F16, DType.F32, DType.F64})
"""Narrower floats are not gradients, and some of them have no -0.0."""


@attrs.frozen
class PartialAllReduce(Pass):
    """Unlike other passes this one changes what the program means; it is run where asked for.

    It finds the all-reduces of the entry computation, so calls have to be inlined. CompileError
    where none can be partial.
    """

    name: ClassVar[str] = "partial-all-reduce"

    late: LateGradients

    def run(self, module: Module) -> Module:
        body = module.entry_computation
        whole = _whole(module, body)
        partial = {
            position
            for position, node in enumerate(body.nodes)
            if node.op in _ALL_REDUCES and position not in whole
        }
        if not partial:
            raise CompileError([_none_is_partial(module, body, whole)])
        carried = _carried(module, body, partial) if self.late is LateGradients.NEXT else set()
        add = sum_region(DType.F32, module)
        changed = _Rewriting(module, body, add).run(partial, carried)
        computations = {add.name: add, **module.computations, module.entry: changed.body}
        attributes = {
            key: value
            for key, value in module.attributes.items()
            if key != "entry_computation_layout"  # the entry has more parameters now
        }
        if changed.aliases:
            attributes["input_output_alias"] = changed.aliases
        return attrs.evolve(module, computations=computations, attributes=attributes)


def _whole(module: Module, body: Computation) -> dict[int, str]:
    """The all-reduces of a computation that cannot be partial, and why."""
    behind = _collective_behind(module, body)
    reasons = {}
    for position, node in enumerate(body.nodes):
        if node.op not in _ALL_REDUCES:
            continue
        kinds = array_types(node.type)
        if node.op == "all-reduce":
            reduction = reduction_of(module.computations[node.callee()])
        else:
            reduction = reduction_by_name(node, kinds[0].dtype)
        others = sorted({kind.dtype.value for kind in kinds if kind.dtype not in _ELEMENTS})
        if reduction not in _SUMS:
            reasons[position] = f"its reduction is {reduction.value if reduction else 'unknown'}"
        elif others:
            reasons[position] = f"its elements are {', '.join(others)}"
        elif all(len(group) == 1 for group in rank_groups(module, node)):
            reasons[position] = "its groups have one rank"
        elif (user := behind[position]) is not None:
            reasons[position] = f"{body.nodes[user].name} depends on its result"
    return reasons


def _collective_behind(module: Module, body: Computation) -> list[int | None]:
    """For every node, the first collective, or control flow with one, that depends on it."""
    behind: list[int | None] = [None] * len(body.nodes)
    takers = _takers(body)
    for position in reversed(range(len(body.nodes))):
        found = [
            user if _communicates(module, body.nodes[user]) else behind[user]
            for user in itertools.chain(*takers[position])
        ]
        behind[position] = min((user for user in found if user is not None), default=None)
    return behind


def _takers(body: Computation) -> list[list[list[int]]]:
    """For every node and each of its arrays, the nodes that compute something of it.

    Tuples are looked through, or all that a shard_map or a call returns would depend on all of it.
    """
    computed = sources(body)
    takers: list[list[list[int]]] = [[[] for _ in leaves(node.type)] for node in body.nodes]
    for position, node in enumerate(body.nodes):
        if all(source == position for source, _ in computed[position]):
            for source, k in (leaf for operand in node.operands for leaf in computed[operand]):
                takers[source][k].append(position)
    return takers


def _communicates(module: Module, node: Node) -> bool:
    called = [name for _, name in node.callees()] if not OPS[node.op].collective else []
    return OPS[node.op].collective or any(True for _ in collectives_in(module, called))


def _none_is_partial(module: Module, body: Computation, whole: Mapping[int, str]) -> Diagnostic:
    for position, reason in whole.items():  # the first stands for all
        node = body.nodes[position]
        text = f"no all-reduce of {module.name} can be partial; of {node.name} {reason}"
        return Diagnostic("partial-all-reduce-C1", text, node.span, help=_GRADIENTS)
    inside = [
        node
        for name, computation in module.computations.items()
        if name != module.entry
        for node in computation.nodes
        if node.op in _ALL_REDUCES
    ]
    if inside:
        text = f"{inside[0].name} stands in a loop or branch, where it cannot be partial"
        return Diagnostic("partial-all-reduce-C1", text, inside[0].span, help=_GRADIENTS)
    text = f"{module.name} has no all-reduce"
    return Diagnostic("partial-all-reduce-C1", text, help=_GRADIENTS)


_GRADIENTS = (
    "all-reduces that sum or average bf16, f16, f32 or f64 outside of loops and branches, on whose "
    "results no other collective depends, become partial"
)


def _carried(module: Module, body: Computation, partial: set[int]) -> set[tuple[int, int]]:
    """(all-reduce, operand) of which late contributions are carried: gradients.

    The others are sums that reach only single numbers which `input_output_alias` does not name.
    """
    outputs = sources(body)[body.root]
    result = body.nodes[body.root].type
    fed_back = {_output_number(result, index) for index, _, _ in aliases(module)}
    goes_on = {  # what the next step takes
        leaf
        for number, leaf in enumerate(outputs)
        if number in fed_back or leaves(result)[number].elements != 1
    }
    takers = _takers(body)
    reaches = [[False] * len(arrays) for arrays in takers]
    for position in reversed(range(len(body.nodes))):
        for k, users in enumerate(takers[position]):
            reaches[position][k] = (position, k) in goes_on or any(
                any(reaches[user]) for user in users
            )
    return {
        (position, operand)
        for position in partial
        for operand in range(len(body.nodes[position].operands))
        if reaches[position][operand]
    }


def _output_number(kind: Type, index: Sequence[int]) -> int:
    """Which of the arrays of a result is at an index of its tuples."""
    first = 0
    for position in index:
        assert isinstance(kind, TupleType), kind
        first += sum(len(leaves(element)) for element in kind.elements[:position])
        kind = kind.elements[position]
    return first


class _Rewriting:
    """The entry computation in the making."""

    def __init__(self, module: Module, body: Computation, add: Computation) -> None:
        self._module, self._body, self._add = module, body, add
        self._rebuild = Rebuild(body)
        self._parameters = len(body.parameters())
        self._scales: dict[tuple[Groups, DType], NodeId] = {}
        self._new_state: list[tuple[int, NodeId]] = []  # number of the parameter, its next value
        self._takes_part = self._input(TAKES_PART, ArrayType(DType.PRED, (module.ranks,)))
        source = self._rebuild.nodes[self._takes_part]
        self._rank = self._rebuild.rank(source, module)
        self._is_in_time = self._own(source, self._takes_part)

    def run(self, partial: set[int], carried: set[tuple[int, int]]) -> "_Rewritten":
        rebuild = self._rebuild
        if carried:
            begins = self._input(BEGINS, ArrayType(DType.PRED, (self._module.ranks,)))
            self._is_begun = self._own(rebuild.nodes[begins], begins)
        for position, node in enumerate(self._body.nodes):
            rewired = rebuild.rewired(node)
            if position in partial:
                operands = {k for at, k in carried if at == position}
                rebuild.new_ids.append(self._partial(rewired, operands))
            else:
                rebuild.new_ids.append(rebuild.add(rewired))
        if not carried:
            return _Rewritten(rebuild.finish())
        return self._with_state()

    def _input(self, name: str, kind: ArrayType) -> NodeId:
        """Append a parameter, which users find by this name."""
        attributes: dict[str, Attribute] = {
            "parameter_number": self._parameters,
            "metadata": Raw(f'{{op_name="{name}"}}'),
        }
        self._parameters += 1
        return self._rebuild.add(Node(self._rebuild.fresh(name), "parameter", kind, (), attributes))

    def _own(self, source: Node, table: NodeId) -> NodeId:
        """The entry of the own rank in an array of all ranks."""
        dtype = self._rebuild.type_of(table).dtype
        entry = self._rebuild.derived(
            source,
            "dynamic-slice",
            ArrayType(dtype, (1,)),
            [table, self._rank],
            dynamic_slice_sizes=(1,),
        )
        return self._rebuild.derived(source, "reshape", ArrayType(dtype), [entry])

    def _partial(self, node: Node, carried: set[int]) -> NodeId:
        """The all-reduce of what is there, scaled where what is not there is dropped."""
        rebuild = self._rebuild
        contributions = [
            self._carrying(node, k, operand)
            if k in carried
            else self._chosen(node, self._is_in_time, operand, self._nothing(node, operand))
            for k, operand in enumerate(node.operands)
        ]
        name = rebuild.fresh(f"{node.name}{PARTIAL}")
        result = rebuild.add(attrs.evolve(node, name=name, operands=tuple(contributions)))
        if isinstance(node.type, ArrayType):
            return result if carried else self._scaled(node, result)
        results = []
        for k, kind in enumerate(array_types(node.type)):
            element = rebuild.derived(node, "get-tuple-element", kind, [result], index=k)
            results.append(element if k in carried else self._scaled(node, element))
        return rebuild.derived(node, "tuple", node.type, results)

    def _carrying(self, node: Node, operand: int, gradient: NodeId) -> NodeId:
        """The contribution with what older steps left over; sees to what this one leaves over."""
        rebuild = self._rebuild
        kind, nothing = rebuild.type_of(gradient), self._nothing(node, gradient)
        number = self._parameters
        suffix = f".{operand}" if len(node.operands) > 1 else ""
        state = self._input(f"{CARRIED}{node.name}{suffix}", kind)
        fresh = self._chosen(node, self._is_in_time, gradient, nothing)
        old = self._chosen(node, self._is_begun, state, nothing)
        late = self._chosen(node, self._is_in_time, nothing, gradient)
        self._new_state.append((number, self._chosen(node, self._is_begun, late, state)))
        return rebuild.derived(node, "add", kind, [fresh, old])

    def _chosen(self, node: Node, flag: NodeId, on_true: NodeId, on_false: NodeId) -> NodeId:
        kind = self._rebuild.type_of(on_true)
        return self._rebuild.derived(node, "select", kind, [flag, on_true, on_false])

    def _nothing(self, node: Node, like: NodeId) -> NodeId:
        """-0.0 in every element, the identity of a floating-point sum."""
        kind = self._rebuild.type_of(like)
        zero = self._rebuild.constant(node, ArrayType(kind.dtype), -0.0)
        return self._rebuild.derived(node, "broadcast", kind, [zero], dimensions=())

    def _scaled(self, node: Node, summed: NodeId) -> NodeId:
        """A sum of those that take part, as an estimate of the sum of all."""
        rebuild, kind = self._rebuild, self._rebuild.type_of(summed)
        # n / k in bf16 would be off by up to 0.4 % in every step alike
        wide = kind if kind.dtype is DType.F64 else ArrayType(DType.F32, kind.shape)
        scale = self._scale(node, wide.dtype)
        scales = rebuild.derived(node, "broadcast", wide, [scale], dimensions=())
        if kind == wide:
            return rebuild.derived(node, "multiply", kind, [summed, scales])
        widened = rebuild.derived(node, "convert", wide, [summed])
        product = rebuild.derived(node, "multiply", wide, [widened, scales])
        return rebuild.derived(node, "convert", kind, [product])

    def _scale(self, node: Node, dtype: DType) -> NodeId:
        """The members of the own group, divided by those of them that take part; a scalar.

        Where nobody takes part the sum is -0.0, and stays so: it is not divided by zero.
        """
        groups = rank_groups(self._module, node)
        if (groups, dtype) in self._scales:
            return self._scales[groups, dtype]
        rebuild, ranks = self._rebuild, self._module.ranks
        flags, counted = ArrayType(DType.PRED, (ranks,)), self._takes_part
        members = None
        if len(groups) > 1:
            group_of = np.zeros(ranks, np.int32)
            for number, group in enumerate(groups):
                group_of[list(group)] = number
            table = rebuild.constant(node, ArrayType(DType.S32, (ranks,)), group_of)
            own = self._own(node, table)
            spread = rebuild.derived(
                node, "broadcast", ArrayType(DType.S32, (ranks,)), [own], dimensions=()
            )
            members = rebuild.derived(node, "compare", flags, [table, spread], direction="EQ")
            counted = rebuild.derived(node, "and", flags, [counted, members])
        scalar = ArrayType(DType.F32)
        if members is None or len({len(group) for group in groups}) == 1:
            size = rebuild.constant(node, scalar, len(groups[0]))
        else:
            size = self._count(node, members)
        one = rebuild.constant(node, scalar, 1)
        count = rebuild.derived(node, "maximum", scalar, [self._count(node, counted), one])
        if dtype is not DType.F32:
            scalar = ArrayType(dtype)
            size, count = (rebuild.derived(node, "convert", scalar, [n]) for n in (size, count))
        scale = rebuild.derived(node, "divide", scalar, [size, count])
        self._scales[groups, dtype] = scale
        return scale

    def _count(self, node: Node, flags: NodeId) -> NodeId:
        """How many flags are set, f32[]."""
        rebuild, ranks = self._rebuild, self._module.ranks
        numbers = rebuild.derived(node, "convert", ArrayType(DType.F32, (ranks,)), [flags])
        zero = rebuild.constant(node, ArrayType(DType.F32), 0)
        return rebuild.derived(
            node,
            "reduce",
            ArrayType(DType.F32),
            [numbers, zero],
            dimensions=(0,),
            to_apply=Callee(self._add.name),
        )

    def _with_state(self) -> "_Rewritten":
        """The computation whose last results are what is carried to the next step."""
        rebuild, root = self._rebuild, self._body.nodes[self._body.root]
        result = rebuild.new_ids[self._body.root]
        is_tuple = isinstance(root.type, TupleType)
        values = [result]
        if root.op == "tuple":
            values = list(rebuild.nodes[result].operands)
        elif isinstance(root.type, TupleType):
            values = [
                rebuild.derived(root, "get-tuple-element", kind, [result], index=k)
                for k, kind in enumerate(root.type.elements)
            ]
        pairs = [
            (index if is_tuple else (0,), number, within)
            for index, number, within in aliases(self._module)
        ]
        for number, value in self._new_state:
            pairs.append(((len(values),), number, ()))
            values.append(value)
        kind = TupleType(tuple(rebuild.nodes[value].type for value in values))
        new_root = rebuild.derived(root, "tuple", kind, values)
        body = attrs.evolve(rebuild.finish(), root=new_root)
        entries = ", ".join(
            f"{_braced(index)}: ({number}, {_braced(within)}, may-alias)"
            for index, number, within in pairs
        )
        return _Rewritten(body, Raw(f"{{ {entries} }}"))


@attrs.frozen
class _Rewritten:
    body: Computation
    aliases: Raw | None = None  # of the header, where results have been added


def _braced(index: Sequence[int]) -> str:
    return "{" + ", ".join(map(str, index)) + "}"
