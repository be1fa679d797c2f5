"""The ends of what the clock can count: shares below a megabyte a second, huge instructions."""

from pathlib import Path

import attrs
import numpy as np
import pytest

import ncc_compiler
import ncc_runtime
from ncc_runtime.errors import LoweringError
from ncc_runtime.lowering.executable import Executable
from ncc_runtime.neff.isa import Engine
from ncc_runtime.neff.placeholder import CollectiveOp
from ncc_runtime.report.overlap import overlap
from tests.clock_runs import agreed, collective, compiled, permute, timed

CRAMPED = """name = "cramped"
base = "trn2.48xlarge"
[[fault]]
between = [0, 1]
bandwidth_bytes_per_s = {rate}
source = "assumed"
"""
HUGE = """name = "huge"
base = "trn2.48xlarge"
[hbm]
stack_bytes = {value = 40_000_000_000_000, source = "assumed"}
"""


@pytest.mark.parametrize("rate", [2_000_000, 3_000_000, 7_000_000])
@pytest.mark.parametrize("size", [1 << 12, 1 << 16])
def test_flows_that_get_less_than_a_megabyte_a_second_are_timed_as_by_the_reference(
    rate: int, size: int, tmp_path: Path
) -> None:
    path = tmp_path / "cramped.toml"
    path.write_text(CRAMPED.format(rate=rate))
    pairs = [(rank, rank + 4) for rank in range(4)] + [(rank + 4, rank) for rank in range(4)]
    trace, _ = agreed(permute(pairs, size, 8, str(path)))
    assert (trace.slowed_ps > 0).any()
    all_to_all = collective(CollectiveOp.ALL_TO_ALL, "direct", 8, size // 4, topology=str(path))
    agreed(all_to_all)


def test_an_instruction_of_more_bytes_than_can_be_counted_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "huge.toml"
    path.write_text(HUGE)
    text = f"ENTRY e {{ x = f32[{1 << 40}] parameter(0)\n ROOT y = f32[{1 << 40}] negate(x) }}\n"
    executable = compiled(f"HloModule m, replica_count=1\n{text}", str(path))
    with pytest.raises(LoweringError, match=r"moves 8,796,093,022,208 bytes in one instruction"):
        timed(executable)


FACTORISE = """HloModule m, replica_count={ranks}
body {{ s = (s32[], f64[{size},{size}]) parameter(0)
 i = s32[] get-tuple-element(s), index=0
 x = f64[{size},{size}] get-tuple-element(s), index=1
 y = f64[{size},{size}] cholesky(x), lower=true
 one = s32[] constant(1)
 j = s32[] add(i, one)
 ROOT t = (s32[], f64[{size},{size}]) tuple(j, y) }}
goes_on {{ s = (s32[], f64[{size},{size}]) parameter(0)
 i = s32[] get-tuple-element(s), index=0
 n = s32[] constant({trips})
 ROOT p = pred[] compare(i, n), direction=LT }}
ENTRY e {{ x = f64[{size},{size}] parameter(0)
 zero = s32[] constant(0)
 s = (s32[], f64[{size},{size}]) tuple(zero, x)
 w = (s32[], f64[{size},{size}]) while(s), condition=goes_on, body=body
 ROOT r = f64[{size},{size}] get-tuple-element(w), index=1 }}
"""


def factorised(size: int, trips: int, ranks: int = 1) -> Executable:
    """A matrix factorised so often, on a device where that takes long, whatever memory it needs."""
    neff = ncc_compiler.compile_text(FACTORISE.format(size=size, trips=trips, ranks=ranks))
    return ncc_runtime.load(neff, "inf2.48xlarge", ignore_memory=True).executable


@pytest.mark.parametrize("ranks", [1, 4])
@pytest.mark.parametrize("trips", [6_000, 20_000])
def test_a_run_longer_than_int64_counts_for_all_ranks_is_refused(ranks: int, trips: int) -> None:
    once_s = timed(factorised(1 << 16, 1, ranks)).time_ps / 10**12
    assert once_s * trips > 2**63 / 10**12 / ranks
    with pytest.raises(
        LoweringError, match=r"the run takes more than [\d,]+ s, the most that the "
    ):
        timed(factorised(1 << 16, trips, ranks))


def test_a_run_as_long_as_can_be_counted_is_reported() -> None:
    executable = factorised(1 << 16, 2_000)
    trace = timed(executable)
    assert trace.time_ps > 2**61
    assert 0 < overlap(trace).compute_ps <= trace.time_ps


def test_an_instruction_that_works_longer_than_the_kernel_counts_is_refused() -> None:
    program = factorised(8, 1).program
    table = program.queues[Engine.GPSIMD]
    many = attrs.evolve(table, elements=np.where(table.elements > 0, 2**62, 0))
    longer = attrs.evolve(program, queues={**program.queues, Engine.GPSIMD: many})
    with pytest.raises(LoweringError, match=r"GpSimd works for [\d,]+ s on one instruction"):
        timed(ncc_runtime.load(longer, "inf2.48xlarge").executable)
