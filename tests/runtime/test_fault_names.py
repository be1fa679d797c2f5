"""Faults by name: on the command line, in `--on`, in Python and in TOML, and what is refused."""

import json
from pathlib import Path

import numpy as np
import pytest

import ncc_runtime
from ncc_runtime.cli import main
from ncc_runtime.errors import TopologyError
from ncc_runtime.lowering.listing import list_executable
from ncc_runtime.neff.placeholder import CollectiveOp
from ncc_runtime.placement import parse_on
from ncc_runtime.topology import fault_names
from ncc_runtime.topology.graph import Topology, build
from tests.programs import collective_program


def faulty(name: str, *, down: str = "", slow: str = "", nodes: int = 1) -> Topology:
    faults = [*map(fault_names.down, down.split()), *map(fault_names.slow, slow.split())]
    return build(name, nodes, faults=faults)


def names_of(topology: Topology, rows: np.ndarray) -> list[str]:
    return [topology.links.name(int(link)) for link in np.flatnonzero(rows)]


@pytest.mark.parametrize(
    ("name", "links"),
    [
        ("c0-c1", ["c0.E", "c1.W"]),
        ("c1-c0", ["c0.E", "c1.W"]),
        ("c0>c1", ["c0.E"]),
        ("c0.E", ["c0.E"]),
        ("c0.E>c1", ["c0.E"]),
        ("c0-c12", ["c0.N", "c12.S"]),
        ("c16-c17", ["c16.E", "c17.W"]),
        ("c31.W", ["c31.W"]),
    ],
)
def test_a_name_is_that_of_listings_through_all_instances(name: str, links: list[str]) -> None:
    topology = faulty("trn2", down=name, nodes=2)
    assert names_of(topology, topology.links.is_down) == links


def test_switches_and_levels_have_names_too() -> None:
    topology = faulty("trn3", down="c0.rack s36.p4 s0-c1")
    down = names_of(topology, topology.links.is_down)
    assert set(down) == {"c0.rack", "s36.p4", "s0.p1", "c1.server"}


def test_one_link_of_a_trunk_can_be_slow() -> None:
    topology = build("trn2-ultraserver")
    link = next(index for index, port in enumerate(topology.links.port) if "&" not in port)
    name = topology.links.name(link)
    slowed = faulty("trn2-ultraserver", slow=f"{name}=25%")
    full = topology.links.bandwidth_bytes_per_s[link]
    assert slowed.links.bandwidth_bytes_per_s[link] == full // 4


def test_rates_are_percents_or_bandwidths() -> None:
    topology = faulty("trn2", slow="c0>c1=50% c1.S=64GB/s c2.E=0.5TB/s c3-c7=7MB/s")
    rates = topology.links.bandwidth_bytes_per_s.tolist()
    rate = {topology.links.name(link): rate for link, rate in enumerate(rates)}
    assert rate["c0.E"] == rate["c1.S"] == 64 * 10**9
    assert rate["c2.E"] == 5 * 10**11
    assert rate["c3.S"] == rate["c7.N"] == 7 * 10**6


def test_a_slow_core_is_physical() -> None:
    topology = faulty("trn2", slow="c17.core3=40%", nodes=2)
    chips, cores = np.array([1, 17, 17]), np.array([1, 0, 1])
    assert topology.dma_percent(chips, cores).tolist() == [100, 100, 40]
    assert topology.engines_percent(chips, cores).tolist() == [100, 100, 40]


def test_later_faults_override_earlier_ones_and_those_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "worn.toml"
    file.write_text(
        'name = "worn"\nbase = "trn2.48xlarge"\n'
        '[[fault]]\nname = "c0.E"\npercent = 50\nsource = "s"\n'
        '[[core]]\nname = "c2.core5"\npercent = 30\nsource = "s"\n'
    )
    topology = faulty(str(file), slow="c0.E=25%")
    assert topology.links.bandwidth_bytes_per_s.min() == 32 * 10**9
    assert topology.dma_percent(np.array([2]), np.array([2])).tolist() == [30]
    assert [(each.name, each.state) for each in topology.active_faults] == [
        ("c0.E>c1", "at 50 %"),
        ("c0.E>c1", "at 25 %"),
        ("c2.core5", "at 30 %"),
    ]


def test_names_in_a_file_mean_what_numbers_mean(tmp_path: Path) -> None:
    rows = {
        "numbers": "between = [0, 1]\ndown = true",
        "names": 'name = "c0-c1"\ndown = true',
        "port": 'from = 0\nto = 4\nport = "S"\nnode = 1\nbandwidth_bytes_per_s = 64000000000',
        "ported": 'name = "c0.S"\nnode = 1\npercent = 50',
    }
    made = {}
    for word, row in rows.items():
        file = tmp_path / f"{word}.toml"
        head = 'name = "worn"\nbase = "trn2.48xlarge"\n'
        file.write_text(f'{head}[[fault]]\n{row}\nsource = "s"\n')
        links = build(str(file), 2).links
        made[word] = (links.is_down.tolist(), links.bandwidth_bytes_per_s.tolist())
    assert made["numbers"] == made["names"]
    assert made["port"] == made["ported"]


@pytest.mark.parametrize(
    ("row", "fact"),
    [
        ('[[fault]]\nname = "c0-c9"\ndown = true', "no link leads from chip 0 to 9"),
        ('[[fault]]\nname = "c0.X"\ndown = true', "no link leads from chip 0 by port X"),
        ('[[fault]]\nname = "c0_c1"\ndown = true', "'c0_c1' is no link, as c0-c1"),
        ('[[fault]]\nname = "c0.core1"\ndown = true', "is no link"),
        ('[[fault]]\nname = "c0-c1"\nport = "E"\ndown = true', "or name alone"),
        ('[[fault]]\nname = "c0-c1"\nfrom = 0\nto = 1\ndown = true', "or name alone"),
        ('[[fault]]\nname = "c0-c1"\npercent = 0', "an integer from 1 to 100"),
        ('[[fault]]\nname = "c0-c1"', "neither down nor bandwidth_bytes_per_s nor percent"),
        ('[[core]]\nname = "c0-c1"\npercent = 5', "'c0-c1' is no physical core"),
        ('[[core]]\nname = "c0.core9"\npercent = 5', "core 9 is not below 8"),
        ('[[core]]\nname = "c0.core1"\nchip = 0\npercent = 5', "or name, such as c5.core0"),
        (
            '[[core]]\nname = "c0.core1"\npercent = 5\ndma_percent = 5',
            "neither engines_percent nor dma_percent is given",
        ),
        ('[[core]]\nname = "c0.core1"', "neither engines_percent nor dma_percent is given"),
    ],
)
def test_wrong_names_in_a_file_are_refused_by_place(tmp_path: Path, row: str, fact: str) -> None:
    file = tmp_path / "worn.toml"
    file.write_text(f'name = "worn"\nbase = "trn2.48xlarge"\n{row}\nsource = "s"\n')
    with pytest.raises(TopologyError, match=r"worn\.toml:\d+:\d+: ") as error:
        build(str(file))
    assert fact in str(error.value)


@pytest.mark.parametrize(
    ("words", "fact"),
    [
        ("--down c0-c9", "there is no such link; c0 has "),
        ("--down c0.X", "there is no such link; c0 has "),
        ("--down c99-c1", "there is no c99; chips are c0 to c31"),
        ("--down c0-c16", "its ends are of instances 0 and 1, which no link joins"),
        ("--down s0-c1", "there is no switch s0; there is none"),
        ("--slow c5.core9=50%", "c5 has core0 to core7"),
    ],
)
def test_what_is_not_there_is_refused_with_what_is(words: str, fact: str, capsys) -> None:
    bench = ["bench", "allr", "-r", "128", "-b", "64", "--nodes", "2", *words.split()]
    assert main(bench) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"error: {words}: {fact}")
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    "words",
    [
        "--down c0_c1",
        "--down c0",
        "--down c-1-c0",
        "--down c0.E-c1",
        "--down c0.core1",
        "--down n0.efa3",
        "--down ",
        "--slow c0-c1",
        "--slow c0-c1=",
        "--slow c0-c1=0%",
        "--slow c0-c1=101%",
        "--slow c0-c1=2.5%",
        "--slow c0-c1=50",
        "--slow c0-c1=9B/s",
        "--slow c0-c1=0.1MB/s",
        "--slow c0.core0=5GB/s",
        "--slow c0.core0=nan%",
        "--slow c99999999999-c0=5%",
    ],
)
def test_words_that_are_no_fault_are_wrong_usage(words: str, capsys) -> None:
    option, word = words.split(" ")
    assert main(["bench", "allr", "-r", "4", "-b", "64", option, word]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: {option} {word}: ")
    assert error.count("\n") == 1


def test_the_heading_and_json_say_what_is_down_or_slow(capsys) -> None:
    words = ["bench", "allr", "-r", "64", "-b", "64", "--down", "c0-c1"]
    assert main([*words, "--on", "trn2,slow=c5.core0=50%"]) == 0
    heading = capsys.readouterr().out.splitlines()[0]
    assert heading.endswith("linear; c0-c1 down; c5.core0 at 50 %; policy neuron")
    assert main([*words, "--json"]) == 0
    (fault,) = json.loads(capsys.readouterr().out)["faults"]
    state = {"name": "c0-c1", "state": "down", "node": 0, "source": "--down c0-c1"}
    assert fault == state


def test_one_word_has_faults_too() -> None:
    where = parse_on("trn2,nodes=2,down=c0-c1,down=c4.E,slow=c5.core0=50%")
    assert [fault.name for fault in where.faults] == ["c0-c1", "c4.E", "c5.core0"]
    assert where.nodes == 2
    with pytest.raises(TopologyError, match="--down c0_c1"):
        parse_on("trn2,down=c0_c1")


def test_a_program_runs_round_a_link_that_is_down() -> None:
    program = collective_program(CollectiveOp.ALL_REDUCE, 64, [1 << 18])
    whole = ncc_runtime.load(program)
    worn = ncc_runtime.load(program, down=["c0-c1"], slow=["c5.core0=50%"])
    runs = [model.run(seed=1) for model in (whole, worn)]
    assert runs[0].time_us < runs[1].time_us
    listed = list_executable(worn.executable, 3)  # of chip 0
    assert "c0.S>c4" in listed
    assert "c0.E>c1" not in listed
