"""What `--json` prints is what docs/schemas say; docs/json.md names every code."""

import ast
import json
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match
from referencing import Registry, Resource

import ncc_compiler
import ncc_compiler.cli
import ncc_runtime.cli
from ncc_compiler.options import CompileOptions
from ncc_runtime.command_line import DONE, OUR_FAULT, REFUSED, USAGE
from tests.chakra import messages
from tests.programs import LOOP_OF_PAIRS
from tests.runtime.test_calibration import SENDRECV

ROOT = Path(__file__).parents[1]
SCHEMAS = {path.stem: json.loads(path.read_text()) for path in (ROOT / "docs/schemas").iterdir()}
REGISTRY = Registry().with_resources(
    (f"{name}.json", Resource.from_contents(schema)) for name, schema in SCHEMAS.items()
)
MAINS: dict[str, Callable[[list[str]], int]] = {
    "nccc": ncc_compiler.cli.main,
    "nccrt": ncc_runtime.cli.main,
}
HLO = str(ROOT / "tests/data/hlo/mlp_train_dp2_tp4.hlo")
FAULTS = """name = "faulty"
base = "trn2.48xlarge"
[[fault]]
between = [0, 1]
down = true
source = "assumed"
[[core]]
chip = 2
core = 1
engines_percent = 50
source = "assumed"
"""


def answered(name: str, arguments: list[str], capsys: pytest.CaptureFixture[str]) -> Any:
    """The object that a command prints, which its schema must allow, and its exit code."""
    command, *verb = name.split("-")
    code = MAINS[command]([*verb, *arguments, "--json"])
    out, err = capsys.readouterr()
    assert err == ""
    found = json.loads(out)
    validator = Draft202012Validator(SCHEMAS[name], registry=REGISTRY)
    fault = best_match(validator.iter_errors(found))
    assert fault is None, f"{fault.json_path}: {fault.message[:300]}"
    assert bool(found["errors"]) is (code != DONE)
    return code, found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Programs and files for commands."""
    made = tmp_path_factory.mktemp("json")
    ncc_compiler.compile_file(HLO).save(made / "mlp.neff")
    partial = CompileOptions(partial_all_reduce="next")
    ncc_compiler.compile_file(ROOT / "ir_examples/backup_workers.ir", partial).save(
        made / "partial.neff"
    )
    messages.write(made / "traces", [[messages.comp(1, us=2)], [messages.comp(1, us=3)]])
    (made / "loop.ir").write_text(LOOP_OF_PAIRS)
    ncc_compiler.compile_text(LOOP_OF_PAIRS).save(made / "loop.neff")
    (made / "faults.toml").write_text(FAULTS)
    (made / "late.toml").write_text('[[fault]]\nwhat = "rank * late by uniform(0us, 9us)"\n')
    (made / "points.toml").write_text(
        '[[grid]]\nop = "all_reduce"\nranks = [2, 4096]\nsize = 64\ntopology = "trn2.3xlarge"\n'
        f'samples = 8\ndown = "c0-c1"\n[[point]]\nprogram = "{made}/mlp.neff"\n'
        f'[[point]]\nmodel = "{HLO}"\nlevel = 0\nstrict = true\n'
    )
    row = {"table": "t", "instance": SENDRECV.instance, "ranks": 2, "op": "sendrecv"}
    row |= {"dtype": SENDRECV.dtype, "size_bytes": 4096, "time_us": 20.0}
    (made / "rows.json").write_text(json.dumps({"rows": [row]}))
    steps = [{"program": "mlp.neff", "instance": "trn1", "time_us": 99.0, "name": "mlp"}]
    steps += [{"programs": {"mlp.neff": 3}, "instance": "trn1", "lnc": 1, "time_us": 250.0}]
    (made / "steps.json").write_text(json.dumps({"steps": steps}))
    return made


SUCCESSES = [
    ("nccc-compile", f"{HLO} -o {{0}}/new.neff"),
    ("nccc-compile", "{0}/loop.ir -o {0}/new.neff"),  # warns
    ("nccc-compile", f"{HLO} --print program"),
    ("nccc-compile", f"{HLO} --time-passes -o {{0}}/new.neff"),
    ("nccc-compile", "{0}/traces -o {0}/new.neff"),
    ("nccc-compile", "{0}/traces --print graph"),
    ("nccc-check", HLO),
    ("nccc-list", "{0}/mlp.neff"),
    ("nccrt-run", "{0}/mlp.neff --seed 0"),
    ("nccrt-run", "{0}/mlp.neff --no-values --per-step '32 sequences'"),
    ("nccrt-run", "{0}/mlp.neff --no-values --no-verify --nodes 2"),
    ("nccrt-run", "{0}/mlp.neff --no-clock --checked --topology trn1"),
    ("nccrt-run", "{0}/mlp.neff --no-values --placement spread"),
    ("nccrt-run", "{0}/loop.neff"),
    ("nccrt-run", "{0}/mlp.neff --down c0-c1 --policy best"),
    ("nccrt-run", "{0}/mlp.neff --seed 0 --steps 4 --feed out1=arg0 --draw arg2"),
    ("nccrt-run", "{0}/mlp.neff --no-values --steps 4 --feed out1=arg0 --checkpoint-every 2"),
    ("nccrt-run", '{0}/mlp.neff --no-values --fault "rank 3 late by 9us" --down c0-c1'),
    ("nccrt-faults", '{0}/mlp.neff --fault "rank 3 dead" --exec-timeout 2 --heartbeat 9us'),
    (
        "nccrt-faults",
        '{0}/mlp.neff --fault "bit 3 of transfer 0 of cc0.dma0 on rank 0 flips" --checksum dma',
    ),
    (
        "nccrt-faults",
        '{0}/mlp.neff --fault "rank * slow by uniform(1, 2)" --runs 3 --heartbeat 9us',
    ),
    ("nccrt-faults", "{0}/mlp.neff --faults {0}/late.toml --runs 2 --outcomes"),
    ("nccrt-faults", "{0}/mlp.neff --all rank.late --runs 2"),
    ("nccrt-goodput", "--step-time 1s --checkpoint-time 9s --mtbf 9h --runs 99 --every 9,99999"),
    ("nccrt-list", "{0}/mlp.neff --queue cc0"),
    ("nccrt-list", "{0}/mlp.neff --rank all --down c0-c1"),
    ("nccrt-verify", "{0}/mlp.neff"),
    ("nccrt-explain", "{0}/mlp.neff --nodes 2"),
    ("nccrt-explain", "{0}/loop.neff --algorithm all-reduce=ring"),
    ("nccrt-diff", "{0}/mlp.neff --on trn2 --on trn2,nodes=2"),
    ("nccrt-explain", "{0}/mlp.neff --on trn2,down=c0-c1,policy=best"),
    ("nccrt-diff", "{0}/mlp.neff --on trn2 --on trn2"),
    ("nccrt-diff", "{0}/mlp.neff --on trn2 --on trn1 --bits"),
    ("nccrt-diff", "{0}/mlp.neff --on trn2 --on trn2,nodes=2,deterministic --bits --seed 0"),
    ("nccrt-run", "{0}/mlp.neff --no-values --deterministic"),
    ("nccrt-bench", "all_reduce -r 8 -b 1KB --deterministic"),
    ("nccrt-diff", "{0}/mlp.neff --on trn2,policy=best --on trn2,slow=c0-c1=50%"),
    ("nccrt-bench", "all_reduce -r 8 -b 1KB -e 2KB --check"),
    ("nccrt-bench", "all_reduce -r 8 -b 1KB -e 2KB --algorithm ring,mesh --stats -n 2"),
    ("nccrt-bench", "all_reduce -r 8 -b 1KB -e 2KB --slow c0-c1=50% --policy best"),
    ("nccrt-bench", "sendrecv -r 2 -b 4KB --topology trn2.3xlarge --compare {0}/rows.json"),
    ("nccrt-stale", "{0}/partial.neff --first 12,8 --steps 2 --draw arg2"),
    ("nccrt-stale", "{0}/partial.neff --first 12 --steps 1 --no-values --bound 1"),
    ("nccrt-sweep", "{0}/points.toml -j 1"),
    ("nccrt-report", "{0}/mlp.neff -o {0}/new.html --per-step 32"),
    ("nccrt-report", "{0}/loop.neff --against trn1 --alternatives all -o {0}/new.html"),
    ("nccrt-topology-list", ""),
    ("nccrt-topology-show", "trn2 --ranks 8"),
    ("nccrt-topology-show", "trn1.2xlarge"),
    ("nccrt-topology-show", "{0}/faults.toml --nodes 2"),
    ("nccrt-calibrate", "{0}/rows.json --shipped"),
    ("nccrt-calibrate", "{0}/rows.json --out {0}/preset.toml --leave-one-out"),
    ("nccrt-calibrate", "{0}/steps.json --shipped"),
    ("nccrt-calibrate", "{0}/steps.json {0}/rows.json --leave-one-out"),
]


@pytest.mark.parametrize(("name", "arguments"), SUCCESSES)
def test_results_are_what_the_schema_says(
    name: str, arguments: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, found = answered(name, shlex.split(arguments.format(folder)), capsys)
    assert code == DONE, found["errors"]


def test_lines_of_a_sweeps_results_are_what_the_schema_says(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "points.jsonl"
    answered("nccrt-sweep", [str(folder / "points.toml"), "--out", str(out), "-j", "1"], capsys)
    validator = Draft202012Validator(SCHEMAS["sweep-result"])
    lines = list(map(json.loads, out.read_text().splitlines()))
    assert {line["status"] for line in lines} == {"done", "refused"}
    for line in lines:
        validator.validate(line)


@pytest.mark.parametrize(
    "fault", ["rank 3 dead", "bit 30 of transfer 0 of cc0.dma0 on rank 0 flips"]
)
def test_runs_with_faults_are_what_the_schema_says(
    fault: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, found = answered("nccrt-run", [str(folder / "mlp.neff"), "--fault", fault], capsys)
    is_dead = "dead" in fault
    assert code == (REFUSED if is_dead else DONE)
    assert found["fault_report"]["outcome"] == ("stall" if is_dead else "wrong values")
    assert (found["fault_report"]["stall"] is None) is (not is_dead)


@pytest.mark.parametrize("way", ["spare", "stop"])
def test_jobs_are_what_the_schema_says(
    way: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = [str(folder / "mlp.neff"), "--steps", "4", "--feed", "out1=arg0", "--seed", "0"]
    fault = ["--on-fault", way, "--fail", "at step 2: rank 1 dead"]
    code, found = answered("nccrt-run", [*job, *fault], capsys)
    assert code == (DONE if way == "spare" else REFUSED)
    assert (found["job"]["stopped"] is None) is (code == DONE)


REFUSED_ARGUMENTS = {
    "nccc-compile": ["no_such.ir"],
    "nccrt-diff": ["no_such.neff", "--on", "trn2", "--on", "trn1"],
    "nccrt-faults": ["no_such.neff", "--all", "rank.dead"],
    "nccrt-goodput": ["--step-time", "1s", "--checkpoint-time", "9s", "--mtbf", "5s"],
    "nccrt-bench": ["all_reduce", "-r", "8", "--topology", "no_such_machine"],
    "nccrt-stale": ["no_such.neff", "--first", "1"],
    "nccrt-report": ["no_such.neff", "-o", "no_such.html"],
}
COMMANDS = sorted(name for name in SCHEMAS if name.startswith(("nccc-", "nccrt-")))


@pytest.mark.parametrize("name", COMMANDS)
def test_every_schema_has_a_command_that_succeeds(name: str) -> None:
    assert name in {of for of, _ in SUCCESSES}


@pytest.mark.parametrize("name", sorted({*COMMANDS} - {"nccrt-topology-list"}))
def test_refusals_are_what_the_schema_says(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, found = answered(name, REFUSED_ARGUMENTS.get(name, ["no_such.neff"]), capsys)
    assert code == REFUSED
    assert found["errors"][0]["code"] in ("file", "refused")


@pytest.mark.parametrize("name", COMMANDS)
def test_wrong_usage_is_what_the_schema_says(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, found = answered(name, ["--no-such-option"], capsys)
    assert code == USAGE
    assert found["errors"][0]["code"] == "usage"
    assert found["errors"][0]["help"].endswith("--help")


@pytest.mark.parametrize("name", ["nccc-check", "nccrt-verify"])
def test_our_own_faults_are_what_the_schema_says(
    name: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("ncc_compiler.driver.load_model", broken)
    monkeypatch.setattr("ncc_runtime.commands.verify.loaded", broken)
    code, found = answered(name, [str(folder / "loop.ir")], capsys)
    assert code == OUR_FAULT
    assert found["errors"][0]["code"] == "internal"


def test_errors_of_a_model_have_file_line_and_column(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "wrong.ir"
    path.write_text("ENTRY e {\n x = f32[4] parameter(0)\n ROOT y = f32[5] negate(x) }\n")
    code, found = answered("nccc-check", [str(path)], capsys)
    (error,) = found["errors"]
    assert code == REFUSED
    assert (error["file"], error["line"]) == (str(path), 3)
    assert error["column"] > 1


@pytest.mark.parametrize("name", SCHEMAS)
def test_a_schema_is_one_and_describes_every_key(name: str) -> None:
    Draft202012Validator.check_schema(SCHEMAS[name])

    def bare(schema: Any, place: str) -> Iterator[str]:
        if isinstance(schema, dict):
            for key, value in schema.get("properties", {}).items():
                is_told = {"description", "$ref", "oneOf"} & set(value)
                if not is_told and place != "if":
                    yield f"{place}.{key}"
            for key, value in schema.items():
                yield from bare(value, key)
        elif isinstance(schema, list):
            for value in schema:
                yield from bare(value, place)

    assert list(bare(SCHEMAS[name], "")) == []


def test_keys_that_no_schema_names_are_found_and_those_that_lack() -> None:
    said = {"schema": 1, "warnings": [], "errors": []}
    found = {**said, "model": "m.ir", "ranks": 1, "operations": 2}
    validator = Draft202012Validator(SCHEMAS["nccc-check"], registry=REGISTRY)
    assert validator.is_valid(found)
    assert not validator.is_valid({**found, "more": 1})
    assert not validator.is_valid(said)
    assert not validator.is_valid({key: value for key, value in found.items() if key != "errors"})


def literal_codes() -> Iterator[str]:
    """The codes of warnings and errors that the sources spell out."""
    for package in ("ncc_compiler", "ncc_runtime"):
        for path in sorted((ROOT / package).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                    is_said = node.func.id in ("Notice", "Refusal")
                    if is_said and node.args and isinstance(node.args[0], ast.Constant):
                        yield str(node.args[0].value)


def test_the_document_names_every_code_and_every_schema() -> None:
    text = (ROOT / "docs/json.md").read_text()
    codes = set(literal_codes())
    assert {"usage", "internal", "plan"} <= codes
    assert {code for code in codes if f"`{code}`" not in text} == set()
    assert {name for name in SCHEMAS if f"(schemas/{name}.json)" not in text} == set()
