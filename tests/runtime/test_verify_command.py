"""Nothing runs that is not proved: what `nccrt verify`, `nccrt run` and `Model` do about it."""

import json
from collections.abc import Callable
from pathlib import Path

import attrs
import numpy as np
import pytest

import ncc_compiler
import ncc_runtime
from ncc_runtime.cli import main
from ncc_runtime.errors import ProofError
from ncc_runtime.lowering.executable import IDLE, Executable
from ncc_runtime.neff import container
from ncc_runtime.neff.placeholder import CollectiveOp
from ncc_runtime.runtime import Model
from ncc_runtime.verify import prove
from ncc_runtime.verify.proof import Proof
from tests import mutant_edits as edit
from tests.form_breaks import STREAMS, ring
from tests.programs import collective_program

NAMES = [part.name for part in prove.PARTS]


@pytest.fixture
def neff(tmp_path: Path) -> str:
    path = tmp_path / "model.neff"
    container.save(container.pack(collective_program(CollectiveOp.ALL_REDUCE, 4, [16])), path)
    return str(path)


@pytest.fixture
def streams(tmp_path: Path) -> str:
    """A program of three streams, each of which has a DMA ring."""
    path = tmp_path / "streams.neff"
    ncc_compiler.compile_text(STREAMS).save(path)
    return str(path)


@pytest.fixture
def two_rings(tmp_path: Path) -> str:
    """A topology whose ranks have two rings: a program of three streams is not proved there."""
    path = tmp_path / "two_rings.toml"
    path.write_text(
        'name = "two rings"\nbase = "trn2.48xlarge"\n[dma]\n'
        'engines_per_core = {value = 1, source = "assumed"}\n'
        'rings_per_engine = {value = 1, source = "assumed"}\n'
    )
    return str(path)


@pytest.fixture
def proving(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The executables that are proved from now on."""
    found: list[object] = []
    real = prove.prove_with_evidence

    def counted(executable: Executable) -> tuple[tuple[Proof, ...], prove.Evidence | None]:
        found.append(executable)
        return real(executable)

    monkeypatch.setattr(prove, "prove_with_evidence", counted)
    return found


def silent() -> Model:
    """A model whose ring forgets to tell of an arrival."""
    number = [queue.name for queue in ring().queues].index("cc0.dma0")
    lost = edit.with_post(ring(), number, 0, (2, 3), (IDLE, IDLE))
    return Model(lost)


def unordered() -> Model:
    """A model whose stream does not wait for what comes in before it passes it on."""
    number = [queue.name for queue in ring().queues].index("cc0")
    return Model(edit.with_wait(ring(), number, (3, 1), IDLE, 0))


def test_verify_prints_a_line_for_each_proof(neff: str, capsys):
    assert main(["verify", neff, "--algorithm", "all-reduce=ring"]) == 0
    captured = capsys.readouterr()
    first, memory, *lines = captured.out.splitlines()
    assert first == "all-reduce: 4 ranks on 1 x trn2.48xlarge, lnc 2, linear; policy neuron"
    assert memory.startswith("HBM of 24 GiB a rank: ")
    for name, line in zip(NAMES, lines, strict=False):
        assert line.startswith(name)
        assert line.split(name)[1].split()[0] == "proved"
        assert line.endswith(" s")
    assert captured.err == ""


def test_verify_gives_the_proofs_as_one_object(neff: str, capsys):
    assert main(["verify", neff, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["schema"], report["ranks"]) == (1, 4)
    assert report["verified"]["proved"]
    assert [one["name"] for one in report["verified"]["proofs"]] == NAMES
    assert {one["verdict"] for one in report["verified"]["proofs"]} == {"proved"}


def test_verify_of_what_is_not_proved_is_refused(streams: str, two_rings: str, capsys):
    assert main(["verify", streams, "--topology", two_rings]) == 1
    captured = capsys.readouterr()
    assert "well-formed: exe-W8 3 DMA rings, the 2 DMA engines of a rank have 2" in captured.out
    assert captured.err == "error: not proved: well-formed\n"


def test_run_says_what_it_has_proved(neff: str, capsys):
    assert main(["run", neff, "--no-values"]) == 0
    assert f"proved: {', '.join(NAMES)}, " in capsys.readouterr().out
    assert main(["run", neff, "--no-values", "--json"]) == 0
    verified = json.loads(capsys.readouterr().out)["verified"]
    assert verified["proved"]
    assert verified["seconds"] == pytest.approx(
        sum(one["seconds"] for one in verified["proofs"]), abs=1e-5
    )


def test_run_can_be_told_not_to_prove(neff: str, capsys, proving):
    assert main(["run", neff, "--no-values", "--no-verify"]) == 0
    assert "not verified (--no-verify)" in capsys.readouterr().out
    assert main(["run", neff, "--no-values", "--no-verify", "--json"]) == 0
    verified = json.loads(capsys.readouterr().out)["verified"]
    assert verified == {"proved": False, "seconds": 0, "proofs": []}
    assert proving == []


def test_run_refuses_what_is_not_proved_unless_told(streams: str, two_rings: str, capsys):
    command = ["run", streams, "--topology", two_rings, "--no-values"]
    assert main(command) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(
        "error: not proved: well-formed\n  well-formed: exe-W8 3 DMA rings"
    )
    assert main([*command, "--no-verify"]) == 0


def test_only_what_runs_needs_a_proof(neff: str, capsys, proving):
    assert main(["list", neff]) == 0
    assert main(["explain", neff]) == 0
    assert main(["diff", neff, "--on", "trn1", "--on", "trn2"]) == 0
    assert main(["bench", "allr", "-r", "4", "-b", "1KB"]) == 0
    assert proving == []
    assert main(["bench", "allr", "-r", "4", "-b", "1KB", "--check"]) == 0
    assert len(proving) == 1


def test_a_model_is_proved_once(proving):
    model = ncc_runtime.load(collective_program(CollectiveOp.ALL_REDUCE, 4, [16]))
    assert proving == []
    first, second = model.run(seed=0), model.run(seed=1, clock=False)
    assert first.proofs == second.proofs == model.proofs
    assert proving == [model.executable]


def test_a_model_runs_without_a_proof_if_told(proving):
    model = ncc_runtime.load(collective_program(CollectiveOp.ALL_REDUCE, 4, [16]))
    run = model.run([np.ones((4, 16), np.float32)], verify=False)
    assert (run.outputs[0] == 4).all()
    assert (run.proofs, proving) == ((), [])


@pytest.mark.parametrize(
    ("broken", "refuted", "untried"),
    [
        (silent, {"well-formed"}, set(NAMES[1:])),
        (unordered, {"semantics", "races"}, set()),
    ],
)
def test_a_model_refuses_to_run_what_is_not_proved(
    broken: Callable[[], Model], refuted: set[str], untried: set[str]
):
    model = broken()
    with pytest.raises(ProofError, match=r"^not proved: ") as caught:
        model.run(seed=0)
    by_verdict = {
        verdict: {proof.name for proof in model.proofs if proof.verdict == verdict}
        for verdict in ("refuted", "not tried")
    }
    assert by_verdict["refuted"] <= refuted, str(caught.value)
    assert by_verdict["refuted"], str(caught.value)
    assert by_verdict["not tried"] == untried


def test_a_proof_is_not_tried_that_presumes_one_that_fails():
    number = [queue.name for queue in ring().queues].index("cc0")
    late = edit.with_wait(ring(), number, (12, 0), 3, 99)
    by_name = {proof.name: proof for proof in prove.prove(late)}
    assert by_name["counters"].verdict == "refuted"
    for name in ("deadlock", "semantics", "races"):
        assert by_name[name].verdict == "not tried"
        assert by_name[name].presumed == "counters"
        assert not by_name[name].holds


def test_a_refusal_shows_the_first_breaches_and_counts_the_rest():
    found = Proof("races", "", 0.0, tuple(f"race {k}\n  witness {k}" for k in range(5)))
    untried = attrs.evolve(found, name="semantics", breaches=(), presumed="races")
    with pytest.raises(ProofError) as caught:
        prove.refuse((Proof("counters", "", 0.0), found, untried))
    assert str(caught.value).splitlines() == [
        "not proved: races",
        "  races: race 0",
        "    witness 0",
        "  races: race 1",
        "    witness 1",
        "  races: race 2",
        "    witness 2",
        "  … and 2 more, which nccrt verify shows",
    ]


def test_what_holds_is_not_refused():
    prove.refuse([Proof(name, "", 0.0) for name in NAMES])
