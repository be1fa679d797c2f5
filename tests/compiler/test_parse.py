"""HLO text to syntax tree: what may be left out, what recovers."""

import contextlib
import subprocess
import sys

import attrs
import pytest
from hypothesis import example, given, settings

from ncc_compiler.diagnostics import CompileError, Source
from ncc_compiler.ir.load import load_module
from ncc_compiler.syntax import parse as parsing
from ncc_compiler.syntax.lexer import expand_statements, tokens
from ncc_compiler.syntax.parse import MAX_ERRORS, parse
from tests import draws
from tests.calls import calls_of
from tests.compiler.reading import SUM, complaints, load, messages, node
from tests.draws_mutations import mutated_modules
from tests.example_count import examples


def test_five_lines_without_any_frame_are_a_program() -> None:
    module = load("x = f32[4] parameter(0)\ny = f32[4] negate(x)\n")
    assert module.entry_computation.nodes[module.entry_computation.root].name == "y"


def test_what_xla_prints_equals_its_bare_form() -> None:
    bare = load("ENTRY m {\n x = f32[2,3] parameter(0)\n y = f32[2,3] add(x, x)\n}\n")
    full = load(
        "HloModule main, entry_computation_layout={(f32[2,3]{1,0})->f32[2,3]{1,0}}\n\n"
        "ENTRY %m (x: f32[2,3]) -> f32[2,3] {\n"
        "  %x = f32[2,3]{1,0:T(8,128)(2,1)} parameter(0)\n"
        "  ROOT %y = f32[2,3]{1,0} add(f32[2,3]{1,0} %x, /*index=1*/f32[2,3]{1,0} %x)\n"
        "}\n"
    )
    assert full.computations == bare.computations


@pytest.mark.parametrize(
    "comment", ["# RUN: x\n", "// note\n", "/* two\nlines */", "   # indented\n", "\ufeff"]
)
def test_comments_mean_nothing(comment: str) -> None:
    text = "x = f32[4] parameter(0)\ny = f32[4] negate(x)\n"
    assert load(comment + text) == load(text)


def test_windows_line_ends_and_tabs_mean_nothing() -> None:
    text = "ENTRY m {\n\tx = f32[4] parameter(0)\n\ty = f32[4] negate(x)\n}\n"
    assert load(text.replace("\n", "\r\n")) == load(text)


def test_names_may_hold_letters_of_any_script() -> None:
    assert node(load("größe.1 = f32[] parameter(0)\n"), "größe.1").op == "parameter"


def test_attribute_values_may_hold_brackets_quotes_and_lines() -> None:
    value = '{"a}": [1, {"b":\n "\\"{"}]}'
    module = load(f"x = f32[] parameter(0), backend_config={value}\n")
    assert node(module, "x").attributes["backend_config"].text == value


def test_instructions_outside_of_braces_stand_beside_computations() -> None:
    text = "x = f32[4] parameter(0)\ny = f32[] parameter(1)\n"
    text += "r = f32[] reduce(x, y), dimensions={0}, to_apply=sum\n"
    assert list(load(SUM + text).computations) == ["sum", "main"]


def test_a_bad_line_does_not_hide_the_next() -> None:
    text = (
        "a = f32[2] parameter(0)\nb = f32[2] add(a, $)\nc = f32[2] add(a a)\nd = f32[2] negate(c)\n"
    )
    assert complaints(text) == ["2:19 syntax-C1", "3:18 syntax-C1"]


def test_a_line_that_stops_short_is_blamed_at_its_end() -> None:
    assert complaints("a = f32[2] parameter(0)\nb = f32[2] add(a,\nc = f32[2] negate(a)\n") == [
        "2:18 syntax-C1"
    ]


def test_a_bad_heading_does_not_spoil_its_body() -> None:
    text = SUM.replace("b: f32[]", "b f32[]") + "ENTRY main {\n  x = f32[2] negate(y)\n}\n"
    assert complaints(text) == ["1:18 syntax-C1", "7:21 name-C1"]


def test_a_missing_brace_is_noticed_at_the_next_heading() -> None:
    text = SUM.rstrip("}\n") + "\nENTRY main {\n  x = f32[2] negate(y)\n}\n"
    assert complaints(text) == ["4:27 syntax-C1", "6:21 name-C1"] or complaints(text)[-1] == (
        "6:21 name-C1"
    )


def test_a_missing_brace_at_the_end_says_so() -> None:
    assert "close the computation with '}'" in messages("ENTRY m {\n x = f32[] parameter(0)\n")


def test_a_type_without_its_op_is_explained() -> None:
    text = "x = f32[2] parameter(0)\ny = f32[2] (x, x)\n"
    assert complaints(text) == ["2:12 syntax-C1"]
    assert "found '('" in messages(text)


def test_errors_are_capped() -> None:
    assert len(complaints("x = $\n" * 100)) == MAX_ERRORS


@pytest.mark.parametrize(
    "garbage",
    [
        "x = " + "(" * 100_000,
        "x = " + "(" * 50_000 + "f32[]" + ")" * 50_000 + " parameter(0)",
        "x = f32[] constant(" + "{" * 100_000,
        ", a={\n" * 20_000,
        "$" * 100_000,
        "{" * 100_000,
        "x = f32[" + "9," * 20_000 + "9] parameter(0)",
        "x = f32[2] parameter(" + "9" * 10_000 + ")",
        "x = f32[2] all-gather(x), dimensions={0}, replica_groups=[99999999999]<=[99999999999]",
        "HloModule m, num_partitions=99999999999999\nx = f32[] parameter(0)",
        '"',
        "/*",
        "\x00",
        "HloModule",
        "ENTRY",
        "ROOT",
        "FileNames\n1 2",
        "",
        "# nothing\n",
    ],
    ids=lambda text: repr(text[:20]),
)
def test_garbage_is_refused_with_a_reason(garbage: str) -> None:
    assert complaints(garbage)


@pytest.mark.parametrize("unit", ["((((", "{", "x = ", "9,", "a b ", "x = f32[2] add(x, x)\n"])
def test_work_on_garbage_grows_with_its_length(unit: str) -> None:
    once, twice = (calls_of(lambda text=unit * count: complaints(text)) for count in (2000, 4000))
    assert twice < 2.5 * once


@given(draws.damaged_texts())
@settings(max_examples=examples(300))
def test_damaged_text_gives_a_module_or_diagnostics(text: str) -> None:
    with contextlib.suppress(CompileError):
        load_module(Source("t.hlo", text))


def reading_of(text: str) -> tuple[object, list[str]]:
    file, found = parse(Source("t.hlo", text))
    tree = attrs.asdict(file, filter=lambda field, _: field.name != "source")
    return tree, [diagnostic.render() for diagnostic in found]


@example("x = f32[8,128]{,0:T(8,)} parameter(0)\nROOT r = f32[8,128] copy(x)\n")
@example("x = f32[] parameter(0)\nROOT r = f32[] call(%x), to_apply={%d}\n")
@example("x = s32[] parameter(0)\nROOT r = f32[] conditional(%x), branch_computations={a, {b}}\n")
@given(mutated_modules())
@settings(max_examples=examples(100))
def test_lines_read_whole_mean_what_their_tokens_mean(text: str) -> None:
    by_line = reading_of(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parsing, "tokens", lambda text: expand_statements(text, tokens(text)))
        assert reading_of(text) == by_line


def test_most_lines_of_a_real_program_are_read_whole() -> None:
    text = (draws.HLO / "llama_4l_64ranks.hlo").read_text()
    kinds = [token.type for token in tokens(text)]
    assert kinds.count("STATEMENT") > 10 * kinds.count("DEFINITION")


@pytest.mark.parametrize("name", ["mlp_train_dp2_tp4", "collective_zoo", "llama_4l_64ranks"])
def test_real_programs_are_read_without_complaint(name: str) -> None:
    file, found = parse(Source(name, (draws.HLO / f"{name}.hlo").read_text()))
    assert (found, file.is_whole) == ((), True)


def test_frames_point_at_the_users_lines() -> None:
    module = load((draws.HLO / "mlp_train_dp2_tp4.hlo").read_text())
    frame = module.frames[4]
    assert (frame.file, frame.line, frame.parent) == ("models.py", 56, 3)


def test_importing_the_package_does_not_load_lark() -> None:
    code = "import sys, ncc_compiler, ncc_compiler.ir.load; sys.exit('lark' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
