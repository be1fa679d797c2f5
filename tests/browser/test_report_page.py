"""The page of `nccrt report` in a real browser: Debian's Chromium, driven by Playwright.

Times are medians: of opening the file until all is drawn, and from an input until the frame that
answers it is drawn. `make test-browser` installs what this needs.
"""

import functools
import itertools
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import ncc_compiler
import ncc_runtime
from ncc_compiler.options import CompileOptions
from ncc_runtime.report.page import drawing_library
from tests.browser.driving import Opened, Page, driven, hover_ms, show_everything, zoom_ms

pytestmark = pytest.mark.browser

ROOT = Path(__file__).parents[2]
DATA = ROOT / "tests" / "data" / "hlo"

OPEN_S = 3.0
ANSWER_MS = 100.0

AXE = (
    "axe-core",
    "4.14.1",
    "sha512-FHfa+lmNjQZfJz1q8wKqIDwC6DExcHt/pkjNQb09a3NPjCKg"
    "2rhu5qb2S4r76ASyFNNtuFooJpZe37OgudVGtQ==",
)


FILE = "</script><script>alert(1)</script>'<b>/home/somebody/of/the/year/training/modèle ☃.py"
EVIL = """
add { a = f32[] parameter(0) b = f32[] parameter(1) ROOT c = f32[] add(a, b) }
ENTRY step {
  x = f32[64] parameter(0)
  y = f32[64] all-reduce(x), replica_groups={}, to_apply=add,
    metadata={source_file="FILE" source_line=7}
  ROOT z = f32[64] multiply(y, y)
}
""".replace("FILE", FILE)

BRANCH = """
add { a = f32[] parameter(0) b = f32[] parameter(1) ROOT c = f32[] add(a, b) }
yes { x = f32[64] parameter(0) ROOT y = f32[64] all-reduce(x), replica_groups={}, to_apply=add }
no { x = f32[64] parameter(0) ROOT y = f32[64] add(x, x) }
ENTRY step {
  p = pred[] parameter(0)
  x = f32[64] parameter(1)
  y = f32[64] all-reduce(x), replica_groups={{0,1},{2,3}}, to_apply=add
  choice = f32[64] conditional(p, y, y), true_computation=yes, false_computation=no
  z = f32[64] all-gather(choice), replica_groups={{0},{1},{2},{3}}, dimensions={0}
  ROOT w = f32[64] all-reduce(z), replica_groups={}, to_apply=add
}
"""

EXPERTS = """
add { a = f32[] parameter(0) b = f32[] parameter(1) ROOT c = f32[] add(a, b) }
ENTRY step {
  x = f32[16,8] parameter(0)
  n = s32[4] parameter(1)
  y = f32[16,8] ragged-all-to-all(x, x, n, n, n, n), replica_groups={}
  ROOT z = f32[4,8] reduce-scatter(y), replica_groups={{0,1,2,3}}, dimensions={0}, to_apply=add
}
"""


@functools.cache
def model(name: str, topology: str = "trn2", **place: Any) -> ncc_runtime.Model:
    return ncc_runtime.load(ncc_compiler.compile_file(str(DATA / f"{name}.hlo")), topology, **place)


@pytest.fixture(scope="session")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The files, by what they show."""
    where = tmp_path_factory.mktemp("pages")
    large, small = model("llama_4l_64ranks"), model("mlp_train_dp2_tp4")
    large.report(where / "large.html", verify=False)
    small.report(where / "small.html")
    small.report(where / "both.html", against=model("mlp_train_dp2_tp4", "trn1"))
    small.report(where / "fault.html", faults="at 20us: link c0-c1 down for 50us")
    lost = "completion 0 of cc0.dma0 on rank 1 lost"
    small.report(where / "stall.html", faults=lost)
    nodes = model("moe_all_to_all", nodes=2)
    nodes.report(where / "nodes.html")
    model("fsdp_scan_layers").report(where / "loop.html")
    one = ncc_compiler.compile_text("ENTRY s { x = f32[8] parameter(0) ROOT y = f32[8] add(x, x) }")
    ncc_runtime.load(one, "trn2").report(where / "one.html")
    evil = ncc_compiler.compile_text(EVIL, CompileOptions(ranks=4))
    ncc_runtime.load(evil, "trn2").report(where / "evil.html", verify=False)
    experts = ncc_compiler.compile_text(EXPERTS, CompileOptions(ranks=4))
    ncc_runtime.load(experts, "trn2").report(where / "experts.html", verify=False)
    branch = ncc_compiler.compile_text(BRANCH, CompileOptions(ranks=4))
    skipped = ncc_runtime.load(branch, "trn2").run(values=False, trip_counts={"choice": 1})
    skipped.write_report(where / "branch.html")
    return {path.stem: path for path in where.glob("*.html")}


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    with driven() as started:
        yield started


@pytest.fixture
def opened(browser: Any, pages: dict[str, Path]) -> Iterator[Callable[..., Page]]:
    """Opens a page by name; in the end none has said anything or asked for another file."""
    every: list[Opened] = []

    def open_page(name: str, **settings: Any) -> Page:
        every.append(Opened(browser, pages[name], **settings))
        return every[-1].page

    yield open_page
    for one in every:
        one.page.close()
        assert one.said == []
        assert all(url.startswith(("file:", "data:", "blob:")) for url in one.requests)


def test_the_report_of_a_large_model_opens_quickly(browser: Any, pages: dict[str, Path]) -> None:
    seconds = []
    for _ in range(5):
        opened = Opened(browser, pages["large"])
        seconds.append(opened.seconds)
        assert opened.said == []
        opened.page.close()
    print(f"opened in {sorted(seconds)} s")
    assert statistics.median(seconds) <= OPEN_S


@pytest.mark.parametrize("shown", ["first", "all"])
def test_zoom_and_hover_answer_at_once(opened: Callable[..., Page], shown: str) -> None:
    page = opened("large")
    if shown == "all":
        show_everything(page)  # 800,000 events
    zoom, hover = zoom_ms(page), hover_ms(page)
    print(f"{shown}: zoom {statistics.median(zoom):.0f} ms, at most {max(zoom):.0f}; ", end="")
    print(f"hover {statistics.median(hover):.0f} ms, at most {max(hover):.0f}")
    assert statistics.median(zoom) <= ANSWER_MS
    assert statistics.median(hover) <= ANSWER_MS


def said(page: Page) -> str:
    return str(page.locator("#timeline-said").inner_text())


def press(page: Page, key: str, other_than: str = "") -> str:
    """Press a key of the timeline; what it says then, once that has changed."""
    page.keyboard.press(key)
    text = "document.getElementById('timeline-said').innerText"
    page.wait_for_function(f"old => {text} !== old", arg=other_than)
    return said(page)


def test_the_timeline_is_walked_by_keyboard(opened: Callable[..., Page]) -> None:
    page = opened("small")
    page.locator("#timeline-canvas").focus()
    first = press(page, "ArrowRight")
    assert first.startswith("launch\ncritical path")
    second = press(page, "ArrowRight", first)
    assert "models.py:" in second
    track = press(page, "ArrowDown", second)
    assert "collectives of rank" in track
    engine = press(page, "ArrowDown", track)
    assert "Tensor of rank 0: from " in engine
    last = press(page, "End", engine)
    assert "why not earlier: " in last
    cause = press(page, "c", last)
    assert cause.splitlines()[0] in last  # its cause is where it says


def test_a_hover_names_instruction_line_and_cause(opened: Callable[..., Page]) -> None:
    page = opened("small")
    canvas = page.locator("#timeline-canvas")
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    tip = page.locator("#timeline-tip")
    found = ""
    for x in range(200, int(box["width"]) - 20, 12):
        page.mouse.move(box["x"] + x, box["y"] + 66)  # the Tensor engine of the first rank
        page.wait_for_timeout(15)
        if tip.is_visible() and "why not earlier" in tip.inner_text():
            found = tip.inner_text()
            break
    assert "Tensor of rank 0" in found
    assert "models.py:" in found
    assert " us, for " in found


def test_a_click_chooses_an_event_and_lists_its_track(opened: Callable[..., Page]) -> None:
    page = opened("small")
    canvas = page.locator("#timeline-canvas")
    canvas.scroll_into_view_if_needed()
    page.locator("#timeline details summary").first.click()
    box = canvas.bounding_box()
    page.mouse.click(box["x"] + box["width"] / 2, box["y"] + 14)
    page.wait_for_function("document.getElementById('timeline-said').innerText !== ''")
    assert "critical path: from" in said(page)
    assert page.locator("#timeline-mark").is_visible()
    rows = page.locator("#track-table tbody tr")
    assert rows.count() > 3
    assert "critical path" in page.locator("#track-table caption").inner_text()


def test_tables_sort_by_mouse_and_keyboard(opened: Callable[..., Page]) -> None:
    page = opened("large")
    table = page.locator("#table-collectives-a")
    heading = table.locator("th", has_text="exposed us")

    def exposed() -> list[float]:
        cells = table.locator("tbody:not([hidden]) tr td:nth-child(10)").all_inner_texts()
        return [float(cell.replace(",", "")) for cell in cells]

    assert heading.get_attribute("aria-sort") == "none"
    heading.locator("button").click()
    assert heading.get_attribute("aria-sort") == "descending"
    assert exposed() == sorted(exposed(), reverse=True)
    heading.locator("button").focus()
    page.keyboard.press("Enter")
    assert heading.get_attribute("aria-sort") == "ascending"
    assert exposed() == sorted(exposed())
    page.check("[data-each]")
    assert len(exposed()) == 207
    assert exposed() == sorted(exposed())
    page.fill("[data-find]", "all-to-all large.py:17")
    assert "27 of 207 rows" in page.locator("#table-collectives-a-count").inner_text()


def test_collectives_that_did_not_run_are_sorted_below_the_others(
    opened: Callable[..., Page],
) -> None:
    page = opened("branch")
    page.check("[data-each]")
    table = page.locator("#table-collectives-a")
    for ascending in (False, True):
        table.locator("th button", has_text="start us").click()
        cells = table.locator("tbody:not([hidden]) tr td:nth-child(8)").all_inner_texts()
        assert cells.count("-") == 1
        starts = [float("-inf") if cell == "-" else float(cell) for cell in cells]
        assert starts == sorted(starts, reverse=not ascending)


def test_ranks_that_end_before_they_begin_are_marked_as_wrong(opened: Callable[..., Page]) -> None:
    page = opened("small")
    for words, invalid in (("3-1", "true"), ("1-3", "false"), ("8", "true"), ("", "true")):
        page.fill("#timeline-ranks", words)
        page.keyboard.press("Tab")
        assert page.get_attribute("#timeline-ranks", "aria-invalid") == invalid, words


def test_a_collective_is_shown_on_the_timeline(opened: Callable[..., Page]) -> None:
    page = opened("large")
    page.locator('button[data-show="57"]').first.click()
    page.wait_for_function("document.getElementById('timeline-said').innerText !== ''")
    assert said(page).startswith("p57 all-reduce.37\ncollectives of rank")
    assert page.evaluate("document.activeElement.id") == "timeline-canvas"


def test_each_kind_of_collective_has_a_colour_of_its_own(opened: Callable[..., Page]) -> None:
    page = opened("experts")
    assert "ragged-all-to-all" in page.locator("#timeline-legend").inner_text()
    colours = page.evaluate(
        "() => [...document.querySelectorAll('#timeline-legend .key')]"
        ".map(each => each.style.background)"
    )
    assert len(colours) == len(set(colours)) == 4


def test_groups_can_be_chosen_as_colours(opened: Callable[..., Page]) -> None:
    page = opened("large")
    slot = page.locator('#machine-a rect[data-rank="9"]')
    assert "group1" in (slot.get_attribute("class") or "").split()  # of ranks 1, 9, 17 …
    page.select_option('[data-groups="a"]', "1")
    assert "group1" in (slot.get_attribute("class") or "").split()  # of ranks 8 to 15
    other = page.locator('#machine-a rect[data-rank="7"]')
    assert "group0" in (other.get_attribute("class") or "").split()
    assert "8-15" in page.locator("#groups-a").inner_text()
    legend = page.locator("#machine-a g.groups")
    assert not legend.is_visible()  # it is of the groups that were shown first
    keys = page.locator("#groups-a .key")
    fills = [
        f"getComputedStyle(document.querySelector({path!r}))"
        for path in ('#machine-a rect[data-rank="9"]', "#groups-a span:nth-of-type(2) .key")
    ]
    assert keys.count() == 8
    assert page.evaluate(f"{fills[0]}.fill") == page.evaluate(f"{fills[1]}.backgroundColor")
    page.select_option('[data-groups="a"]', "0")
    assert legend.is_visible()
    assert page.locator("#groups-a").inner_text() == ""
    page.select_option('[data-groups="a"]', "1")
    page.locator('#machine-a rect[data-rank="9"]').hover()
    picked = page.locator("#machine-a rect[data-picked]")
    assert picked.count() == 8


@functools.cache
def axe() -> str:
    """The rules of accessibility, from the npm registry."""
    import io
    import tarfile

    name, version, integrity = AXE
    with tarfile.open(
        fileobj=io.BytesIO(drawing_library.tarball(name, version, integrity))
    ) as archive:
        stream = archive.extractfile("package/axe.min.js")
        assert stream is not None
        return stream.read().decode()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", ["small", "both", "fault"])
def test_nothing_breaks_the_rules_of_accessibility(
    opened: Callable[..., Page], name: str, scheme: str
) -> None:
    page = opened(name, color_scheme=scheme)
    page.evaluate("() => document.querySelectorAll('details').forEach(each => each.open = true)")
    page.evaluate(axe())
    found = page.evaluate("async () => (await axe.run()).violations")
    broken = {rule["id"]: [node["html"][:160] for node in rule["nodes"][:3]] for rule in found}
    assert broken == {}


def test_headings_landmarks_and_the_first_stop_help_to_get_around(
    opened: Callable[..., Page],
) -> None:
    page = opened("small")
    levels = page.evaluate(
        "() => [...document.querySelectorAll('h1,h2,h3')].map(each => Number(each.tagName[1]))"
    )
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after - before <= 1 for before, after in itertools.pairwise(levels))
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the report"
    page.keyboard.press("Enter")
    assert page.url.endswith("#main")
    for name in ("summary", "timeline", "collectives", "overlap", "machine", "memory", "proofs"):
        label = page.locator(f"#{name}").get_attribute("aria-labelledby")
        assert page.locator(f"#{label}").inner_text()


def test_the_theme_follows_the_system_and_the_choice(opened: Callable[..., Page]) -> None:
    page = opened("small", color_scheme="dark")

    def background() -> str:
        return str(page.evaluate("getComputedStyle(document.body).backgroundColor"))

    assert background() == "rgb(18, 22, 28)"
    page.select_option("#theme", "light")
    assert background() == "rgb(255, 255, 255)"
    page.select_option("#theme", "auto")
    page.emulate_media(color_scheme="light")
    assert background() == "rgb(255, 255, 255)"


@pytest.mark.parametrize("width", [360, 768, 1400])
@pytest.mark.parametrize("name", ["large", "both", "stall", "nodes", "fault", "evil"])
def test_nothing_sticks_out_of_a_page_of_any_width(
    opened: Callable[..., Page], name: str, width: int
) -> None:
    page = opened(name, viewport={"width": width, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("name", ["large", "both", "evil"])
def test_the_first_screen_shows_all_columns_of_its_tables(
    opened: Callable[..., Page], name: str
) -> None:
    page = opened(name, viewport={"width": 1280, "height": 800})
    hidden = page.evaluate(
        "() => [...document.querySelectorAll('#summary .columns .scroll')]"
        ".filter(each => each.scrollWidth > each.clientWidth).length"
    )
    assert hidden == 0


def test_paper_is_light_and_nothing_is_cut_off(opened: Callable[..., Page], tmp_path: Path) -> None:
    page = opened("large", color_scheme="dark")
    page.pdf(path=tmp_path / "report.pdf", format="A4", landscape=True, print_background=True)
    assert (tmp_path / "report.pdf").stat().st_size > 50_000
    assert page.evaluate("document.documentElement.dataset.theme") == "auto"  # as before
    page.emulate_media(media="print")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.evaluate("document.documentElement.dataset.theme") == "light"
    cut = page.evaluate(
        "() => [...document.querySelectorAll('.scroll, #timeline-scroll')]"
        ".filter(each => getComputedStyle(each).overflowY !== 'visible').length"
    )
    assert cut == 0
    assert not page.locator("#timeline-controls").is_visible()


IN_PRINT = """() => matchMedia("print").addEventListener("change", event => {
  if (!event.matches) return;
  const right = document.querySelector("main").getBoundingClientRect().right;
  const far = each => each.getBoundingClientRect().right - right > 1;
  const drawn = [...document.querySelectorAll(".chart svg, #timeline-canvas canvas")];
  window.printed = {
    drawn: drawn.length,
    cut: drawn.filter(far).length,
    texts: [...document.querySelectorAll(".chart svg text")].filter(far).length,
    tables: [...document.querySelectorAll("main table")].filter(far).map(each => each.id),
  };
})"""


@pytest.mark.parametrize("name", ["large", "both", "fault"])
def test_paper_has_whole_charts_and_tables(
    opened: Callable[..., Page], tmp_path: Path, name: str
) -> None:
    page = opened(name, viewport={"width": 1600, "height": 900})
    page.evaluate(IN_PRINT)
    page.pdf(path=tmp_path / "report.pdf", format="A4")  # narrower than the window
    printed = page.evaluate("window.printed")
    assert printed.pop("drawn") >= 4
    assert printed == {"cut": 0, "texts": 0, "tables": []}


@pytest.mark.parametrize("width", [500, 900, 1400])
@pytest.mark.parametrize("name", ["large", "both", "nodes", "loop", "one", "evil"])
def test_labels_of_charts_do_not_overlap(
    opened: Callable[..., Page], name: str, width: int
) -> None:
    page = opened(name, viewport={"width": width, "height": 900})
    overlaps = page.evaluate("""() => [...document.querySelectorAll(".chart svg")].flatMap(svg => {
      const texts = [...svg.querySelectorAll("text")]
        .map(each => [each.textContent, each.getBoundingClientRect()]);
      return texts.flatMap(([word, a], at) => texts.slice(at + 1).filter(([, b]) =>
        a.left < b.right + 3 && b.left < a.right + 3 && a.top < b.bottom - 3 && b.top < a.bottom - 3
      ).map(([other]) => [word, other]));
    })""")
    assert overlaps == []


@pytest.mark.parametrize("name", ["small", "both", "fault", "stall", "loop", "one", "evil"])
def test_every_link_leads_to_a_part_of_the_page(opened: Callable[..., Page], name: str) -> None:
    page = opened(name)
    links = page.locator("a[href]")
    assert links.count() >= 8
    for at in range(links.count()):
        place = links.nth(at).get_attribute("href")
        assert place.startswith("#")
        links.nth(at).focus()
        page.keyboard.press("Enter")
        page.wait_for_url(f"**{place}")
        assert page.locator(place).count() == 1
    names = page.evaluate("() => [...document.querySelectorAll('[id]')].map(each => each.id)")
    assert len(names) == len(set(names))


def test_a_name_is_never_run_and_shown_as_it_is(opened: Callable[..., Page]) -> None:
    page = opened("evil")
    page.on("dialog", lambda dialog: pytest.fail(dialog.message))
    line = f"{FILE}:7"
    assert page.locator("#table-collectives-a td", has_text=line).count() == 2
    page.locator('button[data-show="0"]').first.click()
    page.wait_for_function("document.getElementById('timeline-said').innerText !== ''")
    assert line in said(page)


def test_the_turns_of_a_loop_are_events_of_their_own(opened: Callable[..., Page]) -> None:
    page = opened("loop")
    (runs,) = (
        page.locator("#table-collectives-a tbody:not([hidden]) tr td:nth-child(7)")
        .filter(has_text="4")
        .all_inner_texts()[:1]
    )
    assert runs == "4"
    page.locator('button[data-show="0"]').first.click()
    page.wait_for_function("document.getElementById('timeline-said').innerText !== ''")
    turns = [said(page)]
    for _ in range(6):  # one of the other collective lies between two of them
        turns.append(press(page, "ArrowRight", turns[-1]))
    firsts = [turn.splitlines()[1] for turn in turns if turn.startswith("p0 ")]
    assert len(set(firsts)) == 4  # each from another time


def test_one_rank_without_collectives_has_a_timeline(opened: Callable[..., Page]) -> None:
    page = opened("one")
    assert "The program has no collectives" in page.locator("#collectives").inner_text()
    page.locator("#timeline-canvas").focus()
    assert press(page, "ArrowRight").startswith("launch")


def test_the_words_at_the_pointer_go_when_the_tracks_move(opened: Callable[..., Page]) -> None:
    page = opened("large")
    show_everything(page)
    canvas = page.locator("#timeline-canvas")
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 14)
    page.wait_for_function("!document.getElementById('timeline-tip').hidden")
    page.evaluate("document.getElementById('timeline-scroll').scrollTop = 400")
    page.wait_for_function("document.getElementById('timeline-tip').hidden")


def test_drag_and_buttons_move_the_timeline(opened: Callable[..., Page]) -> None:
    page = opened("large", reduced_motion="reduce")  # scrolls at once
    page.locator('button[data-show="57"]').first.click()  # which zooms to it
    page.wait_for_function("document.getElementById('timeline-said').innerText !== ''")
    mark = page.locator("#timeline-mark")

    def place() -> tuple[float, float]:
        page.wait_for_timeout(200)
        box = mark.bounding_box()
        return box["x"], box["width"]

    page.locator('[data-do="all"]').click()
    whole_x, whole_width = place()
    page.locator('[data-do="in"]').click()
    x, width = place()
    assert width > 1.2 * whole_width
    box = page.locator("#timeline-canvas").bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 60)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] / 2 + 60, box["y"] + 60, steps=5)
    page.mouse.up()
    dragged_x, dragged_width = place()
    assert dragged_x == pytest.approx(x + 60, abs=15)
    assert dragged_width == pytest.approx(width, abs=5)
    page.locator('[data-do="all"]').click()
    assert place() == pytest.approx((whole_x, whole_width), abs=1)


def test_what_is_drawn_has_a_name_that_is_read_aloud(opened: Callable[..., Page]) -> None:
    page = opened("both")
    assert page.get_by_role("application", name="Timeline").count() == 1
    assert page.get_by_role("navigation", name="Sections").count() == 1
    assert page.get_by_role("img", name="a: compute").count() == 1
    for letter in "ab":
        assert page.get_by_role("region", name=f"Picture of the machine ({letter})").count() == 1
        assert page.get_by_role("table", name=f"Table of collectives ({letter})").count() == 1
        assert page.get_by_role("img", name="Live memory of rank 0").count() == 2
    for label in ("zoom in", "zoom out", "earlier", "later", "whole run"):
        assert page.get_by_role("button", name=label, exact=True).count() == 1
    for kind in ("collectives", "engines", "CC-cores", "DMA rings", "links and adapters"):
        assert page.get_by_role("checkbox", name=kind, exact=True).count() == 1
    assert page.get_by_role("button", name="p0, show on the timeline").count() >= 2


def test_less_motion_is_respected(opened: Callable[..., Page]) -> None:
    page = opened("small", reduced_motion="reduce")
    assert page.evaluate("getComputedStyle(document.documentElement).scrollBehavior") == "auto"


def test_without_scripts_the_tables_are_there(browser: Any, pages: dict[str, Path]) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(pages["small"].as_uri())
    assert page.locator("#table-collectives-a tbody tr").count() >= 4
    assert "Without JavaScript" in page.locator("noscript").inner_text()
    context.close()
