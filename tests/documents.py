"""The documents as data: console blocks, files they show, cited paths, links, headings.

In a ```console block a line `$ …` is a command and what follows is its output. A first output line
`# exit N` is the exit code, 0 without one. `…` alone on a line stands for any lines, inside a line
for any characters. A block opened by ```LANGUAGE file=NAME is a file that later commands find.
"""

import difflib
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import attrs

ROOT = Path(__file__).parents[1]
PAGES = tuple(sorted((ROOT / "docs").rglob("*.md")))
DOCUMENTS = (ROOT / "README.md", ROOT / "CHANGELOG.md", *PAGES)

_EXIT = re.compile(r"# exit (\d+)")
_FENCE = re.compile(r"```(?:\{([\w-]+)\}.*|(\w*)(?: file=(\S+))?)")


@attrs.frozen
class Step:
    """A command with the output shown for it, or a file to be there (then `name` is set)."""

    text: str
    exit_code: int = 0
    output: tuple[str, ...] = ()
    first: int = 0  # line of the document where the output begins, from 0
    name: str = ""


@attrs.frozen
class Block:
    """A fenced block; `first` is its first line inside the fence, from 0."""

    language: str
    name: str
    directive: str  # of the site: `toctree`
    lines: tuple[str, ...]
    first: int


def blocks(text: str) -> Iterator[Block]:
    lines = text.split("\n")
    opened: tuple[int, re.Match[str]] | None = None
    for number, line in enumerate(lines):
        if opened is None:
            fence = _FENCE.fullmatch(line)
            opened = (number + 1, fence) if fence else None
        elif line == "```":
            first, fence = opened
            directive, language, name = (word or "" for word in fence.groups())
            yield Block(language, name, directive, tuple(lines[first:number]), first)
            opened = None
    assert opened is None, f"the block opened in line {opened[0]} is not closed"


def prose(text: str) -> str:
    """The text without fenced blocks."""
    lines = text.split("\n")
    for block in blocks(text):
        for number in range(block.first, block.first + len(block.lines)):
            lines[number] = ""
    return "\n".join(lines)


def steps(text: str) -> Iterator[Step]:
    """What a reader who follows the document would do, in order."""
    for block in blocks(text):
        if block.name:
            yield Step("\n".join(block.lines) + "\n", name=block.name)
        elif block.language == "console":
            yield from _commands(block)


def _commands(block: Block) -> Iterator[Step]:
    starts = [k for k, line in enumerate(block.lines) if line.startswith("$ ")]
    assert starts, "a console block without a command"
    assert starts[0] == 0, f"output before the first command: {block.lines[0]}"
    for start, end in zip(starts, [*starts[1:], len(block.lines)], strict=True):
        last = start
        while block.lines[last].endswith("\\"):
            last += 1
        command = "\n".join(block.lines[start : last + 1]).removeprefix("$ ")
        output = block.lines[last + 1 : end]
        code = _EXIT.fullmatch(output[0]) if output else None
        shown = output[1:] if code else output
        first = block.first + end - len(shown)
        yield Step(command, int(code[1]) if code else 0, shown, first)


def is_shown(shown: tuple[str, ...], actual: str) -> bool:
    """Whether the output is what the document shows, elisions aside."""
    pattern = "".join(
        r"(?:.*\n)*?" if line == "…" else ".*".join(map(re.escape, line.split("…"))) + r"\n"
        for line in shown
    )
    lines = "".join(f"{line.rstrip()}\n" for line in actual.splitlines())
    return re.fullmatch(pattern, lines) is not None


def with_elisions(shown: tuple[str, ...], actual: str) -> list[str]:
    """The actual lines with the elisions of the shown ones, wherever these still fit.

    A line that a shown line with an elision stands for is shown as before. `…` alone is kept if
    the lines beside it are there as before, numbers and widths of columns aside.
    """
    elided = [line for line in shown if "…" in line and line != "…"]
    lines = [
        next((line for line in elided if is_shown((line,), one)), one.rstrip())
        for one in actual.splitlines()
    ]
    place = _places_of_shown(shown, lines)
    for number in reversed([k for k, line in enumerate(shown) if line == "…"]):
        before, after = place.get(number - 1), place.get(number + 1)
        if before is not None and after is not None:
            lines[before + 1 : after] = ["…"]
    return lines


def _places_of_shown(shown: Sequence[str], lines: Sequence[str]) -> dict[int, int]:
    """By number of a shown line the number of the line that it has become; both ends, too."""
    plain = [
        [re.sub(r"[\d.,]+|\s+", " ", line).split() for line in each] for each in (shown, lines)
    ]
    words = [[" ".join(line) for line in each] for each in plain]
    blocks_alike = difflib.SequenceMatcher(None, *words, autojunk=False).get_matching_blocks()
    place = {-1: -1, len(shown): len(lines)}
    for block in blocks_alike:
        place |= {block.a + k: block.b + k for k in range(block.size)}
    return place


def code_spans(text: str) -> list[str]:
    return re.findall(r"(?<!`)`([^`\n]+)`(?!`)", prose(text))


def links(text: str) -> list[str]:
    return re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`\n]*`", "", prose(text)))


def anchors(text: str) -> set[str]:
    """The anchors of the headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", prose(text), re.MULTILINE)
    plain = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings)
    return {heading.replace(" ", "-") for heading in plain}


def section(text: str, heading: str) -> str:
    """What stands under a second-level heading."""
    found = re.search(rf"(?ms)^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", text)
    assert found, f"no section {heading!r}"
    return found[1]


def cells(text: str) -> list[list[str]]:
    """The rows of all tables, each as its cells; headings and rules left out."""
    rows = [line.strip("|").split(" | ") for line in text.split("\n") if line.startswith("|")]
    rows = [[cell.strip(" |") for cell in row] for row in rows]
    rules = [k for k, row in enumerate(rows) if re.fullmatch(r"[-:|]+", row[0])]
    return [row for k, row in enumerate(rows) if k not in rules and k + 1 not in rules]
