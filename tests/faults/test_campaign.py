"""Campaigns over classes of faults: the command, and every single fault of some algorithms."""

import json

import attrs
import pytest

from ncc_runtime.cli import main
from ncc_runtime.collectives.algorithms.hierarchical import PAIRS
from ncc_runtime.faults.campaign import Campaign, campaign
from ncc_runtime.faults.outcome import Effect, Laboratory
from ncc_runtime.faults.resolve import resolved
from ncc_runtime.faults.single_faults import CLASSES, FaultClass, class_named, faults_of
from ncc_runtime.faults.text import parse
from ncc_runtime.inputs import bound_inputs
from ncc_runtime.neff import container
from ncc_runtime.neff.placeholder import CollectiveOp
from tests.clock_runs import collective
from tests.programs import collective_program


def found(
    op: CollectiveOp,
    algorithm: str,
    ranks: int,
    name: str,
    most: int | None = None,
    processes: int | None = None,
) -> Campaign:
    nodes = 2 if algorithm.startswith("hier") else None
    executable = collective(op, algorithm, ranks, 64, nodes=nodes)
    lab = Laboratory(executable, lambda: bound_inputs(executable.program, {}, 0))
    kind = class_named(name)
    return campaign(lab, kind, *faults_of(kind, lab, most, 0), processes)


@pytest.mark.parametrize("name", [kind.name for kind in CLASSES])
def test_every_class_has_an_outcome_for_each_fault(name: str) -> None:
    of_ring = found(CollectiveOp.ALL_REDUCE, "ring", 4, name, most=12)
    assert sum(of_ring.counts.values()) == of_ring.tried == min(12, of_ring.there_are)
    for row in of_ring.rows:
        if row.outcome.effect is Effect.STALL:
            assert row.named == row.faults


@pytest.mark.parametrize(("topology", "nodes"), [("trn2", 2), ("trn3", 1)])
@pytest.mark.parametrize("kind", CLASSES, ids=[kind.name for kind in CLASSES])
def test_the_name_of_each_fault_reads_back_as_what_is_tried(
    kind: FaultClass, topology: str, nodes: int
) -> None:
    """On two instances with adapters, and on chips that switches join."""
    executable = collective(CollectiveOp.ALL_REDUCE, "mesh", 4, 64, topology=topology, nodes=nodes)
    lab = Laboratory(executable, lambda: bound_inputs(executable.program, {}, 0))
    _, faults = faults_of(kind, lab, 20, seed=3)
    assert faults
    for fault in faults:
        (read,) = resolved(lab.clock, [parse(fault.name)], 3)
        assert str(read.fault) == fault.name
        assert attrs.asdict(read.disturbance) == attrs.asdict(fault.disturbance())


@pytest.mark.parametrize("name", ["bit.transfer", "dma.lost"])
def test_a_campaign_is_the_same_each_time_and_with_any_number_of_processes(name: str) -> None:
    first, *others = (
        found(CollectiveOp.ALL_REDUCE, "ring", 4, name, 50, processes).rows
        for processes in (None, 1, 3)
    )
    for rows in others:
        assert [attrs.asdict(row) for row in rows] == [attrs.asdict(row) for row in first]


@pytest.fixture
def program(tmp_path) -> str:
    path = tmp_path / "ring.neff"
    path.write_bytes(container.pack(collective_program(CollectiveOp.ALL_REDUCE, 4, [64])))
    return str(path)


def test_the_command_prints_the_table_and_json(program: str, capsys) -> None:
    assert main(["faults", program, "--all", "rank.dead"]) == 0
    text = capsys.readouterr().out
    assert "rank.dead: a rank dies, its memory lives on" in text
    assert "a culprit is where the fault is in 12" in text
    assert main(["faults", program, "--fault", "at 30us: rank 3 dead", "--json"]) == 0
    fields = json.loads(capsys.readouterr().out)
    report = fields["fault_report"]
    assert report["outcome"] == "stall"
    assert "rank 3" in {
        one["name"] for each in report["stall"]["culprits"] for one in each["suspects"]
    }


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        ([], 2, "give --fault TEXT or --faults FILE.toml, or --all CLASS"),
        (["--all", "dma.list"], 2, "no class of faults is called 'dma.list'"),
        (["--fault", "rank 3 daed"], 2, "did you mean dead?"),
        (["--fault", "rank 99 dead"], 1, "rank"),
        (["--fault", "rank 3 dead", "--all", "rank.dead"], 2, "give --fault TEXT"),
        (["--all", "rank.dead", "--plot", "a.svg"], 2, "--plot goes with --fault and --runs"),
        (["--fault", "rank 3 dead", "--outcomes"], 2, "--outcomes goes with --fault and --runs"),
        (["--all", "rank.dead", "--exec-timeout", "2"], 2, "--exec-timeout goes with --fault"),
        (["--all", "rank.dead", "--heartbeat", "9us"], 2, "--heartbeat goes with --fault"),
        (["--all", "rank.dead", "--checksum", "dma"], 2, "--checksum goes with --fault"),
        (["--fault", "rank 3 dead", "--runs", "2", "--checksum", "dma"], 2, "without --runs"),
        (["--fault", "rank 3 dead", "--heartbeat", "0us"], 2, "no period of more than 0"),
        (["--fault", "rank 3 dead", "--heartbeat", "soon"], 2, "'soon' is not a time such as"),
        (["--fault", "rank 3 dead", "--heartbeat", "9us,0"], 2, "'0' is no number of beats"),
        (["--fault", "rank 3 dead", "--heartbeat", "0.1us"], 1, "take a longer period than 0.1"),
        (["--fault", "rank 3 dead", "--exec-timeout", "0"], 1, "--exec-timeout is 0 s; it must be"),
    ],
)
def test_what_is_no_fault_is_refused(
    words: list[str], code: int, message: str, program: str, capsys
) -> None:
    assert main(["faults", program, *words]) == code
    assert message in capsys.readouterr().err


MANY = [
    (CollectiveOp.ALL_REDUCE, "ring"),
    (CollectiveOp.ALL_REDUCE, "mesh"),
    (CollectiveOp.ALL_REDUCE, "rdh"),
    (CollectiveOp.ALL_REDUCE, PAIRS[0].name),
    (CollectiveOp.ALL_TO_ALL, "direct"),
]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dma.lost", "rank.dead"])
@pytest.mark.parametrize("ranks", [16, 64])
@pytest.mark.parametrize(("op", "algorithm"), MANY)
def test_every_stall_of_large_groups_has_a_culprit(
    op: CollectiveOp, algorithm: str, ranks: int, name: str
) -> None:
    """All lost completions and dead ranks; of the transfers of a ring of 64, 32,512, some."""
    most = 500 if (algorithm, ranks, name) == ("ring", 64, "dma.lost") else None
    result = found(op, algorithm, ranks, name, most)
    assert sum(result.counts.values()) == result.tried
    assert result.counts[Effect.STALL] + result.counts[Effect.HARMLESS] == result.tried
    for row in result.rows:
        if row.outcome.effect is Effect.STALL:
            assert row.named == row.faults, row
