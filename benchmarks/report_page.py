"""How large the page of `nccrt report` is, how long it takes to write, open, zoom and hover.

Each program is placed on trn2 and timed; writing is seconds of a processor, without the run that
the page is about. Opening is from the request for the file until all is drawn, in Chromium without
a GPU; zoom and hover are from the input until the frame after it: medians and the slowest. `all`
shows every track of every rank instead of those that a page begins with.

Run: python -m benchmarks.report_page [--repeats 5]     (make test-browser installs what it needs)
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import ncc_compiler
import ncc_runtime
import ncc_runtime.runtime
from ncc_compiler.options import CompileOptions
from tests.browser.driving import Opened, driven, hover_ms, show_everything, zoom_ms

DATA = Path(__file__).parents[1] / "tests" / "data" / "hlo"

SUM = """
add { a = f32[] parameter(0) b = f32[] parameter(1) ROOT c = f32[] add(a, b) }
ENTRY step {
  x = f32[1048576] parameter(0)
  y = f32[1048576] all-reduce(x), replica_groups={}, to_apply=add
  ROOT z = f32[1048576] multiply(y, y)
}
"""


def programs() -> dict[str, ncc_runtime.runtime.Compiled]:
    """By name: small, a whole model, and many ranks."""
    found = {
        name: ncc_compiler.compile_file(str(DATA / f"{name}.hlo"))
        for name in ("mlp_train_dp2_tp4", "llama_4l_64ranks")
    }
    found["all-reduce, 1024 ranks"] = ncc_compiler.compile_text(SUM, CompileOptions(ranks=1024))
    return found


def main() -> None:
    """Print a line for each program, and a second one with everything shown."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--repeats", type=int, default=5)
    repeats = parser.parse_args().repeats
    print(
        f"{'':<32}{'events':>9}{'MB':>7}{'written s':>11}{'open s':>8}"
        f"{'zoom ms':>12}{'hover ms':>12}"
    )
    with tempfile.TemporaryDirectory() as folder, driven() as browser:
        for name, neff in programs().items():
            run = ncc_runtime.load(neff, "trn2").run(values=False, verify=False)
            assert run.trace is not None
            path = Path(folder) / "page.html"
            run.write_report(path)  # once before, for what is imported and compiled
            started = time.process_time()
            run.write_report(path)
            written_s = time.process_time() - started
            opened = []
            for _ in range(repeats):
                page = Opened(browser, path)
                assert page.said == []
                opened.append(page.seconds)
                page.page.close()
            begin = f"{len(run.trace):>9}{path.stat().st_size / 1e6:>7.1f}{written_s:>11.2f}"
            begin += f"{statistics.median(opened):>8.2f}"
            for shown in ("", "all"):
                page = Opened(browser, path)
                if shown:
                    show_everything(page.page)
                zoom, hover = zoom_ms(page.page), hover_ms(page.page)
                page.page.close()
                times = "".join(
                    f"{statistics.median(each):>6.0f}, {max(each):>4.0f}" for each in (zoom, hover)
                )
                print(f"{f'{name} {shown}':<32}{begin if not shown else '':<35}{times}", flush=True)


if __name__ == "__main__":
    main()
