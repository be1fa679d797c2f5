"""The site of these pages, which `make docs` builds: furo, Markdown by MyST, Python by autodoc.

What is shown needs no network: fonts are the reader's own, scripts and the index of the search lie
beside the pages.

To add a page, write its file and name it in a toctree of index.md; the build and tests/test_docs.py
tell of one that is in none.
"""

import re

from pygments.lexers.special import TextLexer
from sphinx.application import Sphinx

from ncc_runtime import __version__

project = "neuron-ncc"
author = "the authors of neuron-ncc"
copyright = f"{author}, Apache-2.0"  # noqa: A001 - Sphinx calls it so
version = release = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx_copybutton"]
myst_heading_anchors = 6  # those that code hosts make, so that a link is right here and there

html_theme = "furo"
html_title = "neuron-ncc"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sourcelink = False
html_show_search_summary = False  # a script would fetch it, which browsers refuse to files
copybutton_prompt_text = "$ "  # commands are copied without it, and without their output
copybutton_exclude = ".linenos, .gp"

# Docstrings have code in single backticks.
default_role = "code"
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
maximum_signature_line_length = 88
smartquotes = False
toc_object_entries_show_parents = "hide"

MADE_BY_USERS = ("ncc_compiler.CompileOptions", "ncc_runtime.RunOptions")
"""Classes whose constructors are shown: what is given to users has none for them."""

NOT_PUBLIC = (
    r"ncc_compiler\.ir\..*",
    r"ncc_runtime\.(lowering|machine_model|neff|topology)\..*",
    r"ncc_runtime\.runtime\.Compiled|Mark|Watch",
)
OF_OTHERS = r"(collections|networkx|numpy|os|pathlib|typing)\..*"
nitpick_ignore_regex = [("py:.*", name) for name in (*NOT_PUBLIC, OF_OTHERS)]


def with_file_names(_app: Sphinx, _page: str, source: list[str]) -> None:
    """A block opened by ```LANGUAGE file=NAME is a file, and has its name above it."""
    block = r"```{code-block} \1\n:caption: \2\n"
    source[0] = re.sub(r"(?m)^```(\w+) file=(\S+)$", block, source[0])


def signature(
    _app: Sphinx,
    what: str,
    name: str,
    _object: object,
    _options: object,
    arguments: str | None,
    result: str | None,
) -> tuple[str, str | None] | None:
    if not arguments:
        return None
    if what in {"class", "exception"} and name not in MADE_BY_USERS:
        return "", None
    return arguments.replace("NOTHING", "{}"), result  # attrs' word for a default that is made


def setup(app: Sphinx) -> None:
    app.connect("autodoc-process-signature", signature)
    app.add_lexer("hlo", TextLexer)  # Pygments does not know it
    app.connect("source-read", with_file_names)
