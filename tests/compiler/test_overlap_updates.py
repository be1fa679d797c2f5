"""Whose turn it is among updates."""

from ncc_compiler.overlap.order_constraints import UpdateOrder

AFTER = [(), (), (0,), (2,), (1,), (3, 4)]
"""Collectives 0 and 1; 2 and 3 read the first, 4 the second, 5 both."""


def test_updates_of_what_started_first_come_first():
    turns = UpdateOrder(AFTER, started=[1, 0], updates=[2, 3, 4, 5])
    assert [turns.may_run(number) for number in (2, 3, 4, 5)] == [False, False, True, False]


def test_the_turn_passes_on_by_the_last_update_of_a_turn():
    turns = UpdateOrder(AFTER, started=[0, 1], updates=[2, 3, 4, 5])
    assert not turns.take(2)
    assert turns.take(3)
    assert turns.may_run(4)
    assert turns.may_run(5)  # reads both, so it waits for the later one


def test_what_is_no_update_takes_no_turn():
    turns = UpdateOrder(AFTER, started=[0, 1], updates=[3, 4])
    assert not turns.take(2)
    assert not turns.may_run(4)


def test_turns_without_updates_are_skipped():
    turns = UpdateOrder([(), (), (), (0,), (2,)], started=[0, 1, 2], updates=[3, 4])
    assert turns.take(3)
    assert turns.may_run(4)
