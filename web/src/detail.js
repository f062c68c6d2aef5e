// One group: why it runs or waits, its own history, and its limits.
import { ask } from "./api.js";
import { Chart } from "./charts.js";
import { byId, CATEGORY, colour, make } from "./dom.js";
import { share, short, size } from "./format.js";
import { Timeline } from "./timeline.js";
import { keyOf } from "./groups.js";

let open = null;

function limit(name, label, value, attributes) {
  return make("label", {}, label, make("input", { name, type: "number", value, ...attributes }));
}

function limitsForm(group, changed) {
  const said = make("div", { role: "status", "aria-live": "polite" });
  const form = make("form", { "aria-label": `Limits of ${group.name}` },
    limit("min", "Minimum, %", 100 * group.min, { min: 0, max: 100, step: "any", required: true }),
    limit("max", "Maximum, %", 100 * group.max, { min: 0, max: 100, step: "any", required: true }),
    limit("weight", "Weight", group.weight, { min: 0, step: "any", required: true }),
    make("button", { type: "submit" }, "Apply"));
  const read = () => ({ min: form.min.valueAsNumber / 100, max: form.max.valueAsNumber / 100, weight: form.weight.valueAsNumber });
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
  byId("detail").replaceChildren();
  const key = open?.key;
  open = null;
  return key;
}

export function openDetail(entry, write, changed) {
  const { group, device } = entry;
  const shares = new Chart(`${group.name}, share over time`);
  const waits = new Chart(`${group.name}, what it waited for`, { top: 1 });
  const requests = new Chart(`${group.name}, how long requests took`, { show: short });
  const asked = make("div", { hidden: "" }, make("h3", {}, "Requests"), requests.element);
  const memory = new Chart(`${group.name}, memory over time`, { show: size });
  const timeline = new Timeline(`Device ${device.index}, the last 10 s`);
  const lately = make("div", { hidden: "" },
    make("h3", {}, "The last 10 s"),
    make("p", { class: "facts" }, "blue: runs, red: waits, thin below: takes turns, thin above: a request. A drag zooms, a double click shows all."),
    timeline.element);
  const why = make("div", { role: "status" });
  const title = make("h3", { tabindex: "-1" }, device.index == null ? `${group.name}, on no device` : `${group.name} on device ${device.index}`);
  const close = make("button", { type: "button", onclick: closeDetail }, "Close");
  byId("detail").replaceChildren(make("article", { class: "card", "aria-label": `Group ${group.name}` },
    make("div", { class: "bar" }, title, close), why, lately,
    make("h3", {}, "Share"), shares.element, make("h3", {}, "Waits"), waits.element, asked, make("h3", {}, "Memory"), memory.element,
    ...(write ? limitsForm(group, changed) : [make("p", { class: "facts" }, "This page only shows: `gemlet web --write` also changes limits.")])));
  open = { key: keyOf(entry), name: group.name, device: device.uuid, timeline, lately, shares, waits, requests, asked, memory, why };
  title.focus();
}

export const opened = () => open;

export async function refreshDetail(range, points) {
  const here = open;
  if (!here) return;
  const query = new URLSearchParams({ group: here.name });
  const [explained, traced, recorded] = await Promise.all([
    ask(`/api/explain?${query}`),
    ask(`/api/trace?${query}`).catch(() => null), // no program of the group has used a device lately
    ask(`/api/history?${new URLSearchParams({ group: here.name, since: range, points })}`),
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
  here.waits.set(recorded.time, reasons.map((name, i) => ({ name: name.slice(6), colour: CATEGORY[i], values: values[name] })),
    [line("throttled by its maximum", "throttled", "bad")]);
  here.asked.hidden = !values.p99?.some((value) => value != null);
  if (!here.asked.hidden) here.requests.set(recorded.time, [], [line("99 of 100 within", "p99", "bad"), line("half within", "p50", "used")]);
  here.memory.set(recorded.time, [line("resident", "resident", "used"), line("swapped", "swapped", "borrowed")]);
}
