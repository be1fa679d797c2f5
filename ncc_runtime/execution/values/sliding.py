"""Windows that slide over arrays whose first axes they leave alone."""

from collections.abc import Sequence

import numpy as np

from ncc_runtime.neff.windows import Window, WindowDimension


def spread(array: np.ndarray, window: Window, fill: np.generic, first: int) -> np.ndarray:
    """The array with padding around and holes between its elements, as the window says.

    The window's dimensions begin at axis `first`; padding below zero cuts elements off.
    """
    plain = all(one.low == one.high == 0 and one.base_dilation == 1 for one in window.dimensions)
    if plain:
        return array
    shape, kept, places = list(array.shape), [slice(None)] * first, [slice(None)] * first
    for axis, one in enumerate(window.dimensions, start=first):
        shape[axis], taken, place = _laid_out(one, array.shape[axis])
        kept.append(taken)
        places.append(place)
    result = np.full(shape, fill, array.dtype)
    result[tuple(places)] = array[tuple(kept)]
    return result


def _laid_out(one: WindowDimension, length: int) -> tuple[int, slice, slice]:
    """The length with padding and holes; which elements stay; where they lie."""
    dilated = (length - 1) * one.base_dilation + 1 if length else 0
    extent = max(0, dilated + one.low + one.high)
    first = max(0, -(one.low // one.base_dilation))
    end = min(length, (extent - 1 - one.low) // one.base_dilation + 1)
    if first >= end:
        return extent, slice(0, 0), slice(0, 0)
    start = first * one.base_dilation + one.low
    last = (end - 1) * one.base_dilation + one.low
    return extent, slice(first, end), slice(start, last + 1, one.base_dilation)


def element_under(
    array: np.ndarray, window: Window, offset: Sequence[int], first: int
) -> np.ndarray:
    """What lies under one element of the window at all its positions; a view."""
    cut = [slice(None)] * first
    for axis, (one, step) in enumerate(zip(window.dimensions, offset, strict=True), start=first):
        room = array.shape[axis] - one.reach
        if room < 0 or not array.shape[axis]:
            cut.append(slice(0, 0))
            continue
        start = step * one.window_dilation
        cut.append(slice(start, start + room // one.stride * one.stride + 1, one.stride))
    return array[tuple(cut)]
