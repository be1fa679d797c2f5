"""Makes docs/images/report.png: the first screen of a report, and its timeline, in Chromium.

Run: python -m tools.report_picture      (make test-browser installs what it needs)
"""

import tempfile
from pathlib import Path

import ncc_compiler
import ncc_runtime
from tests.browser.driving import Opened, driven

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "docs" / "images"
MODEL = ROOT / "tests" / "data" / "hlo" / "llama_4l_64ranks.hlo"


def main() -> None:
    """Write the picture."""
    with tempfile.TemporaryDirectory() as folder, driven() as browser:
        path = Path(folder) / "report.html"
        ncc_runtime.load(ncc_compiler.compile_file(str(MODEL)), "trn2").report(path)
        page = Opened(browser, path, viewport={"width": 1280, "height": 800}).page
        page.screenshot(path=IMAGES / "report.png")
        page.locator("#timeline-scroll").screenshot(path=IMAGES / "report-timeline.png")


if __name__ == "__main__":
    main()
