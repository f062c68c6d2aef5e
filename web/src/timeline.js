// The last seconds of a device: which program ran, which waited, and since when they take turns. A drag zooms.
import { colour, make } from "./dom.js";

const ROW = 26;
const NAMES = 150;
const KINDS = { runs: "used", waits: "bad", drains: "dim", turns: "promised", request: "good", away: "borrowed" };
const HEIGHTS = { runs: [3, 12], waits: [7, 4], drains: [15, 3], turns: [20, 3], request: [0, 3], away: [7, 4] }; // from the top of a row

// The beginning of a name that is too long.
function fitted(pen, name) {
  let shown = name;
  while (shown && pen.measureText(shown).width > NAMES - 8) shown = `${[...shown].slice(0, -2).join("")}…`;
  return shown;
}

export class Timeline {
  constructor(label) {
    this.label = label;
    this.canvas = make("canvas", { class: "timeline", role: "img", "aria-label": label });
    this.said = make("p", { class: "facts", role: "status" });
    this.element = make("div", {}, this.canvas, this.said);
    this.range = null;
    this.canvas.addEventListener("pointerdown", (event) => { this.from = this.at(event); });
    this.canvas.addEventListener("pointerup", (event) => this.zoom(this.at(event)));
    this.canvas.addEventListener("dblclick", () => { this.range = null; this.draw(); });
    this.canvas.addEventListener("pointermove", (event) => this.tell(event));
    new ResizeObserver(() => this.draw()).observe(this.canvas);
  }

  // rows: [{name, spans: [[kind, from, to, text]]}], times in ms; length: of the whole.
  set({ rows, length_ms: length }) {
    this.rows = rows;
    this.length = length;
    this.draw();
    const part = (row, kind) => Math.round((100 * row.spans.filter((one) => one[0] === kind).reduce((sum, one) => sum + one[2] - one[1], 0)) / length);
    this.canvas.setAttribute("aria-label", `${this.label}: ${rows.map((row) => `${row.name} ran ${part(row, "runs")}%, waited ${part(row, "waits")}%`).join("; ")}`);
  }

  get view() { return this.range ?? [0, this.length]; }

  at(event) {
    const [from, to] = this.view;
    const x = event.offsetX - NAMES;
    return from + (Math.max(0, x) / Math.max(1, this.canvas.clientWidth - NAMES)) * (to - from);
  }

  zoom(to) {
    const [from, end] = [Math.min(this.from, to), Math.max(this.from, to)];
    if (end - from > (this.view[1] - this.view[0]) / 200) this.range = [from, end];
    this.draw();
  }

  tell(event) {
    if (!this.rows) return;
    const at = this.at(event);
    const row = this.rows[Math.floor(event.offsetY / ROW)];
    const found = row?.spans.filter((one) => one[1] <= at && at <= one[2]).map(([kind, from, to, text]) => `${kind === "turns" ? text : `${kind} ${(to - from).toFixed(1)} ms${text ? ` (${text})` : ""}`}`);
    this.said.textContent = row ? `${row.name}, ${(at / 1000).toFixed(3)} s: ${found.join("; ") || "idle"}` : "";
  }

  draw() {
    if (!this.rows) return;
    const width = this.canvas.clientWidth || 800;
    const scale = window.devicePixelRatio || 1;
    const height = ROW * this.rows.length + 18;
    this.canvas.width = width * scale;
    this.canvas.height = height * scale;
    this.canvas.style.height = `${height}px`;
    const pen = this.canvas.getContext("2d");
    pen.scale(scale, scale);
    pen.font = "12px system-ui";
    const [from, to] = this.view;
    const x = (ms) => NAMES + ((ms - from) / (to - from)) * (width - NAMES);
    this.rows.forEach((row, i) => {
      pen.fillStyle = colour("text");
      pen.fillText(fitted(pen, row.name), 0, ROW * i + 14);
      for (const [kind, begin, end] of row.spans) {
        if (end < from || begin > to) continue;
        const [top, thick] = HEIGHTS[kind];
        const left = Math.max(NAMES, x(begin));
        pen.fillStyle = colour(KINDS[kind]);
        pen.fillRect(left, ROW * i + top, Math.max(0.5, x(end) - left), thick);
      }
    });
    pen.fillStyle = colour("dim");
    const steps = width - NAMES < 400 ? 2 : 4; // as many times as have room
    for (let n = 0; n <= steps; n++) {
      const ms = from + (n / steps) * (to - from);
      pen.fillText(`${(ms / 1000).toFixed(to - from < 1000 ? 3 : 1)} s`, Math.min(x(ms), width - 44), height - 4);
    }
  }
}
