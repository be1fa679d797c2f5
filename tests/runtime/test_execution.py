"""The executor: order by semaphores only, deadlock verdicts, checked memory, bits."""

import re

import attrs
import numpy as np
import pytest

import ncc_runtime
from ncc_runtime.errors import DeadlockError, InputError, LoweringError, MemoryFaultError
from ncc_runtime.lowering.executable import DmaQueue, Executable, Queue
from ncc_runtime.neff.placeholder import CollectiveOp
from ncc_runtime.neff.shared.dtypes import DType
from ncc_runtime.neff.shared.reductions import Reduction
from ncc_runtime.runtime import Model
from tests.programs import collective_program

RING = {"all-reduce": "ring"}


def ring(ranks: int = 4, elements: int = 16) -> Executable:
    program = collective_program(CollectiveOp.ALL_REDUCE, ranks, [elements])
    return ncc_runtime.load(program, algorithms=RING).executable


def with_queue(executable: Executable, old: Queue, new: Queue) -> Executable:
    queues = tuple(new if queue is old else queue for queue in executable.queues)
    return attrs.evolve(executable, queues=queues)


def queue_of(executable: Executable, kind: type) -> Queue:
    return next(queue for queue in executable.queues if isinstance(queue, kind))


def without_data_posts(executable: Executable, row: int, rank: int) -> Executable:
    """The executable, its DMA ring silent about one arrival."""
    dma = queue_of(executable, DmaQueue)
    data = dma.sync.posts[0]
    silent = data.rank.copy()
    silent[row, rank] = -1
    posts = (attrs.evolve(data, rank=silent), *dma.sync.posts[1:])
    return with_queue(executable, dma, attrs.evolve(dma, sync=attrs.evolve(dma.sync, posts=posts)))


def test_a_lost_completion_is_a_deadlock_that_names_queue_semaphore_and_values():
    stuck = without_data_posts(ring(), row=5, rank=0)
    with pytest.raises(DeadlockError) as caught:
        Model(stuck).run(seed=1, verify=False)
    message = str(caught.value)
    assert re.search(
        r"rank 1, queue cc0, pc \d+: waits for cc0\.data\.0\.0 >= 6, it holds 5; "
        r"rank 0, queue cc0\.dma0 increments it 5 times",
        message,
    )


def test_a_deadlock_is_the_same_verdict_in_random_order_and_for_the_clock_alone():
    stuck = without_data_posts(ring(), row=2, rank=3)
    verdicts = set()
    for settings in ({}, {"shuffle_seed": 5}, {"values": False}):
        with pytest.raises(DeadlockError) as caught:
            Model(stuck).run(seed=1, verify=False, **settings)
        verdicts.add(str(caught.value))
    assert len(verdicts) == 1


def test_a_shifted_source_is_caught_in_checked_mode():
    executable = ring()
    dma = queue_of(executable, DmaQueue)
    sources = dma.sources.copy()
    sources[0, 1, 0] += executable.hbm_bytes
    broken = with_queue(executable, dma, attrs.evolve(dma, sources=sources))
    with pytest.raises(MemoryFaultError, match=r"rank 1, queue cc0\.dma0, pc 0: bytes .* outside"):
        Model(broken).run(seed=1, checked=True, verify=False)


def test_a_read_of_a_slot_nobody_wrote_is_caught_in_checked_mode():
    executable = ring()
    dma = queue_of(executable, DmaQueue)
    # the slot that round 2 reads first, read in round 1
    sources = dma.sources.copy()
    sources[1, 0, 0] = dma.sources[2, 0, 0]
    broken = with_queue(executable, dma, attrs.evolve(dma, sources=sources))
    with pytest.raises(MemoryFaultError, match=r"channel buffer of stream 0 .* never written"):
        Model(broken).run(seed=1, checked=True, verify=False)


def test_a_model_runs_again_on_the_same_buffers():
    model = Model(ring())
    first = model.run([np.ones((4, 16), np.float32)])
    second = model.run([np.full((4, 16), 2, np.float32)])
    assert (first.outputs[0] == 4).all()
    assert (second.outputs[0] == 8).all()


def test_all_ranks_get_the_same_bits_from_an_all_reduce():
    model = Model(ring(ranks=7, elements=1001))
    output = model.run(seed=3).outputs[0]
    assert len({row.tobytes() for row in output}) == 1


@pytest.mark.parametrize(("dtype", "digits"), [(DType.BF16, 8), (DType.F16, 11), (DType.F32, 24)])
def test_a_ring_rounds_once_per_descriptor(dtype: DType, digits: int):
    """1 + 2^-digits, summed at home by the next two ranks of the ring, is lost one at a time."""
    program = collective_program(CollectiveOp.ALL_REDUCE, 3, [3], dtype=dtype)
    small = 2.0**-digits
    values = np.array([[small] * 3, [1.0] * 3, [small] * 3]).astype(dtype.numpy)
    model = ncc_runtime.load(program, algorithms=RING)
    output = model.run([values]).outputs[0].astype(np.float64)
    # chunk c starts at rank c+1: (1 + s) + s for chunk 0, (s + s) + 1 for chunk 1, s + 1 …
    assert output[0].tolist() == [1.0, 1.0 + 2 * small, 1.0]


def test_minimum_and_maximum_keep_nan_and_order_zeros():
    for reduction, zero in ((Reduction.MINIMUM, "-0.0"), (Reduction.MAXIMUM, "0.0")):
        program = collective_program(CollectiveOp.ALL_REDUCE, 2, [2], reduction=reduction)
        values = np.array([[np.nan, -0.0], [1.0, 0.0]], np.float32)
        output = ncc_runtime.load(program).run([values]).outputs[0]
        assert np.isnan(output[:, 0]).all()
        assert [str(value) for value in output[:, 1]] == [zero, zero]


def test_a_run_that_does_not_fit_is_refused_before_it_allocates():
    model = Model(ring())
    with pytest.raises(InputError, match="budget is 100; --no-values"):
        model.run(seed=0, memory_bytes=100)
    assert model.run(memory_bytes=100, values=False).time_us


def test_an_unknown_algorithm_names_what_there_is():
    program = collective_program(CollectiveOp.ALL_REDUCE, 4, [16])
    with pytest.raises(LoweringError, match="all-reduce has no algorithm 'snake'; it has ring"):
        ncc_runtime.load(program, algorithms={"all-reduce": "snake"})
    with pytest.raises(LoweringError, match="no collective 'allreduce'; there are all-reduce"):
        ncc_runtime.load(program, algorithms={"allreduce": "ring"})


def test_more_semaphores_than_the_cc_cores_have_is_refused():
    program = collective_program(CollectiveOp.ALL_TO_ALL, 416, [416])
    with pytest.raises(LoweringError, match="more than the 769 semaphores its"):
        ncc_runtime.load(program, "trn1", nodes=13, algorithms={"all-to-all": "direct"})


def test_a_program_larger_than_a_ranks_hbm_is_refused():
    program = collective_program(CollectiveOp.ALL_REDUCE, 4, [1 << 33])
    with pytest.raises(LoweringError, match=r"HBM of 24 GiB a rank: .* in all 64\.0 \("):
        ncc_runtime.load(program)
