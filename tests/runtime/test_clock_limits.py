"""The ends of what the clock can count: shares below a megabyte a second, huge instructions."""

from pathlib import Path

import pytest

from ncc_runtime.errors import LoweringError
from ncc_runtime.neff.placeholder import CollectiveOp
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
