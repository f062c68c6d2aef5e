// One moment of the past: what each group used, what it waited for, and what happened about then.
import { ask } from "./api.js";
import { byId, make } from "./dom.js";
import { clock, NONE, perSecond, reason, share, size } from "./format.js";
import { showTable } from "./table.js";

const AROUND = 15; // seconds of events before and after
const POINTS = 1000; // of the part that is asked for: its finest steps
const MOST_EVENTS = 40;

let shown = null;

function waited(values) {
  const parts = Object.entries(values).filter(([name, part]) => name.startsWith("waits ") && part >= 0.005)
    .map(([name, part]) => [part, reason(name.slice(6))]);
  if (values.throttled >= 0.005) parts.push([values.throttled, "its maximum"]);
  return parts.sort(([a], [b]) => b - a).map(([part, why]) => `${share(part)} for ${why}`).join("; ") || NONE;
}

const COLUMNS = [
  { name: "Group", text: true, of: (row) => make("button", { type: "button", onclick: () => row.choose(row) }, row.group) },
  { name: "Device", of: (row) => row.index },
  { name: "Used", of: (row) => share(row.values.share) },
  { name: "Min", of: (row) => share(row.values.min) },
  { name: "Max", of: (row) => share(row.values.max) },
  { name: "Waited", text: true, of: (row) => waited(row.values) },
  { name: "Resident", of: (row) => size(row.values.resident) },
  { name: "Swapped", of: (row) => (row.values.swapped ? size(row.values.swapped) : NONE) },
  { name: "Moved", of: (row) => (row.values.moved ? perSecond(row.values.moved) : NONE) },
  { name: "P99", of: (row) => (row.values.p99 == null ? NONE : `${(1000 * row.values.p99).toPrecision(3)} ms`) },
];

// What is called several times in a row stands there once, with how often.
export function lines(events) {
  const kept = [];
  for (const one of events) {
    const text = [one.kind, one.group, one.command, one.text].filter(Boolean).join(" · ");
    const last = kept.find((each) => each.text === text);
    if (last) last.times += 1;
    else kept.push({ text, time: one.time, times: 1 });
  }
  return kept.map(({ text, time, times }) => make("li", {}, make("time", {}, clock(time)), ` ${text}${times > 1 ? ` · ${times} times` : ""}`));
}

export function closeMoment() {
  shown = null;
  byId("moment").hidden = true;
  byId("at").value = "";
}

export const momentIsOpen = () => shown !== null;

// at: seconds since 1970; step: how long an interval of the charts is; devices: of the status; choose(uuid, group).
export async function openMoment(at, step, devices, choose) {
  const asked = (shown = Math.round(at));
  const width = Math.max(AROUND, step);
  const [recorded, events] = await Promise.all([
    ask(`/api/history?${new URLSearchParams({ from: at - width, to: at + width, points: POINTS })}`),
    ask(`/api/events?${new URLSearchParams({ from: at - width, to: at + width })}`),
  ]);
  if (shown !== asked) return;
  byId("moment").hidden = false;
  byId("at").value = clock(at);
  const place = recorded.time.reduce((best, time, i) => (Math.abs(time - at) < Math.abs(recorded.time[best] - at) ? i : best), 0);
  const indices = new Map(devices.map((device) => [device.uuid, device.index]));
  const rows = recorded.series
    .filter((one) => one.group !== null && one.values.share?.[place] != null)
    .map((one) => ({
      group: one.group, uuid: one.device, index: indices.get(one.device) ?? NONE, choose: () => choose(one.device, one.group),
      values: Object.fromEntries(Object.entries(one.values).map(([name, values]) => [name, values[place]])),
    }))
    .sort((a, b) => b.values.share - a.values.share);
  const busy = recorded.series.filter((one) => one.group === null && one.values.busy?.[place] != null)
    .map((one) => `device ${indices.get(one.device) ?? one.device} ${share(one.values.busy[place])} busy`);
  const when = recorded.time.length ? recorded.time[place] : at;
  byId("moment-title").textContent = `At ${clock(when)}`;
  byId("moment-said").textContent = rows.length ? `a mean of ${recorded.step_s} s: ${busy.join(", ")}` : "nothing was recorded then";
  showTable("moment-groups", COLUMNS, rows);
  byId("moment-groups").parentElement.hidden = rows.length === 0;
  const list = lines(events.slice(-MOST_EVENTS));
  byId("moment-events").replaceChildren(...(list.length ? list : [make("li", {}, "none")]));
  byId("moment-around").textContent = `Events from ${clock(at - width)} to ${clock(at + width)}`;
}
