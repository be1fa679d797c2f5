"""Ways on a grid: dimension order, the last dimension first, each the shorter way round.

Halfway round, an even coordinate goes up and an odd one down, so that both directions carry the
same. On a torus that is columns (E, W), rows (N, S), planes (D, U). Assumed: AWS publishes no
routing. Queries are whole arrays of pairs of chips.
"""

import attrs
import numpy as np

from ncc_runtime.topology.levels import Axis
from ncc_runtime.topology.spec import BETWEEN_PORTS


@attrs.frozen(eq=False)
class GridWays:
    """The grid of one instance, whose links are numbered as in the first."""

    axes: tuple[Axis, ...]  # slowest first
    link_at: np.ndarray  # (chips, 2 * axes) int32: the link of an axis down, and up; -1: none

    @classmethod
    def of(cls, axes: tuple[Axis, ...], src: np.ndarray, port: tuple[str, ...]) -> "GridWays":
        """From the columns of the links of the first instance."""
        column = {}
        for number, axis in enumerate(axes):
            column[axis.down], column[axis.up] = 2 * number, 2 * number + 1
        chips = max(axis.extent * axis.stride for axis in axes)
        link_at = np.full((chips, 2 * len(axes)), -1, np.int32)
        for link, (chip, words) in enumerate(zip(src.tolist(), port, strict=True)):
            link_at[chip, [column[word] for word in words.split(BETWEEN_PORTS)]] = link
        return cls(axes, link_at)

    def ways(self, source: np.ndarray, target: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(start, links) of the ways between pairs of chips, one after another."""
        steps = [self._steps(axis, source, target) for axis in self.axes]
        start = np.zeros(len(source) + 1, np.int64)
        np.cumsum(np.sum([abs(one) for one in steps], axis=0), out=start[1:])
        links = np.empty(start[-1], np.int32)
        chip, at = source.astype(np.int64), start[:-1].copy()
        for number in reversed(range(len(self.axes))):
            axis, step = self.axes[number], steps[number]
            count, towards = np.asarray(abs(step), np.int64), np.sign(step)
            pair = np.repeat(np.arange(len(source)), count)
            nth = np.arange(len(pair)) - np.repeat(np.cumsum(count) - count, count)
            here = _moved(axis, chip[pair], nth * towards[pair])
            links[at[pair] + nth] = self.link_at[here, 2 * number + (towards[pair] > 0)]
            chip, at = _moved(axis, chip, step), at + count
        return start, links

    def _steps(self, axis: Axis, source: np.ndarray, target: np.ndarray) -> np.ndarray:
        """Steps along an axis, negative ones down."""
        place = source // axis.stride % axis.extent
        goal = target // axis.stride % axis.extent
        if not axis.wraps:
            return np.asarray(goal - place, np.int64)
        up = (goal - place) % axis.extent
        down = axis.extent - up
        goes_up = (up < down) | ((up == down) & (place % 2 == 0))
        return np.asarray(np.where(goes_up, up, -down), np.int64)


def _moved(axis: Axis, chip: np.ndarray, steps: np.ndarray) -> np.ndarray:
    place = chip // axis.stride % axis.extent
    return np.asarray(chip + ((place + steps) % axis.extent - place) * axis.stride)
