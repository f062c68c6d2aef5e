// Charts over time. Each is drawn anew when its size or the theme changes, and has a sentence for those who cannot see it.
import uPlot from "uplot";
import { colour, make } from "./dom.js";
import { clock, share } from "./format.js";

const HEIGHT = 170;
const DRAG = 4; // pixels; what is shorter is a click
const POWERS = Array.from({ length: 50 }, (_, power) => 2 ** power); // steps of sizes, so that their ticks are whole numbers

// Adds up each series with those below it, for bands; where nothing is known nothing is drawn.
function stacked(lists) {
  const sums = [];
  let below = null;
  for (const list of lists) {
    below = list.map((value, i) => (value == null ? null : value + (below?.[i] ?? 0)));
    sums.push(below);
  }
  return sums;
}

export class Chart {
  // layers: [{name, colour, values}] stacked; lines: the same, not stacked. zoomed(from, to) when a range is chosen, clicked(at) when a moment is; bytes: what is shown are sizes. The axis
  // ends at `top`, or where the values do, at `most`: time that is charged late, all at once, makes a second of 400%.
  constructor(label, { top, most = Infinity, show = share, zoomed, clicked, bytes = false } = {}) {
    this.plot = make("div", { class: "plot", role: "img", "aria-label": label });
    this.legend = make("ul", { class: "legend" });
    this.element = make("div", {}, this.plot, this.legend);
    this.label = label;
    this.top = top;
    this.most = most;
    this.show = show;
    this.zoomed = zoomed;
    this.clicked = clicked;
    this.bytes = bytes;
    new ResizeObserver(() => this.fit()).observe(this.plot);
  }

  fit() {
    const width = this.plot.clientWidth;
    if (this.chart && width && Math.abs(width - this.chart.width) > 1) this.chart.setSize({ width, height: HEIGHT });
  }

  set(time, layers, lines = []) {
    const sums = stacked(layers.map((layer) => layer.values));
    // The highest first: each is filled down to the axis, and the next ones cover it.
    this.data = [time, ...sums.toReversed(), ...lines.map((line) => line.values)];
    const shape = JSON.stringify([...layers, ...lines].map((one) => [one.name, one.colour]));
    if (this.chart && shape === this.shape) this.chart.setData(this.data);
    else this.draw(layers, lines);
    this.shape = shape;
    this.describe(layers, lines);
  }

  draw(layers, lines) {
    this.chart?.destroy();
    const axis = { stroke: colour("dim"), grid: { stroke: colour("line"), width: 0.5 }, ticks: { stroke: colour("line") }, font: "12px system-ui" };
    this.chart = new uPlot({
      width: this.plot.clientWidth || 600,
      height: HEIGHT,
      legend: { show: false },
      padding: [null, 28, null, null], // room for half of the last time
      cursor: { drag: { x: true, y: false }, points: { show: false } },
      scales: { y: { range: (_, low, high) => [0, this.top ?? Math.min(this.most, Math.max(high || 1, 1e-3) * 1.05)] } },
      axes: [
        { ...axis, space: 70, size: 30, values: (_, ticks, number, space, step) => ticks.map((time) => clock(time, step)) },
        { ...axis, size: 88, values: (_, ticks) => ticks.map(this.show), ...(this.bytes ? { incrs: POWERS } : {}) },
      ],
      series: [
        {},
        ...layers.toReversed().map((layer) => ({ label: layer.name, stroke: layer.colour, fill: layer.colour, width: 0, points: { show: false } })),
        ...lines.map((line) => ({ label: line.name, stroke: line.colour, width: 1.5, dash: [5, 3], points: { show: false } })),
      ],
      hooks: { setSelect: [(chart) => this.select(chart)] },
    }, this.data, this.plot);
    this.chart.over.addEventListener("pointerdown", (event) => { this.pressed = event.clientX; });
    this.chart.over.addEventListener("pointerup", (event) => {
      if (Math.abs(event.clientX - this.pressed) < DRAG) this.clicked?.(this.chart.posToVal(event.offsetX, "x"));
    });
  }

  select(chart) {
    if (chart.select.width < DRAG || !this.zoomed) return;
    this.zoomed(chart.posToVal(chart.select.left, "x"), chart.posToVal(chart.select.left + chart.select.width, "x"));
  }

  describe(layers, lines) {
    const said = [...layers, ...lines].map((one) => {
      const last = one.values.findLast((value) => value != null);
      return [one, last == null ? "–" : this.show(last)];
    });
    this.plot.setAttribute("aria-label", `${this.label}: ${said.map(([one, last]) => `${one.name} ${last} now`).join(", ")}`);
    this.legend.replaceChildren(...said.map(([one, last]) => {
      const mark = make("i");
      mark.style.background = one.colour;
      return make("li", {}, mark, `${one.name} ${last}`);
    }));
  }
}
