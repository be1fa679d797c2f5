// Figures as texts.

const digits = (value, count) =>
  value.toLocaleString("en-US", { minimumFractionDigits: count, maximumFractionDigits: count });

/** Picoseconds for people, as fine as `step` picoseconds: `12.345 ms`. */
function timeText(ps, step) {
  const units = [["s", 1e12], ["ms", 1e9], ["us", 1e6], ["ns", 1e3], ["ps", 1]];
  const [unit, size] = units.find(([, size]) => Math.abs(ps) >= size) || units[2];
  const fine = step === undefined ? 3 : Math.max(0, Math.min(6, Math.ceil(Math.log10(size / step))));
  return `${digits(ps / size, fine)} ${unit}`;
}

/** Picoseconds as microseconds, with all that counts. */
const usText = (ps) => `${digits(ps / 1e6, 3)} us`;

function sizeText(bytes) {
  const units = [["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]];
  const [unit, size] = units.find(([, size]) => bytes >= size) || ["B", 1];
  const value = bytes / size;
  return `${digits(value, size === 1 ? 0 : Number.isInteger(value * 10) ? 1 : 2)} ${unit}`;
}

/** An element with a text, which is never read as HTML. */
function element(tag, text, kind) {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  if (kind) made.className = kind;
  return made;
}

/** Ranks such as `0-3,8`, or `all`; null for anything else. */
function ranksOf(text, count) {
  if (text.trim() === "all") return Array.from({ length: count }, (_, rank) => rank);
  const ranks = new Set();
  for (const part of text.split(",")) {
    const found = /^\s*(\d{1,6})(?:\s*-\s*(\d{1,6}))?\s*$/.exec(part);
    if (!found) return null;
    const last = Number(found[2] ?? found[1]);
    if (last >= count || last < Number(found[1])) return null;
    for (let rank = Number(found[1]); rank <= last; rank++) ranks.add(rank);
  }
  return [...ranks].sort((a, b) => a - b);
}

/** Ascending ranks as `0-3,8`. */
function ranksText(ranks) {
  const runs = [];
  for (const rank of ranks) {
    const last = runs[runs.length - 1];
    if (last && last[1] === rank - 1) last[1] = rank;
    else runs.push([rank, rank]);
  }
  return runs.map(([a, b]) => (a === b ? `${a}` : `${a}-${b}`)).join(",");
}
