// What the page holds: chunks of columns, unpacked when they are first needed.

const chunks = new Map(); // name → promise of its bytes

/** The bytes of a chunk: base64 of gzip. */
function chunk(name) {
  if (!chunks.has(name)) {
    chunks.set(name, unpack(document.getElementById("chunk-" + name).textContent));
  }
  return chunks.get(name);
}

async function unpack(text) {
  const packed = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

let index = null; // what all else is found by; page.js reads it first

/** A column by its number, of chunks that are unpacked; null for -1. Planes of bytes, zigzag. */
async function column(number) {
  if (number < 0) return null;
  const [name, offset, count, planes, isDelta] = index.columns[number];
  const bytes = await chunk(name);
  const values = new Float64Array(count);
  for (let plane = planes - 1; plane >= 0; plane--) {
    const base = offset + plane * count;
    for (let at = 0; at < count; at++) values[at] = values[at] * 256 + bytes[base + at];
  }
  let sum = 0;
  for (let at = 0; at < count; at++) {
    const half = Math.floor(values[at] / 2);
    const value = values[at] - 2 * half ? -half - 1 : half;
    sum += value;
    values[at] = isDelta ? sum : value;
  }
  return values;
}

/** The first place whose value is above a number, in an ascending array. */
function placeAbove(values, number) {
  let low = 0;
  let high = values.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (values[middle] <= number) low = middle + 1;
    else high = middle;
  }
  return low;
}
