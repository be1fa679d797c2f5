"""Slices that overlap get lanes of their own."""

import numpy as np
import pytest

from ncc_runtime.report.timeline.tracks import lanes


@pytest.mark.parametrize("seed", range(20))
def test_slices_of_one_track_and_lane_never_overlap(seed: int):
    generator = np.random.default_rng(seed)
    track = np.sort(generator.integers(0, 4, 60))
    start = generator.integers(0, 200, 60)
    end = start + generator.integers(0, 60, 60)
    order = np.lexsort((start, track))
    start, end = start[order], end[order]
    lane = lanes(track, start, end)
    for one in set(zip(track.tolist(), lane.tolist(), strict=True)):
        own = (track == one[0]) & (lane == one[1])
        assert (start[own][1:] >= end[own][:-1]).all()


def test_slices_that_follow_each_other_stay_on_the_first_lane():
    start = np.array([0, 5, 5, 9])
    assert lanes(np.zeros(4, int), start, np.array([5, 5, 9, 20])).tolist() == [0, 0, 0, 0]


def test_there_are_no_more_lanes_than_overlap():
    start = np.arange(0, 100, 10)
    assert lanes(np.zeros(10, int), start, start + 15).max() == 1
