// Tables: a click or Enter on a heading sorts, a search leaves rows out, equal rows are joined.

function startTables() {
  for (const button of document.querySelectorAll("th button")) {
    button.addEventListener("click", () => sortBy(button.closest("th")));
  }
  for (const input of document.querySelectorAll("[data-find]")) {
    input.addEventListener("input", () => find(document.getElementById(input.dataset.find), input.value));
  }
  for (const box of document.querySelectorAll("[data-each]")) {
    const table = document.getElementById(box.dataset.each);
    box.addEventListener("change", () => {
      table.tBodies[0].hidden = box.checked;
      table.tBodies[1].hidden = !box.checked;
      count(table);
    });
    count(table);
  }
}

/** Sort by a column: numbers the largest first, words from A; a second time the other way. */
function sortBy(heading) {
  const table = heading.closest("table");
  const isNumber = heading.classList.contains("number");
  const before = heading.getAttribute("aria-sort");
  const ascending = before === "none" ? !isNumber : before === "descending";
  for (const other of heading.parentElement.children) {
    if (other.hasAttribute("aria-sort")) other.setAttribute("aria-sort", "none");
  }
  heading.setAttribute("aria-sort", ascending ? "ascending" : "descending");
  const key = (row) => {
    const cell = row.cells[heading.cellIndex];
    return cell.dataset.value === undefined ? cell.textContent : Number(cell.dataset.value);
  };
  const order = (a, b) =>
    typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), "en");
  for (const body of table.tBodies) {
    const rows = [...body.rows].map((row, at) => [key(row), at, row]);
    rows.sort((a, b) => (ascending ? 1 : -1) * order(a[0], b[0]) || a[1] - b[1]);
    body.append(...rows.map((row) => row[2]));
  }
}

/** Show the rows that have all the words. */
function find(table, text) {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  for (const body of table.tBodies) {
    for (const row of body.rows) {
      const content = row.textContent.toLowerCase();
      row.hidden = !words.every((word) => content.includes(word));
    }
  }
  count(table);
}

/** Say how many rows are there. */
function count(table) {
  const body = [...table.tBodies].find((each) => !each.hidden);
  const shown = [...body.rows].filter((row) => !row.hidden).length;
  const said = document.getElementById(table.id + "-count");
  if (said) said.textContent = `${shown} of ${body.rows.length} rows`;
}
