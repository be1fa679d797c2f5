"""The site of the documents opens from disk: nothing of it is elsewhere, and its search works."""

import html.parser
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.documents import ROOT

pytestmark = pytest.mark.site

SITE = ROOT / "build" / "docs" / "html"
QUIET = (  # without these it looks for hosts on its own
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-sync "
    "--disable-background-networking --disable-component-update --enable-logging=stderr"
).split()
LOADED = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "src"}
"""Tags of what a browser loads on its own, and where they say from where."""


class Loaded(html.parser.HTMLParser):
    """Addresses of what a page loads."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        address = dict(attrs).get(LOADED.get(tag, ""))
        if address:
            self.addresses.append(address)


def loaded() -> Iterator[tuple[Path, str]]:
    """Each file of the site with each address from which it loads something."""
    for page in SITE.rglob("*.html"):
        parser = Loaded()
        parser.feed(page.read_text())
        yield from ((page, address) for address in parser.addresses)
    for style in SITE.rglob("*.css"):
        for address in re.findall(r"(?:url\(|@import )[\"']?([^\"')\s]+)", style.read_text()):
            if not address.startswith(("data:", "#")):
                yield style, address


def test_everything_that_is_loaded_lies_beside_the_pages() -> None:
    found = list(loaded())
    assert len({page for page, _ in found}) > 30, "run `make docs`"
    paths = {(page, re.split(r"[?#]", address)[0]) for page, address in found}
    assert [(page, path) for page, path in paths if not (page.parent / path).exists()] == []


def opened(page: str, folder: Path) -> tuple[str, list[str]]:
    """What a browser makes of a page from disk, its scripts run; what these complain of."""
    chromium = shutil.which("chromium")
    assert chromium, "run `make test-site`, which installs it"
    done = subprocess.run(
        [
            chromium,
            *QUIET,
            f"--user-data-dir={folder}",
            "--virtual-time-budget=10000",
            "--dump-dom",
            f"file://{SITE}/{page}",
        ],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    complaints = [line for line in done.stderr.splitlines() if ":CONSOLE" in line]
    return done.stdout, complaints


@pytest.mark.parametrize(
    ("words", "page"),
    [
        ("straggler", "faults.html"),
        ("alpha beta", "tutorials/ring_by_hand.html"),
        ("ncc_runtime.load", "reference.html#ncc_runtime.load"),
        ("semaphore", "isa.html"),
    ],
)
def test_the_search_finds_what_is_on_the_pages(words: str, page: str, tmp_path: Path) -> None:
    text, complaints = opened(f"search.html?q={words.replace(' ', '+')}", tmp_path)
    results = re.findall(r'<a href="([^"]+)"', text.partition('id="search-results"')[2])
    assert page in {result.split("?")[0] for result in results}
    assert complaints == []


@pytest.mark.parametrize("page", ["index.html", "reference.html", "tutorials/plan_a_job.html"])
def test_a_page_opens_without_complaint(page: str, tmp_path: Path) -> None:
    text, complaints = opened(page, tmp_path)
    assert 'class="sidebar-tree"' in text
    assert complaints == []
