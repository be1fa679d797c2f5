"""Collectives give the same bits in any number of processes, here threads of one."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from ncc_runtime.execution.values import exchanges
from ncc_runtime.processes import Processes
from tests.draws_collectives import Case, cases
from tests.example_count import examples
from tests.properties.test_collectives import inputs_of, loaded
from tests.thread_processes import among


@settings(max_examples=examples(60))
@given(
    case=cases(),
    seed=st.integers(0, 99),
    data=st.data(),
    round_bytes=st.sampled_from([256, 4096, exchanges.ROUND_BYTES]),
)
def test_collectives_have_the_bits_of_one_process(
    case: Case, seed: int, data: st.DataObject, round_bytes: int
) -> None:
    proved, inputs = loaded(case), inputs_of(case, seed)
    count = data.draw(st.integers(2, max(2, min(5, proved.executable.ranks))))
    if proved.executable.ranks < count:
        return
    way = data.draw(st.sampled_from([{}, {"verify": False}, {"checked": True}]))
    alone = proved.run(inputs, clock=False, **way).outputs

    def run(processes: Processes) -> list[np.ndarray]:
        model = loaded(case)
        model.__dict__.update(proofs=proved.proofs, _pure=proved._pure)  # locked until Python 3.12
        model.processes = processes
        return model.run(inputs, clock=False, threads=1, **way).outputs

    before = exchanges.ROUND_BYTES, exchanges._LEAST_BYTES
    exchanges.ROUND_BYTES, exchanges._LEAST_BYTES = round_bytes, min(before[1], round_bytes // 8)
    try:
        parts = among(count, run)
    finally:
        exchanges.ROUND_BYTES, exchanges._LEAST_BYTES = before
    for number, one in enumerate(alone):
        assert np.concatenate([part[number] for part in parts]).tobytes() == one.tobytes()
