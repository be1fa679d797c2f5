"""Layouts of a model: all meshes of some ranks, on all places, as points of a sweep."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ncc_runtime.sweep.sweep_file import PointWords


def meshes(ranks: int, axes: Sequence[str]) -> Iterator[dict[str, int]]:
    """Every mesh of so many ranks, the first axis from large to small."""
    if len(axes) == 1:
        yield {axes[0]: ranks}
        return
    for size in range(ranks, 0, -1):
        if ranks % size == 0:
            for rest in meshes(ranks // size, axes[1:]):
                yield {axes[0]: size, **rest}


def layouts(
    model: str,
    ranks: Sequence[int],
    axes: Sequence[str],
    places: Sequence[str],
    common: Mapping[str, Any],
) -> list[PointWords]:
    """A point for every mesh of every number of ranks on every place; `common` has other words."""
    return [
        PointWords(
            {
                "model": model,
                "mesh": ",".join(f"{axis}={size}" for axis, size in mesh.items()),
                **({"on": place} if place else {}),
                **common,
            },
            lambda key: (key,),
        )
        for place in places or ("",)
        for count in ranks
        for mesh in meshes(count, axes)
    ]
