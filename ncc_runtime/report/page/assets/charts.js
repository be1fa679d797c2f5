// The charts beside the timeline, drawn by ECharts as SVG, which prints sharply.

const PARTS = ["compute", "both", "exposed", "idle"];

/** A chart in a place of the page; `option` makes what it shows, anew when colours change. */
function chart(name, option) {
  const place = document.getElementById(name);
  if (!place) return;
  const drawn = echarts.init(place, null, { renderer: "svg" });
  const draw = () => drawn.setOption(option(), true);
  draw();
  themed.push(draw);
  new ResizeObserver(() => drawn.resize()).observe(place);
}

const common = () => ({
  animation: false,
  textStyle: { color: colour("ink"), fontFamily: getComputedStyle(document.body).fontFamily },
});

const axis = (more) => ({
  axisLine: { lineStyle: { color: colour("edge") } },
  axisLabel: { color: colour("ink"), hideOverlap: true },
  splitLine: { lineStyle: { color: colour("rule") } },
  nameTextStyle: { color: colour("faint") },
  ...more,
});

const tooltip = (more) => ({
  backgroundColor: colour("panel"),
  borderColor: colour("edge"),
  textStyle: { color: colour("ink") },
  confine: true,
  ...more,
});

/** The time of ranks by what they do, in picoseconds: a row for each part. */
function partsOf(side) {
  const hidden = side.collective.map((time, rank) => time - side.exposed[rank]);
  return [
    side.compute.map((time, rank) => time - hidden[rank]),
    hidden,
    side.exposed,
    side.compute.map((time, rank) => side.time - time - side.exposed[rank]),
  ];
}

function startCharts() {
  const sides = index.sides;
  const mean = (values) => values.reduce((sum, value) => sum + value, 0) / Math.max(1, values.length);
  const means = sides.map((side) => partsOf(side).map(mean));
  const longest = Math.max(...sides.map((side) => side.time));
  chart("chart-time", () => ({
    ...common(),
    grid: { left: sides.length > 1 ? 28 : 8, right: 24, top: 30, bottom: 28 },
    legend: { top: 0, left: 0, textStyle: { color: colour("ink") }, selectedMode: false },
    tooltip: tooltip({ valueFormatter: (value) => timeText(value) }),
    xAxis: axis({ type: "value", max: longest, axisLabel: { color: colour("ink"), formatter: (value) => timeText(value, longest / 100) } }),
    yAxis: axis({
      type: "category", inverse: true, axisTick: { show: false },
      data: sides.map((side) => (sides.length > 1 ? side.letter : "")),
    }),
    series: PARTS.map((part, at) => ({
      name: part, type: "bar", stack: "time", barWidth: 26,
      itemStyle: { color: colour(part) },
      data: means.map((each) => each[at]),
      label: {
        show: true, color: colour("label"),
        formatter: ({ value, dataIndex }) => {
          const share = `${Math.round((100 * value) / sides[dataIndex].time)}%`;
          const room = (value / longest) * document.getElementById("chart-time").clientWidth;
          return room > 110 ? `${part} ${share}` : room > 40 ? share : "";
        },
      },
    })),
  }));
  for (const side of sides) {
    ranksChart(side);
    memoryChart(side);
  }
}

function ranksChart(side) {
  const parts = partsOf(side);
  chart("chart-ranks-" + side.letter, () => ({
    ...common(),
    grid: { left: 70, right: 16, top: 30, bottom: 44 },
    legend: { top: 0, left: 0, textStyle: { color: colour("ink") } },
    tooltip: tooltip({ trigger: "axis", axisPointer: { type: "shadow" }, valueFormatter: (value) => timeText(value) }),
    xAxis: axis({ type: "category", name: "rank", nameLocation: "middle", nameGap: 26, data: parts[0].map((_, rank) => rank) }),
    yAxis: axis({ type: "value", max: side.time, axisLabel: { color: colour("ink"), formatter: (value) => timeText(value, side.time / 100) } }),
    series: PARTS.map((part, at) => ({
      name: part, type: "bar", stack: "time", barCategoryGap: "10%",
      itemStyle: { color: colour(part) }, data: parts[at],
    })),
  }));
}

function memoryChart(side) {
  const memory = side.memory;
  // every value holds until the next time, and the last one until the end
  const steps = (values) => memory.time.map((time, at) => [time, values[at]]).concat([[side.time, values[values.length - 1]]]);
  const flat = (value) => memory.time.map(() => value);
  const kinds = [
    ["parameters and constants", flat(memory.lasting), "op6"],
    ["channel buffers", flat(memory.channels), "op2"],
    ["outputs", memory.outputs, "op1"],
    ["temporaries", memory.temporaries, "op0"],
  ].filter(([, values]) => values.some((value) => value));
  const step = 2 ** Math.ceil(Math.log2(Math.max(8, memory.charged) / 6)); // whole KiB, MiB, GiB
  chart("chart-memory-" + side.letter, () => ({
    ...common(),
    grid: { left: 80, right: 24, top: 46, bottom: 30 },
    legend: { top: 0, left: 0, textStyle: { color: colour("ink") } },
    tooltip: tooltip({
      trigger: "axis", valueFormatter: (value) => sizeText(value),
      axisPointer: { label: { formatter: ({ value }) => timeText(value) } },
    }),
    xAxis: axis({ type: "value", max: side.time, axisLabel: { color: colour("ink"), hideOverlap: true, formatter: (value) => timeText(value, side.time / 100) } }),
    yAxis: axis({ type: "value", max: step * Math.ceil((memory.charged * 1.02) / step), interval: step, axisLabel: { color: colour("ink"), formatter: sizeText } }),
    series: kinds.map(([name, values, key], at) => ({
      name, type: "line", step: "end", stack: "memory", symbol: "none", data: steps(values),
      lineStyle: { width: 0 }, itemStyle: { color: colour(key) }, areaStyle: { color: colour(key), opacity: 0.85 },
      markLine: at ? undefined : {
        symbol: "none", silent: true, lineStyle: { color: colour("ink"), type: "dashed" },
        label: { color: colour("ink"), position: "insideStartTop", formatter: `charged: ${sizeText(memory.charged)}` },
        data: [{ yAxis: memory.charged }],
      },
    })),
  }));
}
