"""Writes what is generated from help texts of commands: docs/commands.md, docs/man/.

Run by `make reference`; `tests/test_reference.py` says when a file is out of date. The reference of
Python is made where the site is built, from docs/reference.md.
"""

import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import attrs
import click

from ncc_compiler.cli import commands as nccc
from ncc_runtime.cli import cli as nccrt

ROOT = Path(__file__).parents[1]


def files() -> dict[Path, str]:
    """Every generated file and its text."""
    pages = [*command_pages("nccc", nccc), *command_pages("nccrt", nccrt)]
    manual = {ROOT / "docs" / "man" / f"{page.file}.1": man_page(page, pages) for page in pages}
    return {ROOT / "docs" / "commands.md": command_reference(pages), **manual}


@attrs.frozen
class CommandPage:
    """What is said of a command, in words of its help text."""

    name: str  # as it is typed
    usage: str
    text: tuple[str, ...]  # paragraphs
    options: tuple[tuple[str, str], ...]  # spellings, help with the default
    commands: tuple[tuple[str, str], ...]  # below it, with one line each
    examples: tuple[str, ...]

    @property
    def file(self) -> str:
        return self.name.replace(" ", "-")

    @property
    def brief(self) -> str:
        """The first sentence."""
        return " ".join(self.text[0].split()).rstrip(".")


def commands_of(command: click.Command, context: click.Context) -> dict[str, click.Command]:
    """The commands below one, by name; those of `nccrt` are imported here."""
    if not isinstance(command, click.Group):
        return {}
    below = {word: command.get_command(context, word) for word in command.list_commands(context)}
    return {word: inner for word, inner in below.items() if inner is not None}


def command_pages(
    name: str, command: click.Command, parent: click.Context | None = None
) -> Iterator[CommandPage]:
    """A command and those below it."""
    context = command.make_context(name.split()[-1], [], parent, resilient_parsing=True)
    options = (each for each in command.get_params(context) if isinstance(each, click.Option))
    records = (option.get_help_record(context) for option in options)
    below = commands_of(command, context)
    paragraphs = inspect.cleandoc(command.help or "").split("\n\n")
    lines = (command.epilog or "").split("\n")[2:]
    yield CommandPage(
        name=name,
        usage=" ".join([name, *command.collect_usage_pieces(context)]),
        text=tuple(" ".join(paragraph.split()) for paragraph in paragraphs),
        options=tuple(record for record in records if record is not None),
        commands=tuple((word, inner.get_short_help_str(200)) for word, inner in below.items()),
        examples=tuple(line.strip() for line in lines),
    )
    for word, inner in below.items():
        yield from command_pages(f"{name} {word}", inner, context)


COMPLETION = """\
Both commands complete their options, and names of topologies, placements, algorithms, operators and
passes, in bash, zsh and fish. For `nccrt`, and likewise for `nccc`:

```sh
eval "$(_NCCRT_COMPLETE=bash_source nccrt)"   # in ~/.bashrc
eval "$(_NCCRT_COMPLETE=zsh_source nccrt)"    # in ~/.zshrc, behind compinit
_NCCRT_COMPLETE=fish_source nccrt | source    # in ~/.config/fish/completions/nccrt.fish
```

Bash takes `=` for the end of a word. With `COMP_WORDBREAKS=${COMP_WORDBREAKS//=}` in `~/.bashrc` it
also completes `--algorithm all-reduce=ring` and `--print graph-after=schedule`.

`man nccrt-run` shows a page as below, where `pip install` has put them on the path of `man`: in an
environment of its own `man -M .venv/share/man nccrt-run` does."""


def command_reference(pages: list[CommandPage]) -> str:
    """All commands in Markdown."""
    lines = ["# Commands", "", "Made from the help texts by `make reference`.", "", "## Completion"]
    lines += ["", COMPLETION]
    for page in pages:
        level = "##" if " " not in page.name else "###"
        lines += ["", f"{level} {page.name}", "", "```text", page.usage, "```"]
        for paragraph in page.text:
            lines += ["", escaped(paragraph)]
        if page.commands:
            lines += ["", *(f"- `{word}`: {escaped(brief)}" for word, brief in page.commands)]
        lines += ["", "| option | |", "|---|---|"]
        for names, said in page.options:
            spelled = names.replace("|", "\\|")
            lines.append(f"| `{spelled}` | {escaped(said)} |")
        lines += ["", "```sh", *page.examples, "```"]
    return "\n".join(lines) + "\n"


def escaped(text: str) -> str:
    """Text for Markdown."""
    return re.sub(r"([*<|`])", r"\\\1", text)


def man_page(page: CommandPage, pages: list[CommandPage]) -> str:
    """A command as a page of section 1; it has no date, so that it changes with its text only."""
    lines = [
        f'.TH "{page.file.upper()}" "1" "" "neuron-ncc" "neuron-ncc"',
        ".SH NAME",
        f"{roff(page.file)} \\- {roff(page.brief)}",
        ".SH SYNOPSIS",
        f".B {roff(page.name)}",
        roff(page.usage.removeprefix(page.name).strip()),
        ".SH DESCRIPTION",
    ]
    for paragraph in page.text:
        lines += [".PP", roff(paragraph)]
    lines.append(".SH OPTIONS")
    for names, said in page.options:
        lines += [".TP", f".B {roff(names)}", roff(said)]
    if page.commands:
        lines.append(".SH COMMANDS")
        for word, brief in page.commands:
            lines += [".TP", f".B {roff(word)}", roff(brief)]
    lines += [".SH EXAMPLES", ".nf", *map(roff, page.examples), ".fi"]
    family = [other.file for other in pages if other.file.split("-")[0] == page.file.split("-")[0]]
    others = ", ".join(f"{roff(file)}(1)" for file in family if file != page.file)
    lines += [".SH SEE ALSO", others]
    return "\n".join(lines) + "\n"


def roff(text: str) -> str:
    """Text for man: hyphens that can be copied, and no line that is taken for a request."""
    plain = text.replace("\\", "\\e").replace("-", "\\-").replace("…", "...")
    return f"\\&{plain}" if plain.startswith((".", "'")) else plain


def main() -> None:
    """Write all files, and remove pages of commands that are gone."""
    written = files()
    for page in (ROOT / "docs" / "man").glob("*.1"):
        if page not in written:
            page.unlink()
    for path, text in written.items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)


if __name__ == "__main__":
    main()
