"""What numpy has in a form that is too slow for whole machines."""

import numpy as np


def distinct(values: np.ndarray) -> np.ndarray:
    """The distinct values of (n,) whole numbers, ascending; `values` may be empty.

    It sorts; np.unique of numpy 2.3 and later hashes, and takes tens of times as long where many
    values differ (docs/decisions.md, 161). Its first call imports numpy.ma, too.
    """
    values = np.sort(values)
    is_new = np.ones(len(values), bool)
    np.not_equal(values[1:], values[:-1], out=is_new[1:])
    return values[is_new]


def union(*sets: np.ndarray) -> np.ndarray:
    """The distinct values of several arrays of whole numbers, ascending."""
    return distinct(np.concatenate(sets))
