// The models of a `gemlet serve`: how fast requests come and are answered, and where the plan has them.
import { ask } from "./api.js";
import { byId, setText } from "./dom.js";
import { NONE, share, short } from "./format.js";
import { showTable } from "./table.js";

const rate = (value) => (value == null ? NONE : `${Number(value.toPrecision(3))}/s`);
const sum = (row, name) => row.places.reduce((all, place) => all + (place[name] ?? 0), 0);

const COLUMNS = [
  { name: "Model", of: (row) => `${row.model} ${row.version}` },
  { name: "Rate", of: (row) => rate(row.rate) },
  { name: "Planned", of: (row) => rate(sum(row, "rate") || null) }, // 0: a plan without rates, such as the first one
  { name: "In time", of: (row) => share(row.attained) },
  { name: "SLO", of: (row) => (row.places.length ? short(row.places[0].slo_ms / 1000) : NONE) },
  { name: "P50", of: (row) => short(row.p50_s) },
  { name: "P99", of: (row) => short(row.p99_s) },
  { name: "Waiting", of: (row) => String(row.waiting) },
  { name: "Where", text: true, of: (row) => row.places.map((place) => `GPU ${place.gpu}: ${share(place.sm)}, batch ${place.batch}`).join("; ") || "not in the plan" },
];

export async function refreshModels() {
  try {
    const { models, seconds } = await ask("/api/models");
    showTable("models", COLUMNS, models);
    setText(byId("models-state"), seconds ? `over the last ${Math.round(seconds)} s` : "");
  } catch (error) {
    setText(byId("models-state"), error.message);
  }
}
