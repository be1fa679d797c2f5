"""Random nested loops and branches, with collectives in some, run to their ends on a placement."""

from hypothesis import given, settings
from hypothesis import strategies as st

import ncc_runtime
from ncc_runtime.neff.program import Program
from tests.draws_neff import programs
from tests.example_count import examples


@given(program=programs(most_steps=4), trip_count=st.integers(0, 2))
@settings(max_examples=examples(40))
def test_random_nested_blocks_come_to_their_ends(program: Program, trip_count: int) -> None:
    trips = {block.name: trip_count for block in program.blocks}
    model = ncc_runtime.load(program, "trn2")
    run = model.run(values=False, trip_counts=trips)
    shuffled = model.run(values=False, trip_counts=trips, shuffle_seed=1)
    assert shuffled.time_us == run.time_us
