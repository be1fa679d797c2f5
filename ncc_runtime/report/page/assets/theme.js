// Light and dark: as the system, or as chosen. Charts are told when it changes.

const themed = []; // called with nothing when colours change

const known = new Map(); // colours by name, until the theme changes

/** A colour of the style sheet. */
function colour(name) {
  if (!known.has(name)) {
    known.set(name, getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim());
  }
  return known.get(name);
}

function toColours() {
  known.clear();
  themed.forEach((draw) => draw());
}

function startTheme() {
  const root = document.documentElement;
  const choice = document.getElementById("theme");
  choice.addEventListener("change", () => {
    root.dataset.theme = choice.value;
    toColours();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", toColours);
  // paper is white
  addEventListener("beforeprint", () => {
    root.dataset.theme = "light";
    toColours();
  });
  addEventListener("afterprint", () => {
    root.dataset.theme = choice.value;
    toColours();
  });
}
