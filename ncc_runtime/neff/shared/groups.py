"""Replica groups: XLA's spellings, their expansion, and their meaning as flattened ranks.

Four spellings occur in HLO text: nested braces, an iota tile `[4,2]<=[8]`, an iota tile with a
transpose `[8,8]<=[8,8]T(1,0)`, and mesh axes `mesh['a'=2,'b'=4] {'b'}`. Four modes say what the ids
in them mean (XLA, `CollectiveOpGroupMode`).
"""

import enum
import itertools
import math
import re

import attrs
import numpy as np

Groups = tuple[tuple[int, ...], ...]


class GroupMode(enum.Enum):
    """What the ids of a replica group name; the value is XLA's name of the mode."""

    CROSS_REPLICA = "cross_replica"
    CROSS_PARTITION = "cross_partition"
    CROSS_REPLICA_AND_PARTITION = "cross_replica_and_partition"
    FLATTENED_ID = "flattened_id"


@attrs.frozen
class ExplicitGroups:
    """`{{0,1},{2,3}}`; no groups at all means one group of all ranks."""

    groups: Groups

    def expand(self) -> Groups:
        return self.groups

    def __str__(self) -> str:
        return "{" + ",".join("{" + ",".join(map(str, group)) + "}" for group in self.groups) + "}"


@attrs.frozen
class IotaGroups:
    """`[groups,size]<=[dims]T(perm)`: 0, 1, 2 … reshaped to dims, transposed, cut into groups."""

    shape: tuple[int, ...]
    dims: tuple[int, ...]
    transpose: tuple[int, ...] = ()

    def expand(self) -> Groups:
        ids = np.arange(math.prod(self.dims)).reshape(self.dims)
        if self.transpose:
            ids = ids.transpose(self.transpose)
        rows = ids.reshape(self.shape[0], -1)
        return tuple(tuple(row) for row in rows.tolist())

    def __str__(self) -> str:
        text = f"[{_commas(self.shape)}]<=[{_commas(self.dims)}]"
        return text + (f"T({_commas(self.transpose)})" if self.transpose else "")


@attrs.frozen
class MeshAxis:
    """An axis `'a'`, or a sub-axis: `'a':(m)k` has size k, the axes before it in `'a'` size m."""

    name: str
    before: int = 0
    size: int = 0  # 0: all of the axis

    def __str__(self) -> str:
        return f"'{self.name}'" + (f":({self.before}){self.size}" if self.size else "")


@attrs.frozen
class MeshGroups:
    """`mesh['a'=2,'b'=4] {'b'}`: ranks row-major over the axes as printed, unless ids are given.

    A group holds the ranks that differ only in the named axes, ordered as the braces name them.
    """

    axes: tuple[tuple[str, int], ...]
    group_axes: tuple[MeshAxis, ...]
    device_ids: IotaGroups | ExplicitGroups | None = None

    def expand(self) -> Groups:
        total = math.prod(size for _, size in self.axes)
        ids = np.arange(total)
        if self.device_ids is not None:
            ids = np.array(self.device_ids.expand()).reshape(-1)
        # an array with a dimension for each sub-axis; those of the groups become the last ones
        sub_axes = [part for name, size in self.axes for part in self._sub_axes(name, size)]
        inner = [
            number
            for axis in self.group_axes
            for number, (name, before, size) in enumerate(sub_axes)
            if name == axis.name
            and before >= (axis.before or 1)
            and (not axis.size or before * size <= (axis.before or 1) * axis.size)
        ]
        outer = [number for number in range(len(sub_axes)) if number not in inner]
        grid = ids.reshape([size for _, _, size in sub_axes]).transpose(outer + inner)
        size = math.prod(sub_axes[number][2] for number in inner)
        return tuple(tuple(row) for row in grid.reshape(-1, size).tolist())

    def _sub_axes(self, name: str, size: int) -> list[tuple[str, int, int]]:
        """The axis cut where a named sub-axis begins or ends: (name, product before, size)."""
        cuts = {1, size}
        for axis in self.group_axes:
            if axis.name == name and axis.size:
                cuts |= {axis.before, axis.before * axis.size}
        edges = sorted(cuts)
        if size == 1:
            return [(name, 1, 1)]
        return [(name, low, high // low) for low, high in itertools.pairwise(edges)]

    def __str__(self) -> str:
        axes = ",".join(f"'{name}'={size}" for name, size in self.axes)
        ids = ""
        if isinstance(self.device_ids, ExplicitGroups):
            ids = f", device_ids=({','.join(map(_commas, self.device_ids.groups))})"
        elif self.device_ids is not None:
            transpose = self.device_ids.transpose
            permutation = f"T({_commas(transpose)})" if transpose else ""
            ids = f", device_ids=([{_commas(self.device_ids.dims)}]{permutation})"
        return f"mesh[{axes}]{ids} {{{','.join(map(str, self.group_axes))}}}"


ReplicaGroups = ExplicitGroups | IotaGroups | MeshGroups


def _commas(numbers: tuple[int, ...]) -> str:
    return ",".join(map(str, numbers))


def _integers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", text))


_LIST = r"\s*\d+\s*(?:,\s*\d+\s*)*"
_GROUP = rf"\{{(?:{_LIST}|\s*)\}}\s*"
_IOTA = re.compile(rf"\[({_LIST})\]\s*<=\s*\[({_LIST})\]\s*(?:T\(({_LIST})\))?")
_BRACES = re.compile(rf"\{{\s*(?:{_GROUP}(?:,\s*{_GROUP})*)?\}}")
_MESH = re.compile(
    r"mesh\[(?P<axes>[^\]]*)\](?:\s*,\s*device_ids=\((?P<ids>.*)\))?\s*\{(?P<in>[^}]*)\}"
)
_COUNT = re.compile(rf"\[({_LIST})\]\s*(?:T\(({_LIST})\))?")
_AXIS = re.compile(r"'([^']+)'(?::\((\d+)\)(\d+))?")
_SIZED = r"\s*'[^']+'\s*=\s*\d+\s*"
_SIZES = re.compile(rf"\s*|{_SIZED}(?:,{_SIZED})*")
_NAMED = r"\s*'[^']+'(?::\(\d+\)\d+)?\s*"
_NAMES = re.compile(rf"\s*|{_NAMED}(?:,{_NAMED})*")


def parse_groups(text: str) -> ReplicaGroups:
    """Read one spelling of replica groups; ValueError says what would have been valid."""
    text = text.strip()
    if match := _IOTA.fullmatch(text):
        return _checked_iota(text, *(_integers(part or "") for part in match.groups()))
    if _BRACES.fullmatch(text):
        inner = re.findall(r"\{([\d,\s]*)\}", text[1:-1])
        return ExplicitGroups(tuple(_integers(group) for group in inner))
    match = _MESH.fullmatch(text)
    if match and _SIZES.fullmatch(match["axes"]) and _NAMES.fullmatch(match["in"]):
        return _mesh(text, match)
    raise ValueError(
        f"replica groups {text!r} are none of {{{{0,1}},{{2,3}}}}, [2,2]<=[4], "
        "[2,2]<=[2,2]T(1,0), mesh['a'=2,'b'=2] {'b'}"
    )


def _checked_iota(
    text: str, shape: tuple[int, ...], dims: tuple[int, ...], transpose: tuple[int, ...]
) -> IotaGroups:
    if math.prod(shape) != math.prod(dims):
        raise ValueError(f"replica groups {text}: {math.prod(shape)} ids and {math.prod(dims)}")
    if transpose and sorted(transpose) != list(range(len(dims))):
        raise ValueError(f"replica groups {text}: T(…) must permute 0..{len(dims) - 1}")
    if 0 in shape:
        raise ValueError(f"replica groups {text}: a dimension is 0")
    return IotaGroups(shape, dims, transpose)


def _mesh(text: str, match: re.Match[str]) -> MeshGroups:
    axes = tuple(
        (name, int(size)) for name, size in re.findall(r"'([^']+)'\s*=\s*(\d+)", match["axes"])
    )
    sizes = dict(axes)
    if len(sizes) != len(axes) or 0 in sizes.values():
        raise ValueError(f"replica groups {text}: mesh axes must have distinct names and sizes > 0")
    group_axes = tuple(
        MeshAxis(name, int(before or 0), int(size or 0))
        for name, before, size in _AXIS.findall(match["in"])
    )
    for axis in group_axes:
        if axis.name not in sizes:
            raise ValueError(f"replica groups {text}: the mesh has no axis '{axis.name}'")
        if axis.size and (not axis.before or sizes[axis.name] % (axis.before * axis.size)):
            raise ValueError(f"replica groups {text}: {axis} does not divide the axis")
    _check_axes_are_disjoint(text, group_axes, sizes)
    ids = _order(match["ids"].strip()) if match["ids"] else None
    if ids is not None:
        devices = [device for group in ids.expand() for device in group]
        if sorted(devices) != list(range(math.prod(sizes.values()))):
            raise ValueError(f"replica groups {text}: device_ids do not name each device once")
    return MeshGroups(axes, group_axes, ids)


def _order(text: str) -> IotaGroups | ExplicitGroups:
    """The devices of a mesh in its order: a transposed count, or ids one after the other."""
    if match := _COUNT.fullmatch(text):
        dims = _integers(match[1])
        return _checked_iota(text, (math.prod(dims),), dims, _integers(match[2] or ""))
    if re.fullmatch(r"\d[\d,\s]*", text):
        return ExplicitGroups((_integers(text),))
    raise ValueError(
        f"replica groups: device_ids {text!r} are none of [2,4]T(1,0), [8], 0,2,4,6,1,3,5,7"
    )


def _check_axes_are_disjoint(
    text: str, group_axes: tuple[MeshAxis, ...], sizes: dict[str, int]
) -> None:
    spans = sorted(
        (axis.name, axis.before or 1, (axis.before or 1) * (axis.size or sizes[axis.name]))
        for axis in group_axes
    )
    for (name, _, end), (other, start, stop) in itertools.pairwise(spans):
        if name == other and start < end:
            raise ValueError(f"replica groups {text}: axis '{name}' is named twice")
        if name == other and start % end:
            raise ValueError(f"replica groups {text}: parts of axis '{name}' do not nest ({stop})")


def group_mode(has_channel: bool, use_global_device_ids: bool | None) -> GroupMode:
    """The mode XLA derives from `channel_id` and `use_global_device_ids`.

    `use_global_device_ids` is None for operators that have no such attribute (all-to-all,
    collective-permute, collective-broadcast): with a channel they are cross-partition. Raises
    ValueError for global ids without a channel. Source: XLA, GetCollectiveOpGroupMode.
    """
    if use_global_device_ids is None:
        return GroupMode.CROSS_PARTITION if has_channel else GroupMode.CROSS_REPLICA
    if not has_channel:
        if use_global_device_ids:
            raise ValueError("use_global_device_ids=true needs a channel_id of 1 or more")
        return GroupMode.CROSS_REPLICA
    if use_global_device_ids:
        return GroupMode.FLATTENED_ID
    return GroupMode.CROSS_REPLICA_AND_PARTITION


def flattened_groups(
    groups: Groups, mode: GroupMode, replica_count: int, num_partitions: int
) -> Groups:
    """Groups of ranks, where rank = replica * num_partitions + partition.

    No groups means the largest groups that the mode allows.
    """
    replicas, partitions = range(replica_count), range(num_partitions)
    if mode is GroupMode.FLATTENED_ID:
        return groups or (tuple(range(replica_count * num_partitions)),)
    if mode is GroupMode.CROSS_REPLICA:
        return tuple(
            tuple(replica * num_partitions + partition for replica in group)
            for group in groups or (tuple(replicas),)
            for partition in partitions
        )
    if mode is GroupMode.CROSS_PARTITION:
        return tuple(
            tuple(replica * num_partitions + partition for partition in group)
            for replica in replicas
            for group in groups or (tuple(partitions),)
        )
    return tuple(
        tuple(replica * num_partitions + p for replica in group for p in partitions)
        for group in groups or (tuple(replicas),)
    )


def flattened_pairs(
    pairs: tuple[tuple[int, int], ...], mode: GroupMode, replica_count: int, num_partitions: int
) -> tuple[tuple[int, int], ...]:
    """Source-target pairs of a permute as pairs of ranks; `mode` is one of the two cross modes."""
    if mode is GroupMode.CROSS_REPLICA:
        return tuple(
            (source * num_partitions + partition, target * num_partitions + partition)
            for source, target in pairs
            for partition in range(num_partitions)
        )
    return tuple(
        (replica * num_partitions + source, replica * num_partitions + target)
        for replica in range(replica_count)
        for source, target in pairs
    )
