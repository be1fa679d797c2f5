"""What `nccrt faults --heartbeat` and `--checksum` say that these would find and cost."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ncc_runtime.cli import main
from ncc_runtime.neff import container
from ncc_runtime.neff.placeholder import CollectiveOp
from tests.programs import collective_program


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> str:
    path: Path = tmp_path_factory.mktemp("faults") / "ring.neff"
    path.write_bytes(container.pack(collective_program(CollectiveOp.ALL_REDUCE, 4, [64])))
    return str(path)


Faults = Callable[..., Any]


@pytest.fixture
def faults(program: str, capsys: pytest.CaptureFixture[str]) -> Faults:
    """`nccrt faults` with some words: text, or the object with --json."""

    def answer(*words: str) -> Any:
        assert main(["faults", program, *words]) == 0
        text = capsys.readouterr().out
        return json.loads(text) if "--json" in words else text

    return answer


def test_a_dead_rank_is_missed_and_that_is_no_false_alarm(faults: Faults) -> None:
    words = ("--fault", "at 20us: rank 3 dead", "--heartbeat", "5us,2")
    report = faults(*words, "--json")["fault_report"]
    found = report["heartbeat"]
    (alarm,) = found["alarms"]
    assert (alarm["rank"], alarm["by"], found["is_false"]) == (3, 0, False)
    assert 25 < alarm["time_us"] < 40
    assert found["time_us"] > report["undisturbed_us"]
    assert f"rank 0 misses beats of rank 3 at {alarm['time_us']:.3f} us" in faults(*words)


def test_a_pause_that_is_long_enough_is_a_false_alarm(faults: Faults) -> None:
    pause = "at 20us: rank 3 dead for 30us"
    text = faults("--fault", pause, "--heartbeat", "5us,2")
    assert "false: the run would come to its end" in text
    assert "no beat is missed so often\n" in faults("--fault", pause, "--heartbeat", "5us,9") + "\n"


def test_a_lost_completion_silences_no_beat(faults: Faults) -> None:
    lost = "completion 0 of cc0.dma0 on rank 3 lost"
    text = faults("--fault", lost, "--heartbeat", "5us", "--checksum", "dma")
    assert "no beat is missed so often: they go on while the program stalls" in text
    assert "they find none of the faults: no bits flip in transfers" in text


@pytest.mark.parametrize("by", ["dma", "gpsimd"])
def test_sums_find_a_bit_that_flips_on_the_way_and_not_one_in_memory(
    by: str, faults: Faults
) -> None:
    ways = ("rank 1 late by 9us", "bit 9 of transfer 0 of cc0.dma0 on rank 0 flips")
    memory = "at 1us: bit 9 of element 0 of arg0 on rank 0 flips"
    words = [word for fault in (*ways, memory) for word in ("--fault", fault)]
    report = faults(*words, "--checksum", by, "--json")["fault_report"]
    found = report["checksum"]
    assert (found["by"], found["kind"], found["found"]) == (by, "crc32", [1])
    assert report["undisturbed_us"] < found["time_us"] < found["with_faults_us"]
    assert "they find f1; with all faults, and transfers" in faults(*words, "--checksum", by)


def test_false_alarms_are_counted_over_seeds(faults: Faults) -> None:
    words = ("--fault", "rank * late by uniform(0us, 40us)", "--runs", "20")
    words += ("--heartbeat", "10us", "--exec-timeout", "0.00006", "--json")
    found = faults(*words)
    times = [run["time_us"] for run in found["seeds"]["runs"]]
    timeout, beats = found["false_alarms"]
    assert timeout["share"] == sum(time > 60 for time in times) / 20
    assert 0 < beats["share"] < 1  # where a rank begins 30 us late
    for each in (timeout, beats):
        assert each["runs"] == 20
        assert each["share"] < each["at_most"] < 1
    never = faults("--fault", "rank 3 dead", "--runs", "2", "--heartbeat", "10us", "--json")
    assert never["false_alarms"] == []
