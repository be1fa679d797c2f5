"""One rank's chains with vector clocks: what each item knows, along a path."""

import pytest

from ncc_runtime.order import NOBODY, ChainRun, ItemSpan, SyncStep

RED, BLUE = 0, 1  # semaphores
HOLD_NOTHING = [0, 0]


def wait(item: int, sem: int, value: int, *posts: int) -> SyncStep:
    return SyncStep(item, sem, value, posts)


def post(item: int, *sems: int) -> SyncStep:
    return SyncStep(item, NOBODY, 0, sems)


def span(first: int, end: int, *steps: SyncStep) -> ItemSpan:
    return ItemSpan(first, end, steps)


def knowledge(run: ChainRun, chain: int) -> list[tuple[int, int, list[int]]]:
    """Items of a chain, from first to last, with what others were known to have done."""
    return [
        (one.first, one.end, [*one.known[:chain], *one.known[chain + 1 :]])
        for one in run.slices
        if one.chain == chain
    ]


def test_a_wait_joins_what_the_awaited_increment_tells():
    run = ChainRun(3, 2)
    spans = [
        span(0, 3, post(1, RED)),
        span(0, 2, wait(1, RED, 1, BLUE)),
        span(0, 4, wait(2, BLUE, 1)),
    ]
    assert run.perform(spans, HOLD_NOTHING) is None
    assert knowledge(run, 0) == [(0, 3, [0, 0])]
    assert knowledge(run, 1) == [(0, 1, [0, 0]), (1, 2, [2, 0])]
    assert knowledge(run, 2) == [(0, 2, [0, 0]), (2, 4, [2, 2])]


def test_chains_that_wait_for_one_another_stop_at_the_first_item_that_cannot_start():
    run = ChainRun(2, 2)
    spans = [span(0, 2, wait(1, BLUE, 1, RED)), span(0, 1, wait(0, RED, 1, BLUE))]
    assert run.perform(spans, HOLD_NOTHING) == (0, 1)


@pytest.mark.parametrize(("value", "known"), [(3, 0), (4, 1), (5, 2)])
def test_values_count_from_what_was_held_before_the_path(value: int, known: int):
    run = ChainRun(2, 2)
    spans = [span(7, 9, post(7, RED), post(8, RED)), span(0, 1, wait(0, RED, value))]
    assert run.perform(spans, [3, 0]) is None
    assert knowledge(run, 1) == [(0, 1, [known])]


def test_items_that_come_again_are_counted_again():
    run = ChainRun(2, 2)
    body = [span(4, 6, post(5, RED)), span(0, 1, wait(0, RED, 1))]
    assert run.perform(body, HOLD_NOTHING) is None
    assert run.perform(body, HOLD_NOTHING) is None
    assert knowledge(run, 1) == [(0, 1, [2]), (0, 1, [4])]
    assert [run.item(0, count) for count in range(5)] == [NOBODY, 4, 5, 4, 5]


def test_a_fork_goes_on_without_the_other():
    run = ChainRun(2, 2)
    run.perform([span(0, 1, post(0, RED)), span(0, 0)], HOLD_NOTHING)
    fork = run.fork()
    fork.perform([span(1, 2, post(1, RED)), span(0, 0)], [1, 0])
    assert run.perform([span(5, 6), span(0, 1, wait(0, RED, 2))], [1, 0]) == (1, 0)
    assert fork.perform([span(5, 6), span(0, 1, wait(0, RED, 2))], [2, 0]) is None
    assert knowledge(fork, 1) == [(0, 1, [2])]
