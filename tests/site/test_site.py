"""The site of the documents opens from disk: its links are right, nothing of it is elsewhere,
and its search works.
"""

import html.parser
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote_plus, unquote, urlsplit

import pytest

from tests.browser.driving import driven
from tests.documents import ROOT

pytestmark = pytest.mark.site

SITE = ROOT / "build" / "docs" / "html"
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


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with driven() as started:
        yield started


def opened(browser: Any, address: str) -> tuple[Any, list[str]]:
    """A page that is loaded from disk; what its scripts complain of, and what is not from disk."""
    page, complaints = browser.new_page(), []

    def ask(request: Any) -> None:
        if not request.url.startswith(("file:", "data:")):
            complaints.append(request.url)

    page.on("request", ask)
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto(f"{SITE.as_uri()}/{address}")
    return page, complaints


@pytest.mark.parametrize(
    ("words", "place"),
    [
        ("straggler", "faults.html"),
        ("alpha beta", "tutorials/ring_by_hand.html"),
        ("ncc_runtime.load", "reference.html#ncc_runtime.load"),
        ("semaphore", "isa.html"),
    ],
)
def test_the_search_finds_what_is_on_the_pages(words: str, place: str, browser: Any) -> None:
    page, complaints = opened(browser, f"search.html?q={quote_plus(words)}")
    page.get_by_text("Search finished").wait_for()
    found = page.locator("#search-results li a").evaluate_all("all => all.map(one => one.href)")
    places = {re.sub(r"\?[^#]*", "", one).removeprefix(f"{SITE.as_uri()}/") for one in found}
    assert place in places
    assert complaints == []


@pytest.mark.parametrize("name", ["index", "reference", "tutorials/plan_a_job"])
def test_a_page_opens_without_complaint(name: str, browser: Any) -> None:
    page, complaints = opened(browser, f"{name}.html")
    assert page.locator(".sidebar-tree").is_visible()
    pictures = page.locator("article img").evaluate_all("all => all.map(one => one.naturalWidth)")
    assert all(pictures)
    assert complaints == []
