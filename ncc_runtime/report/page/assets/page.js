// Starts everything: tables first, which need nothing, then what is drawn.

async function start() {
  startTheme();
  startTables();
  const bytes = await chunk("index");
  index = JSON.parse(new TextDecoder().decode(bytes));
  startMachine();
  startCharts();
  await startTimeline();
  for (const button of document.querySelectorAll("[data-show]")) {
    const side = index.sides.find((each) => each.letter === button.dataset.side);
    button.addEventListener("click", () => showCollective(side, Number(button.dataset.show)));
  }
  document.documentElement.dataset.ready = "yes";
}

start();
