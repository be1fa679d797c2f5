"""Diagnostics as text: places, excerpts, carets, notes."""

import pytest

from ncc_compiler.diagnostics import CompileError, Diagnostic, Note, Source, Span


def render(text: str, start: int, end: int) -> str:
    return Diagnostic("x-C1", "fact", Span(Source("f.ir", text), start, end)).render()


def test_place_excerpt_and_carets_are_printed() -> None:
    assert render("one\n  two three\n", 10, 15) == (
        "f.ir:2:7: error[x-C1]: fact\n    2 |   two three\n" + " " * 14 + "^^^^^"
    )


def test_carets_stay_inside_the_line_when_the_span_goes_on() -> None:
    assert render("abc\ndef\n", 1, 7).splitlines()[-1] == " " * 9 + "^^"


def test_carriage_returns_are_not_printed() -> None:
    assert "\r" not in render("abc\r\ndef\r\n", 0, 3)


def test_tabs_count_one_column_and_carets_stay_under_the_text() -> None:
    assert render("\tx\n", 1, 2).splitlines()[1:] == ["    1 |  x", " " * 9 + "^"]


@pytest.mark.parametrize(
    ("text", "start", "end", "indent", "carets"),
    [
        ('%x = "\u6f22\u5b57" bad', 10, 13, 12, 3),  # two wide characters before
        ("%\u6f22\u5b57 = x", 1, 3, 1, 4),  # wide characters marked
        ("\uff58 bad", 2, 5, 3, 3),  # full width
        ("e\u0301 bad", 3, 6, 2, 3),  # a combining accent takes no column
        ("\u200b bad", 2, 5, 1, 3),  # nor does a zero-width space
        ("\t\u6f22\tbad", 3, 6, 4, 3),  # with tabs
        ("\u00e9\u03b1 bad", 3, 6, 3, 3),  # ambiguous ones take one
    ],
)
def test_carets_stand_under_wide_characters(
    text: str, start: int, end: int, indent: int, carets: int
) -> None:
    assert render(text, start, end).splitlines()[-1] == " " * (8 + indent) + "^" * carets


def test_a_long_line_of_wide_characters_is_cut_around_the_carets() -> None:
    line = render("\u6f22" * 500 + "!" + "\u5b57" * 500, 500, 501).splitlines()
    assert line[2].index("^") == len("  1234") + 2 + 1 + 2 * line[1][9:].index("!")


def test_long_line_is_cut_around_the_carets() -> None:
    lines = render("a" * 500 + "!" + "b" * 500, 500, 501).splitlines()
    assert max(map(len, lines)) < 140
    assert lines[1][lines[2].index("^")] == "!"


def test_place_behind_the_last_line_can_be_printed() -> None:
    assert render("abc\n", 4, 5).startswith("f.ir:2:1:")


def test_notes_and_help_follow_the_excerpt() -> None:
    source = Source("f.ir", "abc\n")
    note = Note("here", Span(source, 1, 2))
    text = Diagnostic("x-C1", "fact", Span(source, 0, 1), (note,), "do that").render()
    assert text.splitlines()[3:] == [
        "f.ir:1:2: note: here",
        "    1 | abc",
        " " * 9 + "^",
        "  help: do that",
    ]


def test_compile_error_prints_all_its_diagnostics() -> None:
    with pytest.raises(CompileError, match=r"(?s)one.*two"):
        raise CompileError([Diagnostic("a-C1", "one"), Diagnostic("a-C2", "two")])
