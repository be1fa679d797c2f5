"""Files that nobody should give, and messages about them: endless, huge, deep and long ones."""

import json
import os
import resource
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ncc_compiler.cli
import ncc_runtime.cli
from ncc_compiler.diagnostics import MAX_SHOWN, CompileError, Diagnostic, Source, Span
from ncc_compiler.driver import load_text
from ncc_compiler.ir.text.reading import MAX_COMPARED, TextReader
from ncc_runtime.calibration.measured_files import read_measured
from ncc_runtime.errors import InputError, NccError, NeffError, TopologyError, shortened
from ncc_runtime.input_files import (
    MOST_DEPTH,
    MOST_DIGITS,
    MOST_JSON_BYTES,
    MOST_TOML_BYTES,
    json_of,
    read_file,
)
from ncc_runtime.neff import container
from ncc_runtime.neff.placeholder import CollectiveOp
from ncc_runtime.placement import PlaceOptions, place_on
from ncc_runtime.plans.files import read_plans
from ncc_runtime.topology.format.load import load_spec
from ncc_runtime.topology.format.toml_file import MOST_LETTERS
from tests.example_count import examples
from tests.programs import collective_program


@pytest.fixture
def neff(tmp_path: Path) -> str:
    path = tmp_path / "model.neff"
    container.save(container.pack(collective_program(CollectiveOp.ALL_REDUCE, 4, [16])), path)
    return str(path)


READERS = {
    "model": lambda _, file: ncc_compiler.cli.main(["check", file]),
    "list": lambda _, file: ncc_compiler.cli.main(["list", file]),
    "neff": lambda _, file: ncc_runtime.cli.main(["run", file]),
    "topology": lambda _, file: ncc_runtime.cli.main(["topology", "show", file]),
    "placement": lambda neff, file: ncc_runtime.cli.main(["run", neff, "--placement", file]),
    "plan": lambda neff, file: ncc_runtime.cli.main(["run", neff, "--plan", file]),
    "rows": lambda _, file: ncc_runtime.cli.main(["calibrate", file]),
}
"""Every command that reads a file."""


@contextmanager
def endless_pipe(path: Path) -> Iterator[str]:
    """A pipe whose writer goes on until nobody reads."""
    os.mkfifo(path)

    def write() -> None:
        with suppress(BrokenPipeError), path.open("wb", buffering=0) as stream:
            while True:
                stream.write(b"y\n" * 32768)

    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    yield str(path)
    writer.join()


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("device", ["/dev/zero", "/dev/urandom"])
def test_devices_are_refused(reader: str, device: str, neff: str, capsys) -> None:
    assert READERS[reader](neff, device) == 1
    (line,) = capsys.readouterr().err.splitlines()
    fact = "a .neff" if reader in ("list", "neff") else "is a device; give the name of a file"
    assert device in line
    assert fact in line


@pytest.mark.parametrize("reader", ["neff", "topology", "placement", "rows"])
def test_endless_pipes_are_refused(reader: str, neff: str, tmp_path: Path, capsys) -> None:
    with endless_pipe(tmp_path / "pipe") as pipe:
        assert READERS[reader](neff, pipe) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert pipe in line


@pytest.mark.slow
@pytest.mark.parametrize("reader", ["model", "plan"])
def test_endless_pipes_are_refused_where_files_may_be_large(
    reader: str, neff: str, tmp_path: Path, capsys
) -> None:
    with endless_pipe(tmp_path / "pipe") as pipe:
        assert READERS[reader](neff, pipe) == 1
    assert "the most that is read of it" in capsys.readouterr().err


@pytest.mark.parametrize("reader", READERS)
def test_directories_are_refused(reader: str, neff: str, tmp_path: Path, capsys) -> None:
    assert READERS[reader](neff, str(tmp_path)) == 1
    assert "is a directory" in capsys.readouterr().err


def test_a_file_may_have_what_its_reader_says_and_no_byte_more(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"x" * 100)
    assert read_file(file, 100) == b"x" * 100
    with pytest.raises(OSError, match="has more than 99 bytes") as refusal:
        read_file(file, 99)
    assert refusal.value.filename == str(file)


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    sparse = tmp_path / "sparse.toml"
    with sparse.open("wb") as stream:
        stream.truncate(1 << 40)
    with pytest.raises(TopologyError, match=f"has more than {MOST_TOML_BYTES} bytes"):
        load_spec(str(sparse))


def test_bytes_behind_a_neff_are_not_read(neff: str) -> None:
    with Path(neff).open("r+b") as stream:
        stream.truncate(1 << 40)
    with pytest.raises(NeffError, match="more bytes follow the header than"):
        container.load(neff)


HEAD = 'name = "x"\n'


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a" + ".a" * 100_000 + " = 1", "1:17: a dotted key of more than 8 words"),
        ("[" + "a." * 499 + "a]", "1:18: a dotted key of more than 8 words"),
        ('a = {"b' + '" . "b' * 9 + '" = 1}', "a dotted key of more than 8 words"),
        ("'a'" + ".'a'" * 9 + " = 1", "a dotted key of more than 8 words"),
        (HEAD + "a = " + "[" * 100_000, "2:13: brackets more than 8 deep"),
        (HEAD + "a = " + "{a = " * 100_000, "brackets more than 8 deep"),
        (HEAD + "a = " + "9" * 5000, f"2:5: a key or a number of more than {MOST_LETTERS}"),
        (HEAD + "a = 0x" + "f" * 5000, f"a key or a number of more than {MOST_LETTERS}"),
        (HEAD + "a = 1." + "9" * 5000, f"a key or a number of more than {MOST_LETTERS}"),
        ("x" * 5000 + " = 1", f"1:1: a key or a number of more than {MOST_LETTERS}"),
        (HEAD + 'a = """\\"""\\' + '"""\\' * 100_000, "not TOML"),
        (HEAD + "a = '''" + "'" * 100_000, "not TOML"),
    ],
)
def test_a_topology_that_would_take_long_to_parse_is_refused(
    text: str, reason: str, tmp_path: Path
) -> None:
    file = tmp_path / "t.toml"
    file.write_text(text)
    with pytest.raises(TopologyError) as refusal:
        load_spec(str(file))
    assert reason in str(refusal.value)


def test_dots_and_brackets_in_strings_and_comments_do_not_nest(tmp_path: Path) -> None:
    file = tmp_path / "t.toml"
    file.write_text(
        f'name = "{"[a." * 100}"  # {"[a." * 100}\nbase = "trn2.48xlarge"\n'
        f"summary = '''{'{a.' * 100}'''\n"
    )
    assert load_spec(str(file)).name == "[a." * 100


def test_of_many_wrong_rows_a_topology_names_one(tmp_path: Path) -> None:
    file = tmp_path / "t.toml"
    file.write_text(HEAD + 'base = "trn2.48xlarge"\n' + "[[fault]]\n" * 5000)
    with pytest.raises(TopologyError, match="fault 0: the source is empty"):
        load_spec(str(file))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[" * 100_000 + "]" * 100_000, "deep"),
        ('{"a":' * 100_000 + "1" + "}" * 100_000, "deep"),
        ("[" * (MOST_DEPTH + 2) + "]" * (MOST_DEPTH + 2), f"nested more than {MOST_DEPTH} deep"),
        ("9" * 5000, "a number of 5000 digits"),
        ("-" + "9" * (MOST_DIGITS + 1), "a number of"),
        ("NaN", "NaN is no number"),
        ("[Infinity]", "Infinity is no number"),
        ("{", "Expecting property name"),
    ],
)
def test_json_that_nests_deep_or_has_endless_numbers_is_refused(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        json_of(text)


def test_json_as_deep_as_may_be_is_read() -> None:
    text = "[" * MOST_DEPTH + "9" * MOST_DIGITS + "]" * MOST_DEPTH
    assert json_of(text) == json.loads(text)


HOSTILE_JSON = (
    "[" * 100_000,
    '{"ranks": ' + "[" * 5000 + "]" * 5000 + "}",
    '{"rows": ' + "[" * 5000 + "]" * 5000 + "}",
    '{"ranks": [[0, 0, ' + "9" * 5000 + "]]}",
    '{"rows": [{"op": ' + "9" * 5000 + "}]}",
    '{"ranks": [[0, 0, 1e400]]}',
    '{"ranks": [NaN]}',
    '{"\\ud800": 1}',
    '"' + "x" * 100_000 + '"',
    "[]" * 3,
    '{"format": "ncc-plan", "version": ' + "9" * 5000 + "}",
    '{"format": "ncc-plan", "version": 1, "collectives": ' + "[" * 100_000 + "]" * 100_000 + "}",
)


@pytest.mark.parametrize("reader", ["placement", "plan", "rows"])
@pytest.mark.parametrize("text", HOSTILE_JSON)
def test_hostile_json_is_refused_in_a_line(
    reader: str, text: str, neff: str, tmp_path: Path, capsys
) -> None:
    file = tmp_path / "file.json"
    file.write_text(text)
    assert READERS[reader](neff, str(file)) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert len(line) < 5000


@pytest.mark.parametrize("value", ["9" * 5000, "[" * 3000 + "]" * 3000, '"\\ud800"', "1e999"])
def test_hostile_backend_configs_are_refused(value: str) -> None:
    text = (
        "HloModule m, replica_count=2\nENTRY e {\n x = f32[4] parameter(0)\n ROOT y = f32[4] "
        'custom-call(x), custom_call_target="ncc.reduce", '
        f'backend_config={{"root":{value},"reduction":"add"}}\n}}\n'
    )
    with pytest.raises(CompileError):
        load_text(text)


@pytest.mark.parametrize("value", ["9" * 5000, "٣", "-1", "1e3", "9" * 19])
def test_values_of_pass_options_are_short_whole_numbers(value: str, tmp_path: Path, capsys) -> None:
    model = tmp_path / "m.ir"
    model.write_text("ENTRY e { ROOT x = f32[4] parameter(0) }")
    option = f"fold-constants.limit_bytes={value}"
    assert ncc_compiler.cli.main(["compile", str(model), "--pass-option", option]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert len(line) < 600


def test_long_words_and_lines_lose_their_middle() -> None:
    name = "n" * 1_000_000
    assert shortened(f"%{name} is not defined") == (
        f"%{'n' * 119}…(999841 more)…{'n' * 40} is not defined"
    )
    words = " ".join(map(str, range(100_000)))
    assert len(shortened(words)) < 3500
    assert shortened(words).startswith("0 1 2")
    assert shortened(f"{words}\n{words}").count("\n") == 1


@given(st.text(alphabet="ab \n", max_size=400))
def test_messages_that_people_read_stay_as_they_are(message: str) -> None:
    assert shortened(message) == message


@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_a_million_letters_are_not_echoed(flags: list[str], tmp_path: Path, capsys) -> None:
    name = "n" * 1_000_000
    model = tmp_path / "m.ir"
    model.write_text(
        f"ENTRY e {{\n p = f32[4] parameter(0)\n ROOT {name} = f32[5] negate({name})\n}}"
    )
    assert ncc_compiler.cli.main(["check", str(model), *flags]) == 1
    assert len(capsys.readouterr().err) < 5000
    assert ncc_runtime.cli.main(["topology", "show", name, *flags]) in (1, 2)
    assert len(capsys.readouterr().err) < 5000


def test_of_many_errors_some_are_printed_and_the_rest_counted(tmp_path: Path, capsys) -> None:
    model = tmp_path / "m.ir"
    lines = [f" n{k} = f32[5] negate(p)" for k in range(MAX_SHOWN + 950)]
    model.write_text("\n".join(["ENTRY e {", " p = f32[4] parameter(0)", *lines, "}"]))
    assert ncc_compiler.cli.main(["check", str(model)]) == 1
    err = capsys.readouterr().err
    assert err.count("error[") == MAX_SHOWN
    assert err.splitlines()[-1] == "error: 950 more errors are not shown"
    assert ncc_compiler.cli.main(["check", str(model), "--json"]) == 1
    errors = json.loads(capsys.readouterr().out)["errors"]
    assert len(errors) == MAX_SHOWN + 1
    assert errors[-1]["message"] == "950 more errors are not shown"


def test_a_compile_error_holds_all_and_says_some() -> None:
    source = Source("f", "x\n" * 200)
    found = [Diagnostic("x-C1", "wrong", Span(source, 2 * k, 2 * k + 1)) for k in range(200)]
    error = CompileError(found)
    assert len(error.diagnostics) == 200
    assert str(error).count("error[x-C1]") == MAX_SHOWN
    assert str(error).endswith("150 more errors are not shown")


@given(st.text(alphabet="a\n漢😀\ud800", max_size=40), st.data())
def test_positions_are_those_of_splitting_at_line_ends(text: str, data: st.DataObject) -> None:
    offset = data.draw(st.integers(0, len(text)))
    before = text[:offset].split("\n")
    source = Source("f", text)
    assert source.position(offset) == (len(before), len(before[-1]) + 1)
    assert source.line(len(before)) == text.split("\n")[len(before) - 1]


def test_positions_are_right_where_a_text_is_read_in_pieces() -> None:
    text = ("x" * 1023 + "\n") * 2500
    source = Source("f", text)
    for offset in (0, (1 << 20) - 1, 1 << 20, (1 << 20) + 1, len(text) - 1):
        assert source.position(offset) == (offset // 1024 + 1, offset % 1024 + 1)


def test_lines_take_a_few_bytes_each() -> None:
    source = Source("f", "\n" * 100_000)
    source.position(5)
    assert source._line_starts.nbytes < 5 * 100_000


def test_words_are_compared_up_to_a_budget() -> None:
    """Or a hundred thousand misspelt names would each be compared with as many that exist."""
    known = [f"name{k}" for k in range(MAX_COMPARED // 3)]
    reading = TextReader(Source("f", ""))
    found = [reading.suggestion("name_7", known) for _ in range(4)]
    assert [bool(one) for one in found] == [True, True, True, False]


def test_complaints_that_are_not_printed_have_no_suggestion() -> None:
    reading = TextReader(Source("f", "x"))
    assert reading.suggestion("negat", ["negate"])
    for _ in range(MAX_SHOWN):
        reading.complain("x-C1", "wrong", (0, 1))
    assert not reading.suggestion("negat", ["negate"])


TOML_WORDS = ("[", "]", "{", "}", ".", "=", '"', "'", '"""', "'''", "\\", "#", "\n", ",", "a", "9")


@st.composite
def mutants(draw: st.DrawFn, text: str, words: tuple[str, ...]) -> str:
    """A text in which a few places are cut, doubled, repeated often or made something else."""
    for _ in range(draw(st.integers(1, 4))):
        first = draw(st.integers(0, len(text)))
        last = draw(st.integers(first, min(len(text), first + 20)))
        new = draw(st.sampled_from([*words, text[first:last]])) * draw(
            st.sampled_from([0, 1, 2, 30, 3000])
        )
        text = text[:first] + new + text[last:]
    return text


PRESET = """name = "own"
base = "trn2.48xlarge"
summary = 'a "b" [c]'
[hbm]
stack_bytes = {value = 1_000_000, source = "assumed"}
[[fault]]
between = [0, 1]
down = true
source = "assumed"  # [x.y]
"""
PLACES = '{"ranks": [[0, 0, 0], [0, 0, 1], [0, 1, 0], [0, 1, 1]]}'
ROWS = """{"rows": [{"table": "t", "instance": "trn2.48xlarge", "ranks": 4, "op": "allr",
"dtype": "fp32", "size_bytes": 1024, "time_us": 12.5}]}"""
JSON_WORDS = ("[", "]", "{", "}", ":", ",", '"', "\\", "\\ud800", "9", "-", "e", ".", "null", "NaN")


@contextmanager
def limited_memory(size_bytes: int) -> Iterator[None]:
    """No more address space than now and so many bytes."""
    now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (now + size_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def check_mutant(kind: str, text: str, folder: Path) -> None:
    file = folder / f"mutant.{'toml' if kind == 'topology' else 'json'}"
    file.write_text(text, errors="surrogatepass")
    with limited_memory(1 << 30), suppress(NccError):
        if kind == "topology":
            load_spec(str(file))
        elif kind == "placement":
            place_on(PlaceOptions(placement=str(file)), 4)
        elif kind == "rows":
            read_measured(str(file))
        else:
            read_plans([str(file)])


KINDS = {
    "topology": (PRESET, TOML_WORDS),
    "placement": (PLACES, JSON_WORDS),
    "rows": (ROWS, JSON_WORDS),
    "plan": (PLACES.replace("ranks", "collectives"), JSON_WORDS),
}


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=examples(40))
@given(data=st.data())
def test_a_mutated_file_is_read_or_refused(kind: str, data, tmp_path_factory) -> None:
    check_mutant(kind, data.draw(mutants(*KINDS[kind])), tmp_path_factory.getbasetemp())


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=3000)
@given(data=st.data())
def test_three_thousand_mutated_files_are_read_or_refused(kind: str, data, tmp_path_factory):
    check_mutant(kind, data.draw(mutants(*KINDS[kind])), tmp_path_factory.getbasetemp())


def test_files_of_rows_are_as_large_as_json_may_be(tmp_path: Path) -> None:
    file = tmp_path / "rows.json"
    file.write_bytes(b" " * (MOST_JSON_BYTES + 1))
    with pytest.raises(InputError, match=f"has more than {MOST_JSON_BYTES} bytes"):
        read_measured(str(file))
