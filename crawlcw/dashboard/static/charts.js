// Charts of steps over time: uPlot draws them on a canvas, and a hidden sentence describes them.

/* global uPlot */
import { el, setText } from "/static/dom.js";

const HEIGHT = 190;
// The length of a chart in seconds is at least this.
const SHORTEST = 1;
// Seconds between two labels of the time axis: its labels have no fractions of a second.
const TIME_STEPS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1_800, 3_600, 7_200, 10_800, 21_600, 43_200, 86_400, 172_800];
const WHOLE_STEPS = Array.from({ length: 12 }, (_, n) => [1, 2, 5].map((first) => first * 10 ** n)).flat();
const dark = matchMedia("(prefers-color-scheme: dark)");

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

function axis(more = {}) {
  const grid = { stroke: colour("--grid"), width: 1 };
  return { stroke: colour("--muted"), grid, ticks: { ...grid, size: 4 }, font: "12px system-ui, sans-serif", ...more };
}

/**
 * Return a chart of lines: *lines* are [{label, colour, dash, fill}], colours names of CSS
 * variables, and *shown* makes a text of a value. Axes of *whole* numbers have no fractions.
 * `update(columns, summary)` takes the times in seconds and a list for each line: a value holds
 * from its time to the next one.
 */
export function chart({ title, lines, shown, whole = false, signal }) {
  const canvas = el("div", { class: "plot" });
  const words = el("p", { class: "unseen" });
  const legend = el("p", { class: "legend", "aria-hidden": "true" }, lines.map((line) => el("span", { class: "key" }, el("i", { class: `swatch ${line.dash ? "dashed" : ""} ${line.colour.slice(2)}` }), line.label)));
  const element = el("figure", { class: "chart" }, el("figcaption", {}, el("span", { text: title }), legend), canvas, words);
  let plot = null;
  let columns = null;

  const options = (width) => ({
    width,
    height: HEIGHT,
    padding: [10, 30, 0, 0],
    legend: { show: false },
    cursor: { points: { size: 7 }, drag: { x: false, y: false }, dataIdx: (drawn, _, nearest, time) => (drawn.data[0][nearest] > time ? nearest - 1 : nearest) },
    scales: { x: { time: true, range: (_, low, high) => extent(low, high) }, y: { range: (_, __, high) => [0, Math.max((high ?? 0) * 1.12, 0.1)] } },
    axes: [axis({ size: 28, incrs: TIME_STEPS, values: (_, ticks, __, ___, step) => ticks.map((tick) => clock(tick, step)) }), axis({ size: 56, values: (_, ticks) => ticks.map(shown), ...(whole ? { incrs: WHOLE_STEPS } : {}) })],
    series: [{}, ...lines.map((line) => ({
      label: line.label,
      stroke: colour(line.colour),
      fill: line.fill ? `${colour(line.colour)}22` : undefined,
      width: 1.75,
      dash: line.dash,
      paths: uPlot.paths.stepped({ align: 1, alignGaps: 1 }),
      points: { show: false },
      spanGaps: false,
    }))],
    hooks: { setCursor: [(drawn) => hover(drawn)] },
  });

  const tip = el("p", { class: "tip", hidden: true });
  const blank = el("p", { class: "blank muted", text: "No worker was at work in this time" });
  canvas.append(tip, blank);
  function hover(drawn) {
    const at = drawn.cursor.idxs?.[1];
    tip.hidden = at === null || at === undefined || columns[0][at] === undefined;
    if (tip.hidden) return;
    const values = lines.map((line, n) => `${line.label} ${columns[n + 1][at] === null ? "–" : shown(columns[n + 1][at])}`);
    setText(tip, `${new Date(columns[0][at] * 1000).toLocaleString()} · ${values.join(" · ")}`);
  }

  function extent(low, high) {
    const start = low ?? Date.now() / 1000 - SHORTEST;
    return [start, Math.max(high ?? 0, start + SHORTEST)];
  }

  function draw() {
    const width = Math.floor(canvas.clientWidth);
    if (!columns || !width) return;
    if (plot === null) {
      plot = new uPlot(options(width), columns, canvas);
    } else {
      if (plot.width !== width) plot.setSize({ width, height: HEIGHT });
      plot.setData(columns);
    }
  }
  function redraw() {
    plot?.destroy();
    plot = null;
    draw();
  }
  const watched = new ResizeObserver(draw);
  watched.observe(canvas);
  dark.addEventListener("change", redraw, { signal });
  signal.addEventListener("abort", () => {
    watched.disconnect();
    plot?.destroy();
  });

  return {
    element,
    update(news, summary) {
      columns = news;
      blank.hidden = news.slice(1).some((column) => column.some((value) => value !== null));
      setText(words, summary);
      draw();
    },
  };
}

function clock(seconds, step) {
  const time = new Date(seconds * 1000);
  if (step >= 86_400) return time.toLocaleDateString(undefined, { day: "numeric", month: "short" });
  return time.toLocaleTimeString(undefined, { hour: "2-digit", minute: "2-digit", hourCycle: "h23", ...(step < 60 ? { second: "2-digit" } : {}) });
}
