"""One NaN for all: which NaN arithmetic keeps depends on numpy's loops, not on the program."""

import numpy as np


def canonical_nans(array: np.ndarray) -> np.ndarray:
    """The array with every NaN made the positive quiet one, so that bits do not hang on batches."""
    if array.dtype.kind not in "fc" and "float" not in array.dtype.name:
        return array
    wrong = np.isnan(array)
    if not wrong.any():
        return array
    return np.where(wrong, np.array(np.nan, array.dtype), array)
