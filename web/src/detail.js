// One group: why it runs or waits, its own history, and its limits.
import { ask } from "./api.js";
import { Chart } from "./charts.js";
import { byId, CATEGORY, colour, make } from "./dom.js";
import { clock, NONE, reason, share, short, size } from "./format.js";
import { focusGroup, keyOf } from "./groups.js";
import { showTable } from "./table.js";
import { Timeline } from "./timeline.js";

let open = null;

const GIB = 2 ** 30;
const CLASSES = ["latency", "normal", "best-effort"];

const PROGRAMS = [
  { name: "Program", text: true, of: (one) => one.name || one.command || "?" },
  { name: "Pid", of: (one) => String(one.pid) },
  { name: "User", text: true, of: (one) => one.user || String(one.uid) },
  { name: "State", text: true, of: (one) => one.state },
  { name: "Memory", of: (one) => size(one.memory_used) },
  { name: "Swapped", of: (one) => (one.swap?.swapped ? size(one.swap.swapped) : NONE) },
  { name: "Started", of: (one) => (one.started ? clock(one.started) : NONE) },
];

export function showPrograms(entry) {
  if (!open || !entry || keyOf(entry) !== open.key) return;
  open.programs.hidden = entry.group.clients.length === 0;
  if (!open.programs.hidden) showTable("programs", PROGRAMS, entry.group.clients);
}

function limit(name, label, value, attributes) {
  return make("label", {}, label, make("input", { name, type: "number", value, ...attributes }));
}

// Sizes in GiB as people write them; bytes of a field that was not touched stay what they are.
const inGiB = (bytes) => (bytes == null ? "" : String(Number((bytes / GIB).toPrecision(6))));

function limitsForm(group, changed) {
  const held = { memory: group.memory_limit ?? group.memory ?? null, resident: group.resident_limit ?? group.resident ?? null };
  const said = make("div", { role: "status", "aria-live": "polite" });
  const form = make("form", { "aria-label": `Limits of ${group.name}` },
    limit("min", "Minimum, %", 100 * group.min, { min: 0, max: 100, step: "any", required: true }),
    limit("max", "Maximum, %", 100 * group.max, { min: 0, max: 100, step: "any", required: true }),
    limit("weight", "Weight", group.weight, { min: 0, step: "any", required: true }),
    make("label", {}, "Class", make("select", { name: "priority" }, ...CLASSES.map((name) => make("option", { selected: name === group.priority }, name)))),
    limit("memory", "Memory, GiB", inGiB(held.memory), { min: 0, step: "any", placeholder: "no limit" }),
    limit("resident", "Resident, GiB", inGiB(held.resident), { min: 0, step: "any", placeholder: "nothing moves" }),
    make("button", { type: "submit" }, "Apply"));
  // Only what was changed: who raises a limit does not take back what another has changed since.
  const FIELDS = {
    min: () => form.min.valueAsNumber / 100, max: () => form.max.valueAsNumber / 100, weight: () => form.weight.valueAsNumber, priority: () => form.priority.value,
    memory: () => (form.memory.value === "" ? "none" : Math.round(form.memory.valueAsNumber * GIB)),
    resident: () => (form.resident.value === "" ? "none" : Math.round(form.resident.valueAsNumber * GIB)),
  };
  let before = Object.fromEntries(Object.keys(FIELDS).map((name) => [name, form[name].value]));
  const read = () => Object.fromEntries(Object.entries(FIELDS).filter(([name]) => form[name].value !== before[name]).map(([name, value]) => [name, value()]));
  let timer;
  let asked = 0;
  const look = async () => {
    const number = ++asked;
    if (!form.checkValidity()) return;
    try {
      const { devices } = await ask("/api/preview", { group: group.name, limits: read() });
      if (number === asked) said.replaceChildren(...devices.map(previewOf));
    } catch (error) {
      if (number === asked) said.replaceChildren(make("p", { class: "bad" }, error.message));
    }
  };
  form.addEventListener("input", () => { clearTimeout(timer); timer = setTimeout(look, 300); });
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    clearTimeout(timer);
    asked++;
    try {
      await ask("/api/set", { group: group.name, limits: read() });
      before = Object.fromEntries(Object.keys(FIELDS).map((name) => [name, form[name].value]));
      said.replaceChildren(make("p", { class: "good" }, `The limits of ${group.name} are changed.`));
      changed();
    } catch (error) {
      said.replaceChildren(make("p", { class: "bad" }, error.message));
    }
  });
  return [make("h3", {}, "Limits"), form, said];
}

function previewOf(device) {
  const rows = device.groups.map(({ name, now, then }) => make("tr", {},
    make("th", { scope: "row" }, name), make("td", { class: "number" }, share(now)), make("td", { class: "number" }, share(then))));
  const head = make("tr", {}, ...["Group", "Now", "Then"].map((text) => make("th", { scope: "col" }, text)));
  return make("table", { class: "preview" },
    make("caption", {}, `Device ${device.index}, if all of these kept it busy (simulated)`),
    make("thead", {}, head), make("tbody", {}, ...rows));
}

export function closeDetail() {
  const here = byId("detail").contains(document.activeElement) ? open?.key : null;
  byId("detail").replaceChildren();
  open = null;
  if (here) focusGroup(here); // where the keyboard was before
}

// chart: what all charts of the page do at a drag and a click.
export function openDetail(entry, write, changed, chart) {
  const { group, device } = entry;
  const shares = new Chart(`${group.name}, share over time`, { most: 1, ...chart });
  const waits = new Chart(`${group.name}, what it waited for`, { top: 1, ...chart });
  const requests = new Chart(`${group.name}, how long requests took`, { show: short, ...chart });
  const asked = make("div", { hidden: "" }, make("h3", {}, "Requests"), requests.element);
  const memory = new Chart(`${group.name}, memory over time`, { show: size, bytes: true, ...chart });
  const timeline = new Timeline(`Device ${device.index}, the last 10 s`);
  const lately = make("div", { hidden: "" },
    make("h3", {}, "The last 10 s"),
    make("p", { class: "facts" }, "blue: runs, red: waits, thin below: takes turns, thin above: a request. A drag zooms, a double click shows all."),
    timeline.element);
  const programs = make("div", { hidden: "" }, make("h3", {}, "Programs"),
    make("div", { class: "scroll", role: "group", "aria-label": "Table of programs", tabindex: "0" },
      make("table", { id: "programs" }, make("caption", { class: "hidden" }, `Programs of ${group.name}`), make("thead"), make("tbody"))));
  const why = make("div", { role: "status" });
  const title = make("h3", { tabindex: "-1" }, device.index == null ? `${group.name}, on no device` : `${group.name} on device ${device.index}`);
  const close = make("button", { type: "button", onclick: closeDetail }, "Close");
  byId("detail").replaceChildren(make("article", { class: "card", "aria-label": `Group ${group.name}` },
    make("div", { class: "bar" }, title, close), why, ...(write ? limitsForm(group, changed) : [make("p", { class: "facts" }, "This page only shows: `gemlet web --write` also changes limits.")]), programs, lately,
    make("h3", {}, "Share"), shares.element, make("h3", {}, "Waits"), waits.element, asked, make("h3", {}, "Memory"), memory.element));
  open = { key: keyOf(entry), name: group.name, device: device.uuid, timeline, lately, shares, waits, requests, asked, memory, why, programs };
  showPrograms(entry);
  title.focus();
}

export const opened = () => open;

// span: the part of the history that the page shows.
export async function refreshDetail(span, points) {
  const here = open;
  if (!here) return;
  const query = new URLSearchParams({ group: here.name });
  const [explained, traced, recorded] = await Promise.all([
    ask(`/api/explain?${query}`),
    here.programs.hidden ? null : ask(`/api/trace?${query}`).catch(() => null), // no program of the group has used a device lately
    ask(`/api/history?${new URLSearchParams({ group: here.name, ...span, points })}`),
  ]);
  if (open !== here) return;
  here.why.replaceChildren(
    make("ul", {}, ...explained.lines.map((line) => make("li", {}, line))),
    ...(explained.hint ? [make("p", {}, "hint: ", make("code", {}, explained.hint))] : []));
  here.lately.hidden = !traced;
  if (traced && !here.timeline.range) here.timeline.set(traced);
  const values = recorded.series.find((one) => one.device === here.device)?.values ?? {};
  const nothing = recorded.time.map(() => null);
  const line = (name, of, kind) => ({ name, colour: colour(kind), values: values[of] ?? nothing });
  here.shares.set(recorded.time, [line("used", "share", "used")],
    [line("minimum", "min", "promised"), line("due", "target", "borrowed"), line("speed", "speed", "good")]);
  const reasons = Object.keys(values).filter((name) => name.startsWith("waits "));
  here.waits.set(recorded.time, reasons.map((name, i) => ({ name: reason(name.slice(6)), colour: CATEGORY[i], values: values[name] })),
    [line("throttled by its maximum", "throttled", "bad")]);
  here.asked.hidden = !values.p99?.some((value) => value != null);
  if (!here.asked.hidden) here.requests.set(recorded.time, [], [line("99 of 100 within", "p99", "bad"), line("half within", "p50", "used")]);
  here.memory.set(recorded.time, [line("resident", "resident", "used"), line("swapped", "swapped", "borrowed")]);
}
