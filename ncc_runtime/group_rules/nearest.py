"""The allowed group nearest to one that is refused.

Of all that the rules allow, the one with the smallest symmetric difference; then the closest in
size, then on all of the group's instances before on one of them, then the first that is listed.
"""

import numpy as np


def nearest_group(masks: np.ndarray, parts: np.ndarray, *, alone: bool = False) -> np.ndarray:
    """Cores of the nearest allowed group, (instances, cores) bool; none where nothing is allowed.

    `masks` (k, cores) lists what is allowed on an instance, `parts` (instances, cores) the group.
    On several instances the same cores of each are allowed, one core too, unless `alone`.
    """
    options = []
    if len(parts) == 1 or not alone:
        options.append(_on_all(masks, parts))
    if len(parts) > 1:
        options.append(_on_one(masks, parts))
    best = min(options, key=lambda option: option[0])
    return best[1]


def _on_all(masks: np.ndarray, parts: np.ndarray) -> tuple[tuple[int, int], np.ndarray]:
    """The best of the same cores on every instance, with its two measures."""
    if len(parts) > 1:
        masks = np.concatenate([masks, np.eye(parts.shape[1], dtype=bool)])
    shared = (masks.astype(np.int64) @ parts.T.astype(np.int64)).sum(1)
    measure, index = _closest(masks.sum(1) * len(parts), shared, int(parts.sum()))
    chosen = np.zeros_like(parts)
    chosen[:] = masks[index] if index is not None else False
    return measure, chosen


def _on_one(masks: np.ndarray, parts: np.ndarray) -> tuple[tuple[int, int], np.ndarray]:
    """The best on one instance alone, with its two measures."""
    shared = masks.astype(np.int64) @ parts.T.astype(np.int64)
    sizes = np.repeat(masks.sum(1), len(parts))
    measure, index = _closest(sizes, shared.ravel(), int(parts.sum()))
    chosen = np.zeros_like(parts)
    if index is not None:
        mask, instance = divmod(index, len(parts))
        chosen[instance] = masks[mask]
    return measure, chosen


def _closest(
    sizes: np.ndarray, shared: np.ndarray, total: int
) -> tuple[tuple[int, int], int | None]:
    """Symmetric difference and difference in size of the best candidate, and which it is."""
    if not len(sizes):
        return (np.iinfo(np.int64).max, 0), None
    differences, lengths = sizes + total - 2 * shared, np.abs(sizes - total)
    index = int(np.lexsort((lengths, differences))[0])
    return (int(differences[index]), int(lengths[index])), index
