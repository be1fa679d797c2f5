"""Replica groups: XLA's spellings, what they expand to, and whom they let meet."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ncc_runtime.neff.shared.groups import (
    ExplicitGroups,
    GroupMode,
    IotaGroups,
    MeshAxis,
    MeshGroups,
    flattened_groups,
    flattened_pairs,
    group_mode,
    parse_groups,
)

# Expansions of the iota form as xla::IotaReplicaGroupList documents and prints them.
EXPANSIONS = [
    ("{}", ()),
    ("{{0,1},{2,3}}", ((0, 1), (2, 3))),
    ("{ {0, 1}, {2} }", ((0, 1), (2,))),
    ("[1,4]<=[4]", ((0, 1, 2, 3),)),
    ("[4,2]<=[8]", ((0, 1), (2, 3), (4, 5), (6, 7))),
    ("[2,4]<=[4,2]T(1,0)", ((0, 2, 4, 6), (1, 3, 5, 7))),
    ("[4,2]<=[2,2,2]T(2,0,1)", ((0, 2), (4, 6), (1, 3), (5, 7))),
    ("[8]<=[8]", tuple((rank,) for rank in range(8))),
    ("mesh['a'=2,'b'=4] {'b'}", ((0, 1, 2, 3), (4, 5, 6, 7))),
    ("mesh['a'=2,'b'=4] {'a'}", ((0, 4), (1, 5), (2, 6), (3, 7))),
    ("mesh['a'=2,'b'=2] {'a','b'}", ((0, 1, 2, 3),)),
    ("mesh['a'=2,'b'=2] {'b','a'}", ((0, 2, 1, 3),)),
    ("mesh['a'=2,'b'=2] {}", ((0,), (1,), (2,), (3,))),
    ("mesh['a'=2,'b'=4] {'b':(1)2}", ((0, 2), (1, 3), (4, 6), (5, 7))),
    ("mesh['a'=2,'b'=4] {'b':(2)2}", ((0, 1), (2, 3), (4, 5), (6, 7))),
    ("mesh['a'=2,'b'=2], device_ids=([2,2]T(1,0)) {'b'}", ((0, 2), (1, 3))),
    ("mesh['a'=2,'b'=2], device_ids=([4]) {'b'}", ((0, 1), (2, 3))),
    ("mesh['a'=2,'b'=2], device_ids=(3,1,2,0) {'b'}", ((3, 1), (2, 0))),
]


@pytest.mark.parametrize(("text", "groups"), EXPANSIONS)
def test_a_spelling_expands_to_its_groups(text: str, groups: tuple[tuple[int, ...], ...]) -> None:
    assert parse_groups(text).expand() == groups


@pytest.mark.parametrize(("text", "_"), EXPANSIONS)
def test_a_spelling_prints_so_that_it_parses_back(text: str, _: object) -> None:
    groups = parse_groups(text)
    assert parse_groups(str(groups)) == groups


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("0,1", "are none of"),
        ("{0,1}", "are none of"),
        ("{{0,1}", "are none of"),
        ("[2,2]<=[5]", "4 ids and 5"),
        ("[0,2]<=[0]", "a dimension is 0"),
        ("[2,2]<=[2,2]T(0,0)", "must permute 0..1"),
        ("mesh['a'=2] {'b'}", "the mesh has no axis 'b'"),
        ("mesh['a'=2,'a'=2] {'a'}", "distinct names and sizes > 0"),
        ("mesh['a'=4] {'a':(1)3}", "does not divide the axis"),
        ("mesh['a'=4] {'a','a'}", "axis 'a' is named twice"),
        ("mesh['a'=4], device_ids=([2]) {'a'}", "do not name each device once"),
        ("mesh['a'=2], device_ids=(0,0) {'a'}", "do not name each device once"),
        ("mesh['a'=2], device_ids=([2]<=[2]) {'a'}", "are none of [2,4]T(1,0)"),
    ],
)
def test_a_spelling_that_is_none_says_so(text: str, complaint: str) -> None:
    with pytest.raises(ValueError, match="replica groups") as error:
        parse_groups(text)
    assert complaint in str(error.value)


@st.composite
def iotas(draw: st.DrawFn) -> IotaGroups:
    dims = tuple(draw(st.lists(st.integers(1, 4), min_size=1, max_size=3)))
    total = math.prod(dims)
    count = draw(st.sampled_from([size for size in range(1, total + 1) if total % size == 0]))
    transpose = tuple(draw(st.permutations(range(len(dims)))))
    return IotaGroups((count, total // count), dims, transpose)


@given(groups=iotas())
def test_iota_groups_partition_their_ids(groups: IotaGroups) -> None:
    ids = sorted(rank for group in groups.expand() for rank in group)
    assert ids == list(range(math.prod(groups.dims)))


@given(groups=iotas())
def test_an_iota_counts_like_nested_loops_over_the_transposed_dims(groups: IotaGroups) -> None:
    strides = [math.prod(groups.dims[d + 1 :]) for d in range(len(groups.dims))]
    ids = [0]
    for d in groups.transpose:
        ids = [base + step * strides[d] for base in ids for step in range(groups.dims[d])]
    assert [rank for group in groups.expand() for rank in group] == ids


@given(sizes=st.lists(st.integers(1, 4), min_size=1, max_size=3), data=st.data())
def test_members_of_a_mesh_group_differ_only_in_its_axes(
    sizes: list[int], data: st.DataObject
) -> None:
    axes = tuple((f"x{k}", size) for k, size in enumerate(sizes))
    chosen = data.draw(st.lists(st.sampled_from(range(len(axes))), unique=True))
    mesh = MeshGroups(axes, tuple(MeshAxis(f"x{k}") for k in chosen))
    strides = [math.prod(sizes[k + 1 :]) for k in range(len(sizes))]
    for group in mesh.expand():
        coordinates = [
            [rank // stride % size for stride, size in zip(strides, sizes, strict=True)]
            for rank in group
        ]
        for k in range(len(sizes)):
            wanted = sizes[k] if k in chosen else 1
            assert len({where[k] for where in coordinates}) == wanted
        named = [tuple(where[k] for k in chosen) for where in coordinates]
        assert named == sorted(named)  # row-major over the axes as the braces name them


# has channel, use_global_device_ids → mode: the table in xla/service/collective_ops_utils.h
MODES = [
    (False, False, GroupMode.CROSS_REPLICA),
    (False, None, GroupMode.CROSS_REPLICA),
    (True, None, GroupMode.CROSS_PARTITION),
    (True, False, GroupMode.CROSS_REPLICA_AND_PARTITION),
    (True, True, GroupMode.FLATTENED_ID),
]


@pytest.mark.parametrize(("has_channel", "use_global", "mode"), MODES)
def test_channel_and_global_ids_say_the_mode(
    has_channel: bool, use_global: bool | None, mode: GroupMode
) -> None:
    assert group_mode(has_channel, use_global) is mode


def test_global_ids_need_a_channel() -> None:
    with pytest.raises(ValueError, match="needs a channel_id"):
        group_mode(False, True)


# Two replicas of three partitions: rank = 3 * replica + partition.
@pytest.mark.parametrize(
    ("mode", "groups", "ranks"),
    [
        (GroupMode.CROSS_REPLICA, ((0, 1),), ((0, 3), (1, 4), (2, 5))),
        (GroupMode.CROSS_REPLICA, ((1,), (0,)), ((3,), (4,), (5,), (0,), (1,), (2,))),
        (GroupMode.CROSS_REPLICA, (), ((0, 3), (1, 4), (2, 5))),
        (GroupMode.CROSS_PARTITION, ((0, 2), (1,)), ((0, 2), (1,), (3, 5), (4,))),
        (GroupMode.CROSS_PARTITION, (), ((0, 1, 2), (3, 4, 5))),
        (GroupMode.CROSS_REPLICA_AND_PARTITION, ((0,), (1,)), ((0, 1, 2), (3, 4, 5))),
        (GroupMode.CROSS_REPLICA_AND_PARTITION, ((1, 0),), ((3, 4, 5, 0, 1, 2),)),
        (GroupMode.CROSS_REPLICA_AND_PARTITION, (), ((0, 1, 2, 3, 4, 5),)),
        (GroupMode.FLATTENED_ID, ((5, 0), (1, 4), (2, 3)), ((5, 0), (1, 4), (2, 3))),
        (GroupMode.FLATTENED_ID, (), ((0, 1, 2, 3, 4, 5),)),
    ],
)
def test_a_mode_says_which_ranks_meet(
    mode: GroupMode, groups: tuple[tuple[int, ...], ...], ranks: tuple[tuple[int, ...], ...]
) -> None:
    assert flattened_groups(groups, mode, 2, 3) == ranks


def test_pairs_across_replicas_repeat_for_each_partition() -> None:
    pairs = flattened_pairs(((0, 1),), GroupMode.CROSS_REPLICA, 2, 3)
    assert pairs == ((0, 3), (1, 4), (2, 5))


def test_pairs_across_partitions_repeat_for_each_replica() -> None:
    pairs = flattened_pairs(((0, 1), (2, 0)), GroupMode.CROSS_PARTITION, 2, 3)
    assert pairs == ((0, 1), (2, 0), (3, 4), (5, 3))


def test_no_groups_at_all_is_one_group_of_everybody() -> None:
    assert ExplicitGroups(()).expand() == ()
    assert flattened_groups((), GroupMode.FLATTENED_ID, 1, 4) == ((0, 1, 2, 3),)
