"""Targets of custom calls that have a public meaning, and those that mean work left undone."""

from collections.abc import Mapping

from ncc_compiler.ir.graph import Callees, Module, Node, Quoted

TOPK = "TopK"
"""The largest elements of the last dimension and where they are; XLA makes it of a sort."""

IDENTITIES = frozenset(
    {"LayoutConstraint", "MoveToDevice", "MoveToHost", "annotate_device_placement"}
)
"""Say where an array shall live or in which layout, and give it back."""

KNOWN_TARGETS = IDENTITIES | {TOPK}

PARTITION_IT = (
    "partition it: run the program that made it, on a host without accelerators, with "
    "JAX_PLATFORMS=cpu XLA_FLAGS='--xla_force_host_platform_device_count=DEVICES "
    "--xla_dump_to=dump --xla_dump_large_constants --xla_dump_hlo_pass_re=spmd-partitioning', "
    "then nccc compile dump/*after_spmd-partitioning*.txt"
)
"""How to get what can be compiled from a program that is annotated only."""

UNPARTITIONED: Mapping[str, str] = dict.fromkeys(
    (
        "Sharding",
        "SPMDFullToShardShape",
        "SPMDShardToFullShape",
        "xla.sdy.FuncResultSharding",
        "xla.sdy.GlobalToLocalShape",
        "xla.sdy.LocalToGlobalShape",
        "xla.sdy.PropagationBarrier",
        "xla.sdy.ShardingGroup",
    ),
    PARTITION_IT,
)
"""What GSPMD and Shardy leave before partitioning, and what to do about each."""


def target_of(node: Node) -> str:
    """The target of a custom call."""
    target = node.attributes["custom_call_target"]
    assert isinstance(target, Quoted), node.name
    return target.text


def wants_largest(module: Module, node: Node) -> bool:
    """Whether a TopK asks for the largest; its computation, if any, says which goes first."""
    called = node.attributes.get("called_computations")
    if not isinstance(called, Callees) or len(called.names) != 1:
        return True
    computation = module.computations[called.names[0]]
    return computation.nodes[computation.root].attributes.get("direction") != "LT"
