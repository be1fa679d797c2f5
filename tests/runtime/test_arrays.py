"""Distinct numbers by sorting, beside numpy's."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from ncc_runtime.arrays import distinct, union

WHOLE = st.integers(-3, 3) | st.integers(-(2**63), 2**63 - 1)
NUMBERS = arrays.arrays(np.int64, st.integers(0, 20), elements=WHOLE)


@given(NUMBERS)
def test_distinct_numbers_are_those_of_numpy_and_what_is_given_stays(values):
    before = values.copy()
    np.testing.assert_array_equal(distinct(values), np.unique(values))
    np.testing.assert_array_equal(values, before)


@given(st.lists(NUMBERS, min_size=1, max_size=4))
def test_a_union_has_what_is_in_any_set(sets):
    np.testing.assert_array_equal(union(*sets), np.unique(np.concatenate(sets)))
