// The timeline: ECharts has the axis, zoom, drag and canvas; the tracks are one custom series, which
// draws only what can be seen. Hover and keyboard find events by binary search.

const ROW = 22; // pixels of a track
const RING = 40; // of a DMA ring, whose transfers overlap
const LINK = 30;
const labelsWidth = () => (innerWidth < 700 ? 118 : 190); // left of the tracks
const FOOT = 64; // for the axis and the slider
const MOST_TEXTS = 140; // in the bars, at a time
const MOST_LISTED = 200; // rows of the table of events
const KINDS = { path: 0, fault: 1, collective: 2, engine: 3, cc: 4, dma: 5, link: 6 };

// all rectangles of one colour are one shape, all steps of a rate another
const Rects = echarts.graphic.extendShape({
  shape: { rects: null },
  buildPath(context, { rects }) {
    for (let at = 0; at < rects.length; at += 4) context.rect(rects[at], rects[at + 1], rects[at + 2], rects[at + 3]);
  },
});
const Steps = echarts.graphic.extendShape({
  shape: { points: null, base: 0 },
  buildPath(context, { points, base }) {
    if (!points.length) return;
    context.moveTo(points[0], base);
    for (let at = 0; at < points.length; at += 3) {
      context.lineTo(points[at], points[at + 2]);
      context.lineTo(points[at + 1], points[at + 2]);
    }
    context.lineTo(points[points.length - 2], base);
    context.closePath();
  },
});
echarts.graphic.registerShape("ncc-rects", Rects);
echarts.graphic.registerShape("ncc-steps", Steps);

const view = { rows: [], from: 0, until: 1, time: 1, chosen: null, plot: null };
let timelineChart = null;

async function startTimeline() {
  const scroll = document.getElementById("timeline-scroll");
  const canvas = document.getElementById("timeline-canvas");
  view.time = view.until = Math.max(1, ...index.sides.map((side) => side.time));
  timelineChart = echarts.init(canvas, null, { renderer: "canvas" });
  const input = document.getElementById("timeline-ranks");
  input.value = ranksText(index.sides[0].firstRanks.slice(0, index.sides.length > 1 ? 2 : 4));
  input.addEventListener("change", () => layout());
  for (const box of document.querySelectorAll("#timeline-controls input[type=checkbox]")) {
    box.addEventListener("change", () => layout());
  }
  for (const button of document.querySelectorAll("#timeline-controls [data-do]")) {
    button.addEventListener("click", () => move(button.dataset.do));
  }
  scroll.addEventListener("scroll", () => {
    hideTip(); // what it was of has moved
    redraw();
  });
  timelineChart.on("datazoom", (event) => {
    const zoom = event.batch ? event.batch[0] : event;
    if (zoom.startValue !== undefined) [view.from, view.until] = [zoom.startValue, zoom.endValue];
    else [view.from, view.until] = [(zoom.start / 100) * view.time, (zoom.end / 100) * view.time];
    mark();
    listEvents();
  });
  const pointer = timelineChart.getZr();
  pointer.on("mousemove", (event) => hover(event.offsetX, event.offsetY, event.event));
  pointer.on("globalout", () => hideTip());
  pointer.on("click", (event) => {
    const found = under(event.offsetX, event.offsetY);
    if (found) choose(found.row, found.at);
  });
  canvas.addEventListener("keydown", pressed);
  new ResizeObserver(() => {
    timelineChart.resize();
    timelineChart.setOption({ grid: { left: labelsWidth() } });
    redraw();
  }).observe(scroll);
  themed.push(() => {
    timelineChart.setOption(timelineOption(), true);
    legend();
    redraw();
  });
  timelineChart.setOption(timelineOption(), true);
  legend();
  for (const details of document.querySelectorAll("#timeline details")) details.addEventListener("toggle", listEvents);
  await layout();
}

function timelineOption() {
  const zoom = { xAxisIndex: 0, filterMode: "none", minValueSpan: 1000, startValue: view.from, endValue: view.until };
  return {
    ...common(),
    aria: { enabled: false }, // the page says itself what is chosen
    grid: { left: labelsWidth(), right: 14, top: 4, bottom: FOOT },
    xAxis: axis({
      type: "value", min: 0, max: view.time, splitNumber: 8,
      axisLabel: { color: colour("ink"), hideOverlap: true, formatter: (value) => timeText(value, (view.until - view.from) / 200) },
      splitLine: { lineStyle: { color: colour("rule"), opacity: 0.6 } },
    }),
    yAxis: { type: "value", min: 0, max: 1, show: false },
    dataZoom: [
      { type: "inside", ...zoom, zoomOnMouseWheel: "ctrl", moveOnMouseWheel: false, moveOnMouseMove: true, throttle: 0 },
      {
        type: "slider", ...zoom, height: 18, bottom: 6, throttle: 0, showDataShadow: false, brushSelect: true,
        labelFormatter: (value) => timeText(value, view.time / 1000), textStyle: { color: colour("ink") },
        borderColor: colour("edge"), fillerColor: colour("bar") + "66", backgroundColor: colour("panel"),
      },
    ],
    series: [
      { type: "custom", renderItem: drawTracks, data: [[0, 0]], clip: true, silent: true, coordinateSystem: "cartesian2d" },
      { type: "custom", renderItem: drawLabels, data: [[0, 0]], clip: false, silent: true, coordinateSystem: "cartesian2d" },
    ],
  };
}

/** Which tracks are shown, by ranks and kinds, then draw them as soon as they are decoded. */
async function layout() {
  const kinds = new Set(["path", "fault"]);
  for (const box of document.querySelectorAll("#timeline-controls input:checked")) kinds.add(box.value);
  const input = document.getElementById("timeline-ranks");
  const wanted = ranksOf(input.value, Math.max(...index.sides.map((side) => side.simulated)));
  input.setAttribute("aria-invalid", wanted === null ? "true" : "false");
  const ranks = new Set(wanted || []);
  const rows = [];
  for (const [at, side] of index.sides.entries()) {
    side.tracks.forEach(([rank, queue], number) => {
      const kind = side.queues[queue].kind;
      if (kinds.has(kind) && (rank < 0 || ranks.has(rank))) {
        rows.push({ at, side, kind, rank, number, height: kind === "dma" ? RING : ROW, track: null, label: side.queues[queue].name });
      }
    });
    for (const [number, link] of kinds.has("link") ? side.links.entries() : []) {
      rows.push({ at, side, kind: "link", rank: Infinity, number, link, height: LINK, track: null, label: link.name });
    }
  }
  // what has no rank first, then rank by rank, of two runs beside each other, links last
  rows.sort((a, b) => a.rank - b.rank || (a.rank < 0 ? KINDS[a.kind] - KINDS[b.kind] : 0) || a.at - b.at || KINDS[a.kind] - KINDS[b.kind] || a.number - b.number);
  let top = 0;
  let group = null;
  for (const row of rows) {
    const own = row.rank < 0 || row.rank === Infinity ? "" : `${row.side.letter}${row.rank}`;
    row.opens = own !== "" && own !== group;
    group = own;
    row.top = top + (row.opens ? 6 : 0);
    top = row.top + row.height;
  }
  view.rows = rows;
  if (view.chosen && !rows.some((row) => row === view.chosen.row)) view.chosen = null;
  const height = top + FOOT + 8;
  const box = document.getElementById("timeline-scroll");
  document.getElementById("timeline-space").style.height = `${height}px`;
  document.getElementById("timeline-sticky").style.height = `${Math.min(height, box.clientHeight || height, Math.floor(innerHeight * 0.72) - 2)}px`;
  timelineChart.resize();
  redraw();
  await Promise.all(rows.map(async (row) => {
    if (row.kind === "link") row.track = await loadRates(row.side, row.link);
    else row.track = await loadTrack(row.side, row.number);
  }));
  redraw();
  listEvents();
}

/** The rates of a link, with what has passed before each of its times. */
async function loadRates(side, link) {
  if (!link.rates) {
    const [time, rate] = [await column(link.time), await column(link.rate)];
    const passed = new Float64Array(time.length + 1);
    for (let at = 0; at < time.length; at++) {
      const until = at + 1 < time.length ? time[at + 1] : side.time;
      passed[at + 1] = passed[at] + rate[at] * Math.max(0, until - time[at]);
    }
    link.rates = { time, rate, passed, full: link.full };
  }
  return link.rates;
}

/** MB/s times picoseconds that passed before a time. */
function passedBefore(rates, time) {
  const at = placeAbove(rates.time, time) - 1;
  return at < 0 ? 0 : rates.passed[at] + rates.rate[at] * (time - rates.time[at]);
}

const scrolled = () => document.getElementById("timeline-scroll").scrollTop;

let waiting = 0;

/** Draw again with the next frame. */
function redraw() {
  cancelAnimationFrame(waiting);
  waiting = requestAnimationFrame(() => {
    // other data, as the same is not drawn again
    const data = [[0, Math.random()]];
    timelineChart.setOption({ series: [{ data }, { data }] });
    mark();
  });
}

/** All tracks that are in view, as shapes: one for each colour, and texts where there is room. */
function drawTracks(params, api) {
  const plot = params.coordSys;
  const zero = api.coord([0, 0])[0];
  const scale = (api.coord([view.time, 0])[0] - zero) / view.time; // pixels a picosecond
  view.plot = { ...plot, zero, scale };
  const from = (plot.x - zero) / scale;
  const until = from + plot.width / scale;
  const pixel = 1 / scale;
  const shapes = new Map(); // colour and density → numbers
  const texts = [];
  const children = [];
  const put = (key, x, y, width, height) => {
    if (!shapes.has(key)) shapes.set(key, []);
    shapes.get(key).push(x, y, width, height);
  };
  const offset = plot.y - scrolled();
  for (const row of view.rows) {
    const y = offset + row.top;
    if (y + row.height < plot.y || y > plot.y + plot.height) continue;
    put("rule|1", plot.x, y + row.height - 0.5, plot.width, 0.5);
    if (!row.track) continue;
    if (row.kind === "link") {
      children.push(ratesShape(row, y, from, until, plot));
      continue;
    }
    const height = (row.height - 4) / row.track.lanes.length;
    row.track.lanes.forEach((lane, number) => {
      const top = y + 2 + number * height;
      visible(lane, from, until, pixel, (first, last, start, end, share) => {
        const at = lane.events ? lane.events[first] : first;
        const left = Math.max(zero + start * scale, plot.x - 2);
        const right = Math.min(zero + end * scale, plot.x + plot.width + 2);
        const width = Math.max(right - left, 0.6);
        const isOne = first === last;
        const colour = isOne ? colourOf(row.track, at) : blockColour(row.track, lane, first, last);
        put(`${colour}|${isOne ? 1 : Math.max(0.25, Math.ceil(share * 4) / 4)}`, left, top, width, Math.max(1, height - 0.6));
        if (row.track.reason && row.track.reason[at] >= ON_PATH && height > 8) put("ink|1", left, top + height - 3, width, 2);
        if (isOne && width > 46 && height >= 14) texts.push([left, top, width, height, row.track, at]);
      });
    });
  }
  for (const [key, rects] of shapes) {
    const [name, opacity] = key.split("|");
    children.push({ type: "ncc-rects", shape: { rects }, style: { fill: colour(name), opacity: Number(opacity) }, silent: true });
  }
  texts.sort((a, b) => b[2] - a[2]);
  const ink = colour("label");
  for (const [left, top, width, height, track, at] of texts.slice(0, MOST_TEXTS)) {
    children.push({
      type: "text", silent: true,
      style: { text: eventName(track, at), x: left + 4, y: top + height / 2, width: width - 8, overflow: "truncate", ellipsis: "…", fill: ink, fontSize: 11, verticalAlign: "middle" },
    });
  }
  return { type: "group", children };
}

/** The colour of events that are drawn as one: that of the longest of a few of them. */
function blockColour(track, lane, first, last) {
  const step = Math.max(1, Math.floor((last - first) / 8));
  let longest = first;
  for (let at = first; at <= last; at += step) {
    if (lane.end[at] - lane.start[at] > lane.end[longest] - lane.start[longest]) longest = at;
  }
  return colourOf(track, lane.events ? lane.events[longest] : longest);
}

/** The names of tracks, left of them; of the first one of a rank also the rank. */
function drawLabels(params) {
  const plot = params.coordSys;
  const children = [];
  for (const row of view.rows) {
    const middle = plot.y - scrolled() + row.top + row.height / 2;
    if (middle < plot.y + 4 || middle > plot.y + plot.height - 4) continue;
    const side = index.sides.length > 1 ? `${row.side.letter} ` : "";
    const rank = row.rank < 0 || row.rank === Infinity ? side : row.opens ? `${side}rank ${row.rank}` : "";
    const isChosen = view.chosen && view.chosen.row === row;
    const style = { y: middle, verticalAlign: "middle", fontSize: 12, fill: colour("ink") };
    if (rank) children.push({ type: "text", silent: true, style: { ...style, x: 6, text: rank, fontWeight: "bold" } });
    children.push({
      type: "text", silent: true,
      style: {
        ...style, x: plot.x - 8, align: "right", text: row.label, width: plot.x - (rank ? 14 + 7 * rank.length : 16), overflow: "truncate",
        fontWeight: isChosen ? "bold" : "normal", fill: colour(isChosen ? "link" : "ink"),
      },
    });
  }
  return { type: "group", children };
}

/** What a link carries, its mean in each pixel, as high as its share of the full rate. */
function ratesShape(row, y, from, until, plot) {
  const base = y + row.height - 2;
  const points = [];
  const time = (x) => from + ((x - plot.x) / plot.width) * (until - from);
  let before = passedBefore(row.track, Math.max(0, from));
  for (let x = plot.x; x < plot.x + plot.width; x += 1) {
    const end = Math.min(time(x + 1), row.side.time);
    const after = passedBefore(row.track, end);
    const mean = (after - before) / Math.max(end - time(x), 1e-9) / row.track.full;
    before = after;
    points.push(x, x + 1, base - Math.max(0, Math.min(1, mean)) * (row.height - 5));
  }
  return { type: "ncc-steps", shape: { points, base }, style: { fill: colour("both") }, silent: true };
}

/** The row and event at a place of the canvas. */
function under(x, y) {
  const { plot } = view;
  if (!plot || x < plot.x || x > plot.x + plot.width || y < plot.y || y > plot.y + plot.height) return null;
  const at = y - plot.y + scrolled();
  const row = view.rows.find((each) => each.top <= at && at < each.top + each.height);
  if (!row || !row.track) return null;
  const time = (x - plot.zero) / plot.scale;
  if (row.kind === "link") return { row, at: -1, time };
  const height = (row.height - 4) / row.track.lanes.length;
  const lane = Math.floor((at - row.top - 2) / height);
  const found = eventAt(row.track.lanes[Math.max(0, Math.min(lane, row.track.lanes.length - 1))], time, 3 / plot.scale);
  return found < 0 ? null : { row, at: found, time };
}

let hovered = 0;

/** The tooltip of what is pointed at. */
async function hover(x, y, event) {
  const turn = ++hovered;
  const found = under(x, y);
  if (!found) {
    hideTip();
    return;
  }
  const lines = found.row.kind === "link" ? linkWords(found.row, found.time) : await eventWords(found.row.track, found.at);
  if (turn !== hovered) return; // the pointer has moved on
  const tip = document.getElementById("timeline-tip");
  tip.replaceChildren(...lines.map((line) => element("p", line)));
  tip.hidden = false;
  const left = Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8);
  const below = event.clientY + 16 + tip.offsetHeight < innerHeight;
  tip.style.left = `${Math.max(4, left)}px`;
  tip.style.top = `${below ? event.clientY + 16 : event.clientY - tip.offsetHeight - 10}px`;
}

function hideTip() {
  hovered += 1;
  document.getElementById("timeline-tip").hidden = true;
}

function linkWords(row, time) {
  const at = placeAbove(row.track.time, time) - 1;
  const rate = at < 0 ? 0 : row.track.rate[at];
  return [row.link.name, `${digits(rate / 1000, 2)} GB/s of ${digits(row.track.full / 1000, 1)}, ${Math.round((100 * rate) / row.track.full)} %`, `at ${usText(time)}`];
}

/** Choose an event: it is outlined, said, and where the keyboard goes on. */
async function choose(row, at) {
  view.chosen = { row, at };
  bringIntoView();
  redraw();
  const said = document.getElementById("timeline-said");
  const words = row.kind === "link" ? linkWords(row, (view.from + view.until) / 2) : await eventWords(row.track, at);
  if (view.chosen && view.chosen.row === row && view.chosen.at === at) said.textContent = words.join("\n");
  listEvents();
}

/** Scroll and move so that the chosen event can be seen. */
function bringIntoView() {
  const { row, at } = view.chosen;
  const box = document.getElementById("timeline-scroll");
  const room = document.getElementById("timeline-sticky").clientHeight - FOOT - 10;
  if (row.top < box.scrollTop) box.scrollTop = row.top;
  else if (row.top + row.height > box.scrollTop + room) box.scrollTop = row.top + row.height - room;
  if (row.kind === "link") return;
  const [start, end] = [row.track.start[at], row.track.end[at]];
  const span = view.until - view.from;
  if (end < view.from || start > view.until) show(start + (end - start) / 2 - span / 2, span);
}

/** Show a time and how long a span from there on. */
function show(from, span) {
  const length = Math.min(view.time, Math.max(span, 1000));
  const start = Math.max(0, Math.min(from, view.time - length));
  timelineChart.dispatchAction({ type: "dataZoom", startValue: start, endValue: start + length });
}

function move(how) {
  const span = view.until - view.from;
  let middle = (view.from + view.until) / 2;
  if (view.chosen && view.chosen.row.kind !== "link" && (how === "in" || how === "out")) {
    const { row, at } = view.chosen;
    const own = (row.track.start[at] + row.track.end[at]) / 2;
    if (own >= view.from && own <= view.until) middle = own;
  }
  const steps = {
    in: () => show(middle - span / 4, span / 2),
    out: () => show(middle - span, span * 2),
    left: () => show(view.from - span / 3, span),
    right: () => show(view.from + span / 3, span),
    all: () => show(0, view.time),
  };
  steps[how]();
}

/** The keyboard: from event to event, from track to track. */
async function pressed(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const keys = { "+": "in", "=": "in", "-": "out", _: "out", 0: "all" };
  const shifted = { ArrowLeft: "left", ArrowRight: "right" };
  if (keys[event.key] || (event.shiftKey && shifted[event.key])) {
    event.preventDefault();
    move(keys[event.key] || shifted[event.key]);
    return;
  }
  if (!["ArrowLeft", "ArrowRight", "ArrowUp", "ArrowDown", "Home", "End", "Enter", "c", "C", "Escape"].includes(event.key)) return;
  event.preventDefault();
  if (event.key === "Escape") {
    hideTip();
    return;
  }
  const rows = view.rows.filter((row) => row.track && (row.kind === "link" || row.track.count));
  if (!rows.length) return;
  if (!view.chosen) {
    choose(rows[0], rows[0].kind === "link" ? -1 : firstIn(rows[0], view.from));
    return;
  }
  const { row, at } = view.chosen;
  const place = rows.indexOf(row);
  if (event.key === "ArrowUp" || event.key === "ArrowDown") {
    const other = rows[place + (event.key === "ArrowUp" ? -1 : 1)];
    const time = row.kind === "link" ? view.from : row.track.start[at];
    if (other) choose(other, other.kind === "link" ? -1 : firstIn(other, time));
  } else if (row.kind !== "link") {
    const last = row.track.count - 1;
    const next = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: last, Enter: at }[event.key];
    if (event.key.toLowerCase() === "c") toCause(row.track, at);
    else if (next >= 0 && next <= last) choose(row, next);
  }
}

/** The event of a row that is under way at a time, or the next one. */
function firstIn(row, time) {
  const at = placeAbove(row.track.start, time) - 1;
  return at >= 0 && row.track.end[at] >= time ? at : Math.min(at + 1, row.track.count - 1);
}

/** Go to what an event waited for, showing its rank if it is not shown. */
async function toCause(track, at) {
  const cause = await causeOf(track, at);
  if (!cause) {
    document.getElementById("timeline-said").textContent = "No event is known that it waited for.";
    return;
  }
  await goTo(cause.track, cause.at);
}

async function goTo(track, at) {
  const find = () => view.rows.find((row) => row.side === track.side && row.number === track.number && row.kind !== "link");
  if (!find()) {
    const input = document.getElementById("timeline-ranks");
    const ranks = new Set(ranksOf(input.value, track.side.simulated) || []);
    if (track.rank >= 0) ranks.add(track.rank);
    input.value = ranksText([...ranks].sort((a, b) => a - b));
    const box = document.querySelector(`#timeline-controls input[value="${track.side.queues[track.queue].kind}"]`);
    if (box) box.checked = true;
    await layout();
  }
  const row = find();
  if (row) await choose(row, at);
}

/** Show a collective: its first run, on a rank that is shown, else on any. */
async function showCollective(side, placeholder) {
  const order = side.tracks
    .map(([rank, queue], number) => ({ rank, queue, number }))
    .filter(({ queue }) => side.queues[queue].kind === "collective");
  const shown = new Set(view.rows.filter((row) => row.side === side).map((row) => row.rank));
  order.sort((a, b) => shown.has(b.rank) - shown.has(a.rank));
  for (const { number } of order) {
    const track = await loadTrack(side, number);
    const at = track.row.indexOf(placeholder);
    if (at < 0) continue;
    const span = (track.end[at] - track.start[at]) * 1.6;
    await goTo(track, at);
    show(track.start[at] - span / 5, span);
    document.getElementById("timeline").scrollIntoView();
    document.getElementById("timeline-canvas").focus({ preventScroll: true });
    return;
  }
}

/** The outline of the chosen event. */
function mark() {
  const box = document.getElementById("timeline-mark");
  const { chosen, plot } = view;
  box.hidden = true;
  if (!chosen || !plot || chosen.row.kind === "link") return;
  const { row, at } = chosen;
  const lanes = row.track.lanes.length;
  const height = (row.height - 4) / lanes;
  const lane = row.track.lane ? row.track.lane[at] : 0;
  const top = plot.y + row.top - scrolled() + 2 + lane * height;
  const left = Math.max(plot.zero + row.track.start[at] * plot.scale, plot.x);
  const right = Math.min(plot.zero + row.track.end[at] * plot.scale, plot.x + plot.width);
  if (right < plot.x || left > plot.x + plot.width || top < plot.y - 2 || top > plot.y + plot.height) return;
  box.hidden = false;
  Object.assign(box.style, { left: `${left - 2}px`, top: `${top - 2}px`, width: `${Math.max(5, right - left + 4)}px`, height: `${Math.max(5, height + 3)}px` });
}

/** The events of the chosen track, or of the first, that are in the time that is shown. */
function listEvents() {
  const place = document.getElementById("track-table");
  if (!place.closest("details").open) return;
  const row = view.chosen ? view.chosen.row : view.rows.find((each) => each.track && each.kind !== "link");
  if (!row || !row.track || row.kind === "link") return;
  const { track } = row;
  const table = element("table");
  const body = element("tbody");
  let shown = 0;
  let more = 0;
  for (let at = 0; at < track.count; at++) {
    if (track.end[at] < view.from || track.start[at] > view.until) continue;
    if (shown === MOST_LISTED) {
      more += 1;
      continue;
    }
    shown += 1;
    const queue = track.side.queues[track.queue];
    const line = track.row[at] >= 0 && queue.lines.length ? word(queue.lines[track.row[at]]) : "";
    const cells = [digits(track.start[at] / 1e6, 3), digits((track.end[at] - track.start[at]) / 1e6, 3), eventName(track, at), line];
    const made = element("tr");
    cells.forEach((text, number) => made.append(element("td", text, number < 2 ? "number" : "")));
    body.append(made);
  }
  const left = more ? `; ${more} more, zoom in for them` : "";
  const head = element("tr");
  for (const [text, kind] of [["start us", "number"], ["time us", "number"], ["event", ""], ["line", ""]]) {
    const cell = element("th", text, kind);
    cell.scope = "col";
    head.append(cell);
  }
  const heading = element("thead");
  heading.append(head);
  table.append(element("caption", `${queueName(track)}: ${shown} events${left}`), heading, body);
  place.replaceChildren(table);
}

/** What colours mean, of those kinds of collectives that there are. */
function legend() {
  const place = document.getElementById("timeline-legend");
  const entries = [["engine", "an engine works"], ["wait", "control, or between collectives"]];
  const used = new Set(index.sides.flatMap((side) => side.collectives.map(([, op]) => op)));
  for (const op of used) entries.push([colourOfOp(op), op]);
  if (index.sides.some((side) => side.queues.some((queue) => queue.kind === "fault"))) entries.push(["bad", "a fault"]);
  if (index.sides.some((side) => side.links.length)) entries.push(["both", "share of a link's rate"]);
  const made = entries.map(([name, words]) => {
    const entry = element("span");
    const key = element("span", "", "key");
    key.style.background = colour(name);
    entry.append(key, words);
    return entry;
  });
  made.push(element("span", "▁ under an event: on the critical path"));
  place.replaceChildren(...made);
}
