"""What holds of every run: no part gives more than it has, nothing waits without reason."""

import attrs
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from ncc_runtime.execution.clock.clock import simulate
from ncc_runtime.execution.trace import Trace
from ncc_runtime.neff.placeholder import CollectiveOp
from tests.clock_comparison import performed_in
from tests.clock_reference import Reference
from tests.clock_runs import agreed, collective, compiled, permute, planned, timed, transfers
from tests.draws_clock import busy_texts, placed_collectives

few = settings(max_examples=10, suppress_health_check=list(HealthCheck))
MIB = 1 << 20


def check_shares(reference: Reference) -> None:
    """Exact shares: within every capacity, and every flow is alone or at a part that is full."""
    network = reference.network
    for instant in network.instants:
        assert all(rate <= network.capacity[part] for part, rate in instant.used.items())
        full = {part for part, rate in instant.used.items() if rate == network.capacity[part]}
        for flow, rate in instant.rates:
            assert rate == network.alone(flow.uses, flow.is_relayed) or full & flow.uses.keys()


@given(executable=placed_collectives())
@few
def test_no_part_gives_more_than_it_has_and_none_idles_while_a_flow_could_use_it(executable):
    check_shares(Reference(executable, planned(executable), is_exact=True).run())


@given(text=busy_texts())
@few
def test_compute_and_collectives_together_stay_within_every_part(text):
    executable = compiled(text)
    check_shares(Reference(executable, planned(executable), is_exact=True).run())


@given(executable=placed_collectives())
@few
def test_whole_rates_stay_within_every_part_too(executable):
    """This is what the clock does: by the other tests its times are those of the reference."""
    _, reference = agreed(executable)
    network = reference.network
    for instant in network.instants:
        assert all(rate <= network.capacity[part] for part, rate in instant.used.items())


def same(one: Trace, other: Trace) -> bool:
    columns = [field.name for field in attrs.fields(Trace) if field.name != "executable"]
    return all(np.array_equal(getattr(one, name), getattr(other, name)) for name in columns)


@given(executable=placed_collectives())
@few
def test_the_same_run_has_the_same_trace_again(executable):
    assert same(timed(executable), timed(executable))


@given(text=busy_texts())
@few
def test_times_do_not_depend_on_the_order_of_queues(text):
    executable = compiled(text)
    count = len(executable.queues)
    turned = attrs.evolve(executable, queues=executable.queues[::-1])
    found = {one.key: (one.row, one.start, one.end) for one in performed_in(timed(executable))}
    other = performed_in(timed(turned))
    assert found == {
        (count - 1 - one.queue, one.rank, one.turn): (one.row, one.start, one.end) for one in other
    }


@pytest.mark.parametrize("more", [2, 3, 4])
def test_one_more_transfer_over_a_link_speeds_none_up(more):
    """Ranks of a chip send to those of the next."""

    def ends(count: int) -> list[int]:
        trace = timed(permute([(rank, 4 + rank) for rank in range(count)], 8 * MIB, 8, "trn2"))
        sent = (transfers(trace, rank) for rank in range(count))
        return [next(one[3] for one in found if one[0] == 4 + k) for k, found in enumerate(sent)]

    before, after = ends(more - 1), ends(more)
    assert all(a < b for a, b in zip(before, after, strict=False))


def test_what_shares_nothing_is_never_slowed():
    for ranks, place in ((4, {"topology": "trn1", "placement": "spread"}), (2, {"nodes": 2})):
        trace = timed(collective(CollectiveOp.ALL_REDUCE, "ring", ranks, 1 << 18, **place))
        assert not trace.slowed_ps.any()


@given(executable=placed_collectives())
@few
def test_causes_lead_from_every_event_back_to_the_start(executable):
    trace = simulate(executable, planned(executable))
    caused = np.flatnonzero(trace.cause >= 0)
    assert (trace.cause[caused] < caused).all()
    assert (trace.slowed_ps >= 0).all()
    assert (trace.end_ps >= trace.start_ps).all()
