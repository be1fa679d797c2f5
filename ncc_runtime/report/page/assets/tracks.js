// Tracks of the timeline: events as columns, found by binary search, thinned to what can be seen.

const REASONS = ["started with the run", "its queue was busy", "waited", "its ring was busy"];
const ON_PATH = 4; // a bit of an event's reason
const LEAST_WIDTH = 0.6; // pixels: what is narrower is drawn together

const loaded = new Map(); // side and number → promise of a track

/** The track of a number of a side, its columns decoded; times in picoseconds. */
function loadTrack(side, number) {
  const key = side.letter + number;
  if (!loaded.has(key)) loaded.set(key, decodeTrack(side, number));
  return loaded.get(key);
}

const DRAWN = ["row", "gap", "duration", "reason", "lane", "merged"]; // columns of what is drawn

async function decodeTrack(side, number) {
  const [rank, queue, count] = side.tracks[number];
  const track = { side, rank, queue, count, number };
  await Promise.all(DRAWN.map((name) => need(track, name)));
  const start = new Float64Array(count);
  const end = new Float64Array(count);
  const busy = new Float64Array(count + 1); // time that events take, added up
  for (let at = 0; at < count; at++) {
    start[at] = track.gap[at] + (at ? end[at - 1] : 0);
    end[at] = start[at] + track.duration[at];
    busy[at + 1] = busy[at] + track.duration[at];
  }
  track.start = start;
  track.end = end;
  // events of one lane follow each other; those of a ring overlap and have several
  track.lanes = [{ events: null, start, end, busy }];
  if (track.lane) {
    const lanes = 1 + track.lane.reduce((most, lane) => Math.max(most, lane), 0);
    track.lanes = Array.from({ length: lanes }, (_, lane) => laneOf(track, lane));
  }
  return track;
}

/** A column of a track, decoded when it is first needed; null where the track has none. */
async function need(track, name) {
  if (track[name] === undefined) {
    const numbers = track.side.tracks[track.number].slice(3);
    track[name] = await column(numbers[index.trackColumns.indexOf(name)]);
  }
  return track[name];
}

function laneOf(track, lane) {
  const events = [];
  for (let at = 0; at < track.count; at++) if (track.lane[at] === lane) events.push(at);
  const start = Float64Array.from(events, (at) => track.start[at]);
  const end = Float64Array.from(events, (at) => track.end[at]);
  const busy = new Float64Array(events.length + 1);
  for (let at = 0; at < events.length; at++) busy[at + 1] = busy[at] + end[at] - start[at];
  return { events, start, end, busy };
}

/**
 * What a lane shows between two times, of so many picoseconds a pixel: calls
 * `draw(first, last, start, end, share)` for each rectangle. Events that are too narrow are drawn
 * as one, as dense as they are; the next one is searched for, so that the work follows the pixels
 * and not the events.
 */
function visible(lane, from, until, pixel, draw) {
  const { start, end, busy } = lane;
  const least = pixel * LEAST_WIDTH;
  let at = placeAbove(end, from);
  while (at < start.length && start[at] < until) {
    if (end[at] - start[at] >= least) {
      draw(at, at, start[at], end[at], 1);
      at += 1;
      continue;
    }
    // a block: until a wide event, or a pixel after its begin, whatever comes first
    const limit = start[at] + 1.5 * pixel;
    let last = at;
    if (placeAbove(start, limit) - at > 8) {
      last = placeAbove(start, limit) - 1;
      while (last > at && end[last] - start[last] >= least) last -= 1;
    } else {
      while (last + 1 < start.length && start[last + 1] <= limit && end[last + 1] - start[last + 1] < least) last += 1;
    }
    const reach = Math.max(end[last], start[at]);
    const span = Math.max(reach - start[at], least);
    draw(at, last, start[at], start[at] + span, Math.min(1, (busy[last + 1] - busy[at]) / span));
    at = last + 1;
  }
}

/** The event of a lane at a time, or the nearest one within a distance; -1 for none. */
function eventAt(lane, time, within) {
  let at = placeAbove(lane.start, time) - 1;
  let best = -1;
  let distance = within;
  for (const near of [at, at + 1]) {
    if (near < 0 || near >= lane.start.length) continue;
    const away = Math.max(lane.start[near] - time, time - lane.end[near], 0);
    if (away <= distance && (best < 0 || away < distance)) [best, distance] = [near, away];
  }
  return best < 0 ? -1 : lane.events ? lane.events[best] : best;
}

/** The place in `side.tracks` of a queue on a rank; undefined if it is not in the page. */
function trackNumber(side, rank, queue) {
  if (!side.numbers) {
    side.numbers = new Map(side.tracks.map((row, number) => [row[0] * 65536 + row[1], number]));
  }
  return side.numbers.get(rank * 65536 + queue);
}

const word = (number) => index.words[number];

/** What an event is: its row's text, or how many events a block stands for. */
function eventName(track, at) {
  const row = track.row[at];
  if (row < 0) return `${track.merged[at]} events, too short to be kept apart`;
  return word(track.side.queues[track.queue].names[row]);
}

const queueName = (track) => {
  const name = track.side.queues[track.queue].name;
  return track.rank < 0 ? name : `${name} of rank ${track.rank}`;
};

/** The collective that an event belongs to, -1 for none. */
function placeholderOf(track, at) {
  const queue = track.side.queues[track.queue];
  const row = track.row[at];
  if (row < 0) return -1;
  return queue.kind === "collective" ? row : queue.placeholders ? queue.placeholders[row] : -1;
}

/** The colour of an event, by name of the style sheet. */
function colourOf(track, at) {
  const queue = track.side.queues[track.queue];
  if (queue.kind === "fault") return "bad";
  const row = track.row[at];
  if (row < 0) return "idle";
  if (queue.kind === "engine") return queue.works[row] ? "engine" : "wait";
  const placeholder = placeholderOf(track, at);
  if (placeholder >= 0) return opColour(track.side, placeholder);
  return queue.kind === "path" && queue.works[row] ? "engine" : "wait";
}

const OP_COLOURS = 8;
let opColours = null; // operators of the page → names of colours

/** The colour of an operator: the same in most pages, and in none that of another if 8 do. */
function colourOfOp(op) {
  if (!opColours) {
    opColours = new Map();
    const used = new Set(index.sides.flatMap((side) => side.collectives.map((row) => row[1])));
    for (const [number, one] of index.ops.entries()) {
      if (!used.has(one)) continue;
      const taken = new Set(opColours.values());
      let at = number % OP_COLOURS;
      while (taken.has("op" + at) && taken.size < OP_COLOURS) at = (at + 1) % OP_COLOURS;
      opColours.set(one, "op" + at);
    }
  }
  return opColours.get(op);
}

function opColour(side, placeholder) {
  if (!side.byId) side.byId = new Map(side.collectives.map((row) => [row[0], row]));
  const row = side.byId.get(placeholder);
  return row ? colourOfOp(row[1]) : "wait";
}

/** An event in words, line by line; texts of other ranks are fetched. */
async function eventWords(track, at) {
  const queue = track.side.queues[track.queue];
  const row = track.row[at];
  const lines = [eventName(track, at)];
  if (row >= 0 && queue.lines.length && word(queue.lines[row])) lines.push(word(queue.lines[row]));
  lines.push(`${queueName(track)}: from ${usText(track.start[at])}, for ${usText(track.end[at] - track.start[at])}`);
  const collective = track.side.collectives.find(([id]) => id === placeholderOf(track, at));
  if (collective && queue.kind !== "engine") {
    const [, op, algorithm, bytes, line] = collective;
    lines.push([`${op} by ${algorithm}`, `${sizeText(bytes)} on a rank`, queue.kind === "path" ? "" : line].filter(Boolean).join(", "));
  }
  if (queue.on && queue.late) {
    const ranks = word(queue.on[row]);
    if (ranks) lines.push(`ranks ${ranks}`);
    if (word(queue.late[row])) lines.push(`waited for: ${word(queue.late[row])}`);
    return lines;
  }
  const peer = await need(track, "peer");
  if (peer && peer[at] >= 0) {
    const route = track.side.routes[`${track.rank}>${peer[at]}`];
    const over = route === undefined ? "" : ` over ${word(route)}`;
    lines.push(`${sizeText((await need(track, "bytes"))[at])} to rank ${peer[at]}${over}`);
  }
  if (track.reason) {
    const reason = track.reason[at] % ON_PATH;
    if (row >= 0) lines.push(await causeWords(track, at, reason));
    const slowed = await need(track, "slowed");
    if (slowed && slowed[at]) lines.push(`${usText(slowed[at])} longer than alone: others shared what it uses`);
    if (track.reason[at] >= ON_PATH) lines.push("on the critical path");
  }
  return lines;
}

/** The event that another one waited for: its track and place; null if it is not in the page. */
async function causeOf(track, at) {
  const places = await need(track, "cause_index");
  if (!places || places[at] < 0) return null;
  const rank = track.rank + (await need(track, "cause_rank"))[at];
  const queue = track.queue + (await need(track, "cause_queue"))[at];
  const number = trackNumber(track.side, rank, queue);
  if (number === undefined) return null;
  return { track: await loadTrack(track.side, number), at: places[at] };
}

async function causeWords(track, at, reason) {
  const cause = await causeOf(track, at);
  if (!cause) return `why not earlier: ${REASONS[reason]}`;
  const what = `${eventName(cause.track, cause.at)}, ${queueName(cause.track)}, until ${usText(cause.track.end[cause.at])}`;
  const how = reason === 2 ? "waited for" : `${REASONS[reason]} with`;
  return `why not earlier: ${how} ${what}`;
}
