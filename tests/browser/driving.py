"""Drives the page of `nccrt report` in Debian's Chromium, and times what answers an input.

For tests/browser and benchmarks/report_page.py, and `driven` for tests/site; `make test-browser`
installs what it needs.
"""

import contextlib
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)

Page = Any
"""Playwright's, which has no types here."""


@contextlib.contextmanager
def driven() -> Iterator[Any]:
    """The browser, which is closed at the end."""
    from playwright.sync_api import sync_playwright

    binary = shutil.which("chromium")
    assert binary is not None, "make test-browser installs chromium"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=binary, args=list(FLAGS))
        yield browser
        browser.close()


class Opened:
    """A page that is drawn; what its console said, and what it asked for."""

    def __init__(self, browser: Any, path: Path, **settings: Any) -> None:
        settings = {"viewport": {"width": 1400, "height": 900}, **settings}
        self.page = browser.new_page(**settings)
        self.said: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        started = time.perf_counter()
        self.page.goto(path.as_uri())
        self.page.wait_for_function("document.documentElement.dataset.ready === 'yes'")
        self.seconds = time.perf_counter() - started


ANSWERED = """kind => new Promise(done => {
  addEventListener(kind, () => {
    const began = performance.now();
    requestAnimationFrame(() => {
      const after = new MessageChannel(); // behind the frame that was drawn
      after.port1.onmessage = () => done(performance.now() - began);
      after.port2.postMessage(0);
    });
  }, { capture: true, once: true });
})"""


def answer_ms(page: Page, kind: str, act: Callable[[], None]) -> float:
    """From an input until the frame after it is drawn."""
    page.evaluate(f"kind => {{ window.answered = ({ANSWERED})(kind); }}", kind)
    act()
    return float(page.evaluate("() => window.answered"))


def show_everything(page: Page) -> None:
    """All tracks of all ranks, decoded."""
    page.fill("#timeline-ranks", "all")
    page.keyboard.press("Tab")
    for kind in ("cc", "dma", "link"):
        page.check(f"#timeline-controls input[value={kind}]")
    page.wait_for_timeout(4000)


def _tracks(page: Page) -> tuple[float, float]:
    """A place on the first tracks."""
    canvas = page.locator("#timeline-canvas")
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    return box["x"] + box["width"] / 2, box["y"] + 90


def zoom_ms(page: Page) -> list[float]:
    """Of turns of the wheel, in and out again."""
    page.mouse.move(*_tracks(page))
    page.keyboard.down("Control")
    found = [
        answer_ms(page, "wheel", lambda turn=turn: page.mouse.wheel(0, turn))  # type: ignore[misc]
        for turn in [-120] * 14 + [120] * 14
    ]
    page.keyboard.up("Control")
    return found


def hover_ms(page: Page) -> list[float]:
    """Of places that the pointer comes to."""
    x, y = _tracks(page)
    return [
        answer_ms(
            page,
            "mousemove",
            lambda at=at: page.mouse.move(x - 300 + 20 * at, y + 3 * (at % 7)),  # type: ignore[misc]
        )
        for at in range(28)
    ]
