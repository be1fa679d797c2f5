"""The site of the documents opens from disk: its links are right, nothing of it is elsewhere,
and its search works.
"""

import html.parser
import re
import shutil
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from tests.documents import ROOT

pytestmark = pytest.mark.site

SITE = ROOT / "build" / "docs" / "html"
QUIET = [  # without these it looks for hosts on its own
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-sync",
    "--disable-background-networking",
    "--disable-component-update",
    "--no-first-run",
    "--enable-logging=stderr",
]
LOADED = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "src"}
"""Tags of what a browser loads on its own, and where they say from where."""


class Page(html.parser.HTMLParser):
    """What a page loads, where its links lead, and the places on it that links may name."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.loaded: set[str] = set()
        self.links: set[str] = set()
        self.places: set[str] = set()
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value for name, value in attrs if value}
        if LOADED.get(tag) in values:
            self.loaded.add(values[LOADED[tag]])
        if tag == "a" and "href" in values:
            self.links.add(values["href"])
        if "id" in values:
            self.places.add(values["id"])


@cache
def pages() -> dict[Path, Page]:
    found = {path: Page(path) for path in SITE.rglob("*.html")}
    assert len(found) > 30, "run `make docs`"
    return found


def loaded() -> Iterator[tuple[Path, str]]:
    """Each file of the site with each address from which it loads something."""
    for path, page in pages().items():
        yield from ((path, address) for address in page.loaded)
    for style in SITE.rglob("*.css"):
        for address in re.findall(r"(?:url\(|@import )[\"']?([^\"')\s]+)", style.read_text()):
            if not address.startswith(("data:", "#")):
                yield style, address


def test_everything_that_is_loaded_lies_beside_the_pages() -> None:
    paths = {(page, re.split(r"[?#]", address)[0]) for page, address in loaded()}
    assert [(page, path) for page, path in paths if not (page.parent / path).exists()] == []


def test_every_picture_of_the_documents_is_on_a_page() -> None:
    shown = {Path(address).name for page in pages().values() for address in page.loaded}
    pictures = {path.name for path in (ROOT / "docs" / "images").iterdir()}
    assert pictures - shown == set()


def test_links_inside_the_site_lead_to_a_place_on_a_page() -> None:
    dead, inner = [], 0
    for path, page in pages().items():
        for link in page.links:
            address = urlsplit(link)
            if address.scheme or address.netloc:
                continue
            inner += 1
            target = (path.parent / unquote(address.path)).resolve() if address.path else path
            place = unquote(address.fragment)
            known = pages()[target].places if place and target in pages() else {place}
            if not target.is_file() or place not in known:
                dead.append((str(path.relative_to(SITE)), link))
    assert inner > 1000
    assert dead == []


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
