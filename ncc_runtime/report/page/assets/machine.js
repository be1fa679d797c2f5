// The machine's picture, which the file holds as SVG: groups by colour, larger and smaller.

const GROUP_COLOURS = 12;
const MOST_NAMED = 24; // groups

function startMachine() {
  for (const side of index.sides) {
    const box = document.getElementById("machine-" + side.letter);
    const svg = box.querySelector("svg");
    const natural = [svg.width.baseVal.value, svg.height.baseVal.value];
    let scale = 1;
    const show = (wanted) => {
      scale = Math.min(4, Math.max(0.1, wanted));
      svg.setAttribute("width", natural[0] * scale);
      svg.setAttribute("height", natural[1] * scale);
    };
    const steps = {
      in: () => scale * 1.25,
      out: () => scale / 1.25,
      one: () => 1,
      fit: () => (box.clientWidth - 4) / natural[0],
    };
    for (const button of document.querySelectorAll(`[data-zoom="${side.letter}"]`)) {
      button.addEventListener("click", () => show(steps[button.dataset.by]()));
    }
    const fit = steps.fit();
    if (fit > 0.65) show(Math.min(1, fit));
    const chooser = document.querySelector(`[data-groups="${side.letter}"]`);
    if (chooser) chooser.addEventListener("change", () => colourGroups(side, svg, chooser.value));
    // a rank that is pointed at shows the ranks of its group
    svg.addEventListener("pointerover", (event) => {
      const slot = event.target.closest("rect[data-rank]");
      if (slot) pick(side, svg, chooser ? chooser.value : "", Number(slot.dataset.rank));
    });
    svg.addEventListener("pointerleave", () => pick(side, svg, "", -1));
  }
}

function colourGroups(side, svg, chosen) {
  const division = side.divisions[chosen];
  for (const slot of svg.querySelectorAll("rect[data-rank]")) {
    for (let number = 0; number < GROUP_COLOURS; number++) slot.classList.remove("group" + number);
    const group = division ? division.group[Number(slot.dataset.rank)] : -1;
    if (group >= 0) slot.classList.add("group" + (group % GROUP_COLOURS));
  }
  // the picture's own legend names the groups that it was made with, which are the first ones
  const isFirst = division === side.divisions[0];
  svg.querySelector("g.groups").style.display = isFirst ? "" : "none";
  const legend = document.getElementById("groups-" + side.letter);
  legend.replaceChildren();
  if (!division || isFirst) return;
  for (const [number, text] of division.texts.slice(0, MOST_NAMED).entries()) {
    const entry = element("span");
    const key = element("span", "", "key");
    key.style.background = `var(--group${number % GROUP_COLOURS})`;
    entry.append(key, text);
    legend.append(entry);
  }
  const more = division.texts.length - MOST_NAMED;
  if (more > 0) legend.append(element("span", `and ${more} more`));
}

function pick(side, svg, chosen, rank) {
  const division = side.divisions[chosen];
  const group = division && rank >= 0 ? division.group[rank] : -1;
  for (const slot of svg.querySelectorAll("rect[data-rank]")) {
    const isIn = group >= 0 && division.group[Number(slot.dataset.rank)] === group;
    slot.toggleAttribute("data-picked", isIn);
  }
}
