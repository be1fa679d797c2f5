"""Writes what is generated from the code: docs/reference.md, docs/commands.md, docs/man/.

Run by `make reference`. Python's part comes from signatures and docstrings of public names, that of
the commands from their help texts. `tests/test_reference.py` says when a file is out of date.
"""

import functools
import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import attrs
import click

from ncc_compiler.cli import commands as nccc
from ncc_compiler.diagnostics import Diagnostic
from ncc_runtime.cli import cli as nccrt
from ncc_runtime.errors import NccError, Notice
from ncc_runtime.report.collectives import CollectiveRow
from ncc_runtime.report.explain import Explanation
from ncc_runtime.report.listing import Listing
from ncc_runtime.report.rates import PerStep, Rates
from ncc_runtime.report.run import Verification
from ncc_runtime.report.topology.text import KnownTopologies, ListedTopology
from ncc_runtime.runtime import Neff as CompiledProgram

ROOT = Path(__file__).parents[1]
PACKAGES = ("ncc_compiler", "ncc_runtime")

RETURNED = (
    CollectiveRow,
    Explanation,
    Listing,
    Rates,
    PerStep,
    Verification,
    KnownTopologies,
    ListedTopology,
    Notice,
    Diagnostic,
)
"""Classes that users are given, and never make themselves."""

MADE_BY_OTHERS = ("Model", "Run", "Topology", "Neff", "CompileError", "NccError")
"""Public classes whose constructors are not for users."""


def files() -> dict[Path, str]:
    """Every generated file and its text."""
    pages = [*command_pages("nccc", nccc), *command_pages("nccrt", nccrt)]
    manual = {ROOT / "docs" / "man" / f"{page.file}.1": man_page(page, pages) for page in pages}
    return {
        ROOT / "docs" / "reference.md": python_reference(),
        ROOT / "docs" / "commands.md": command_reference(pages),
        **manual,
    }


# Python


def python_reference() -> str:
    """The public names of both packages, in Markdown."""
    lines = [
        "# Python reference",
        "",
        "Made from the docstrings by `make reference`. The tutorial is [here](tutorial.md).",
    ]
    for name in PACKAGES:
        package = importlib.import_module(name)
        lines += ["", f"## {name}", "", *markdown(inspect.getdoc(package) or "")]
        for public in package.__all__:
            value = getattr(package, public)
            if public == "__version__":
                lines += ["", f"### {name}.{public}", "", "The version of the distribution, a str."]
            elif inspect.isclass(value):
                lines += class_lines(f"{name}.{public}", value)
            else:
                lines += function_lines("###", f"{name}.{public}", value)
    lines += ["", "## What these return"]
    for returned in RETURNED:
        lines += class_lines(f"{returned.__module__}.{returned.__name__}", returned)
    lines += [
        "",
        "## Errors",
        "",
        "Subclasses of `ncc_runtime.NccError`, of `ncc_runtime.errors`:",
        "",
    ]
    for kind in NccError.__subclasses__():
        lines.append(f"- `{kind.__name__}`: {' '.join((inspect.getdoc(kind) or '').split())}")
    return "\n".join(lines) + "\n"


def class_lines(name: str, described: type) -> Iterator[str]:
    """A class, its properties, its methods."""
    lines = markdown(inspect.getdoc(described) or "")
    text = "\n".join(lines)
    yield from ("", f"### {name}", "")
    fields = (
        [each for each in attrs.fields(described) if each.name[0] != "_"]
        if attrs.has(described)
        else []
    )
    if fields and described not in RETURNED and described.__name__ not in MADE_BY_OTHERS:
        yield from (*signature_lines(described.__name__, described), "")
    own = {key: value for key, value in vars(described).items() if not key.startswith("_")}
    properties = {
        key: " ".join((inspect.getdoc(value) or "").split())
        for key, value in own.items()
        if isinstance(value, property | functools.cached_property)
    }
    if fields and "\n- `" not in text:  # a class whose fields say what they are
        properties = {**{field.name: annotation(field.type) for field in fields}, **properties}
    bullets = [
        f"- `{key}`: {said}" for key, said in properties.items() if said and f"`{key}`" not in text
    ]
    yield from lines
    if bullets:
        is_list = lines[-1].startswith(("- ", "  "))
        yield from bullets if is_list else ("", *bullets)
    for key, value in own.items():
        function = value.__func__ if isinstance(value, classmethod | staticmethod) else value
        if inspect.isfunction(function) and inspect.getdoc(function):
            bound = getattr(described, key) if isinstance(value, classmethod) else function
            yield from function_lines("####", f"{described.__name__}.{key}", bound)


def function_lines(level: str, name: str, function: object) -> Iterator[str]:
    """A function: its signature, then what it does."""
    assert callable(function)
    yield from ("", f"{level} {name}", "", *signature_lines(name.rpartition(".")[2], function), "")
    yield from markdown(inspect.getdoc(function) or "")


def made(function: object, key: str) -> str:
    """The default of a field of a class that is made anew for each object."""
    default = attrs.fields_dict(function)[key].default
    name = default.factory.__name__
    return "{}" if name == "dict" else f"{name}()"


def signature_lines(name: str, function: object) -> list[str]:
    """A code block; a parameter a line where it is long."""
    assert callable(function)
    signature = inspect.signature(function)
    words, has_star = [], False
    for key, parameter in signature.parameters.items():
        if key == "self":
            continue
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY and not has_star:
            words.append("*")
            has_star = True
        is_rest = parameter.kind is inspect.Parameter.VAR_POSITIONAL
        has_star |= is_rest
        stars = "*" if is_rest else "**" * (parameter.kind is inspect.Parameter.VAR_KEYWORD)
        word = f"{stars}{key}: {annotation(parameter.annotation)}"
        if parameter.default is not inspect.Parameter.empty:
            is_made = repr(parameter.default) == "NOTHING"
            word += f" = {made(function, key)}" if is_made else f" = {parameter.default!r}"
        words.append(word)
    result = "" if inspect.isclass(function) else f" -> {annotation(signature.return_annotation)}"
    short = f"{name}({', '.join(words)}){result}"
    if len(short) > 96:
        short = "\n".join([f"{name}(", *(f"    {word}," for word in words), f"){result}"])
    return ["```python", *short.split("\n"), "```"]


def annotation(type_: object) -> str:
    """A type without the modules of its names."""
    text = type_ if isinstance(type_, str) else inspect.formatannotation(type_)
    whole = inspect.formatannotation(CompiledProgram)
    return re.sub(r"\b(?:\w+\.)+(?=[A-Za-z_])", "", text.replace(whole, "Neff"))


def markdown(text: str) -> list[str]:
    """A docstring: what is indented, and examples, become code."""
    lines: list[str] = []
    in_code = False
    for paragraph in text.split("\n\n"):
        first = paragraph.split("\n", 1)[0]
        is_code = first.startswith(("    ", ">>> "))
        if is_code and not in_code:
            lines += ["```python"] if first.startswith(" ") else ["```pycon"]
        elif in_code and not is_code:
            lines[-1:] = ["```", ""]
        lines += [*inspect.cleandoc(paragraph).split("\n"), ""]
        in_code = is_code
    return [*lines[:-1], "```"] if in_code else lines[:-1]


# Commands


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
