"""Real modules with a few tokens or lines changed, as a slip of the hand or a bad tool would."""

import re
from collections.abc import Mapping
from pathlib import Path

import hypothesis.strategies as st

TESTS = Path(__file__).parent
MODELS: Mapping[str, str] = {
    path.name: path.read_text()
    for folder, pattern in (
        (TESTS / "data" / "hlo", "*.hlo"),
        (TESTS / "golden", "*/*.ir"),
        (TESTS.parent / "ir_examples", "*.ir"),
    )
    for path in sorted(folder.glob(pattern))
    if path.stat().st_size < 1 << 15  # large ones add time, not kinds of lines
}

_TOKEN = re.compile(r"%?[^\W\d][\w.\-]*|-?\d+(?:\.\d+)?|\s+|[^\w\s]")
_NUMBERS = st.sampled_from([0, 1, 2, 3, 4, 7, 8, 64, 1023, 1 << 20, 1 << 31, 1 << 63, -1, -2])

Tokens = list[str]


def _words(tokens: Tokens) -> list[int]:
    return [at for at, token in enumerate(tokens) if not token.isspace()]


def _drop(draw: st.DrawFn, tokens: Tokens) -> None:
    del tokens[draw(st.sampled_from(_words(tokens)))]


def _double(draw: st.DrawFn, tokens: Tokens) -> None:
    at = draw(st.sampled_from(_words(tokens)))
    tokens.insert(at, tokens[at])


def _swap(draw: st.DrawFn, tokens: Tokens) -> None:
    places = _words(tokens)
    one, other = draw(st.sampled_from(places)), draw(st.sampled_from(places))
    tokens[one], tokens[other] = tokens[other], tokens[one]


def _replace(draw: st.DrawFn, tokens: Tokens) -> None:
    """By another token that starts alike: a name by a name, a word by a word, a sign by a sign."""
    at = draw(st.sampled_from(_words(tokens)))

    def kind(token: str) -> str:
        return "word" if token[0].isalpha() else "number" if token[-1].isdigit() else token[0]

    alike = [other for other in tokens if kind(other) == kind(tokens[at])]
    tokens[at] = draw(st.sampled_from(alike))


def _renumber(draw: st.DrawFn, tokens: Tokens) -> None:
    places = [at for at, token in enumerate(tokens) if token.lstrip("-").isdigit()]
    if places:
        tokens[draw(st.sampled_from(places))] = str(draw(_NUMBERS))


def _drop_line(draw: st.DrawFn, tokens: Tokens) -> None:
    _repeat_line(draw, tokens, 0)


def _double_line(draw: st.DrawFn, tokens: Tokens) -> None:
    _repeat_line(draw, tokens, 2)


def _repeat_line(draw: st.DrawFn, tokens: Tokens, times: int) -> None:
    lines = "".join(tokens).splitlines(keepends=True)
    at = draw(st.integers(0, len(lines) - 1))
    lines[at : at + 1] = [lines[at]] * times
    tokens[:] = _TOKEN.findall("".join(lines))


_MUTATIONS = (_drop, _double, _swap, _replace, _replace, _renumber, _drop_line, _double_line)


@st.composite
def mutated_modules(draw: st.DrawFn) -> str:
    """A whole real module after one to four mutations."""
    tokens = _TOKEN.findall(MODELS[draw(st.sampled_from(sorted(MODELS)))])
    for _ in range(draw(st.integers(1, 4))):
        if _words(tokens):
            draw(st.sampled_from(_MUTATIONS))(draw, tokens)
    return "".join(tokens)
