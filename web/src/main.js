// The page: asks for the status each second and for the history as often as its steps need, and shows both.
import { ask, host, takeToken } from "./api.js";
import { drawDevices, showDevices } from "./devices.js";
import { closeDetail, openDetail, opened, refreshDetail, showPrograms } from "./detail.js";
import { byId, make, setText } from "./dom.js";
import { called, clock, size } from "./format.js";
import { refreshHosts } from "./hosts.js";
import { refreshModels } from "./models.js";
import { entriesOf, keyOf, prepareGroups, showGroups } from "./groups.js";
import { closeMoment, lines, momentIsOpen, openMoment } from "./moment.js";
import { setMinute, showNow } from "./now.js";

const RANGES = { "5 minutes": 300, "15 minutes": 900, "1 hour": 3600, "6 hours": 21600, "1 day": 86400, "7 days": 604800, "90 days": 7776000 };
const POINTS = 240;
const MODELS_EVERY = 2000; // ms
const MINUTE_EVERY = 3000; // ms
const EVERY = 1000; // ms, for the status
let about = null; // what this page shows: {write, hosts, serving}
let latest = null;
let write = false;
let modelsDue = 0;
let minuteDue = 0; // when the last minute is judged again
let due = 0; // when the history is asked for again
let zoom = null; // {from, to} in seconds since 1970, chosen in a chart
let answered = null; // when the status came last
let step = 1; // seconds between two points of the charts

const span = () => zoom ?? { since: Number(byId("range").value) };
const again = () => Math.min(60, Math.max(2, (zoom ? zoom.to - zoom.from : span().since) / 120)) * 1000;

function say(text, bad = false) {
  setText(byId("state"), text);
  byId("state").classList.toggle("bad", bad);
}

function list(id, items, empty) {
  byId(id).replaceChildren(...(items.length ? items : [empty]).map((text) => make("li", {}, text)));
}

function show() {
  if (!latest) return;
  const { daemon } = latest;
  setText(byId("host"), `${host() ? `${host()} · ` : ""}${latest.simulated ? "SIMULATED MACHINE, not a GPU · " : ""}daemon ${daemon.pid} (${daemon.kind}), ${daemon.version}`);
  byId("stale").hidden = true;
  byId("one").classList.remove("stale");
  showNow(latest, choose);
  showDevices(latest.devices, zoomed, at);
  showGroups(latest);
  showPrograms(entriesOf(latest).find((one) => keyOf(one) === opened()?.key));
  byId("how").textContent = write
    ? "The name of a group opens why it waits, its history and programs, and its limits to change."
    : "The name of a group opens why it waits, its history and programs.";
  const idle = entriesOf(latest)
    .flatMap(({ device, group }) => group.clients.filter((one) => one.state === "idle" && one.memory_used > 0).map((one) => ({ device, group, one })))
    .map((each) => ({ ...each, away: each.one.swap?.swapped ?? 0 }))
    .sort((a, b) => b.one.memory_used - b.away - (a.one.memory_used - a.away));
  list("idle", idle.map(({ device, group, one, away }) =>
    `${called(one)} of ${group.name} holds ${size(one.memory_used - away)} on device ${device.index}${away ? `, and ${size(away)} on the host` : ""}`), "none");
  byId("events").replaceChildren(...(latest.events.length ? lines(latest.events.toReversed()) : [make("li", {}, "none")]));
}

function zoomed(from, to) {
  zoom = { from: Math.floor(from), to: Math.max(Math.ceil(to), Math.floor(from) + 5) };
  byId("range").selectedIndex = -1;
  due = 0;
  say(`showing ${clock(zoom.from)} to ${clock(zoom.to)}; choose a range to go back`);
  tick();
}

// A moment of the past, of a click in a chart or of the field.
async function at(time) {
  try {
    await openMoment(time, step, latest?.devices ?? [], (uuid, name) => choose(`${uuid} ${name}`));
  } catch (error) {
    say(error.message, true);
  }
}

// The last time that the field's hours, minutes and seconds were.
function chosenTime(text) {
  const [hours, minutes, seconds = 0] = text.split(":").map(Number);
  const then = new Date(answered ?? Date.now());
  const now = then.getTime();
  then.setHours(hours, minutes, seconds, 0);
  return (then.getTime() > now ? then.getTime() - 86400000 : then.getTime()) / 1000;
}

function choose(key) {
  const entry = entriesOf(latest).find((one) => keyOf(one) === key);
  if (!entry) return;
  openDetail(entry, write, tick, { zoomed, clicked: at });
  due = 0;
  tick();
}

let busy = false;
async function tick() {
  if (busy || document.hidden) return;
  busy = true;
  try {
    about ??= await ask("/api/page");
    byId("models-section").hidden = !about.serving;
    showHost(host());
    if (about.hosts && !host()) {
      await refreshHosts((name) => { location.hash = `host=${encodeURIComponent(name)}`; });
      say("live, only shows");
      return;
    }
    // Before the daemon is asked: a server runs without one, too.
    if (about.serving && performance.now() >= modelsDue) {
      modelsDue = performance.now() + MODELS_EVERY;
      await refreshModels();
    }
    const here = host();
    const answer = await ask("/api/status");
    if (here !== host()) return;
    latest = answer.status;
    answered = Date.now();
    write = answer.write;
    const off = latest.daemon.history;
    show();
    if (!off && performance.now() >= due) {
      due = performance.now() + again();
      const query = new URLSearchParams({ ...span(), points: POINTS, columns: "share,min,moved" });
      const recorded = await ask(`/api/history?${query}`);
      step = recorded.step_s;
      drawDevices(recorded);
      await refreshDetail(span(), POINTS);
    }
    if (!off && performance.now() >= minuteDue) {
      minuteDue = performance.now() + MINUTE_EVERY;
      setMinute((await ask("/api/minute")).groups);
      showNow(latest, choose);
    }
    if (zoom === null) say(off ? `live; no history is recorded: ${off}` : write ? "live, may change limits" : "live");
  } catch (error) {
    due = minuteDue = 0;
    say(error.message, true);
    if (answered) {
      byId("stale").textContent = `What is below is of ${clock(answered / 1000)}: nothing has answered since.`;
      byId("stale").hidden = false;
      byId("one").classList.add("stale");
    }
  } finally {
    busy = false;
  }
}

function theme(chosen) {
  if (chosen) document.documentElement.dataset.theme = chosen;
  else delete document.documentElement.dataset.theme;
  localStorage.setItem("gemlet-theme", chosen);
  due = 0;
  tick();
}

takeToken();
for (const [name, seconds] of Object.entries(RANGES)) byId("range").append(make("option", { value: seconds, selected: seconds === 300 }, name));
byId("range").addEventListener("change", () => { zoom = null; due = 0; tick(); });
byId("theme").value = localStorage.getItem("gemlet-theme") ?? "";
byId("theme").addEventListener("change", (event) => theme(event.target.value));
theme(byId("theme").value);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { due = 0; tick(); });
prepareGroups(choose, show);
byId("at").addEventListener("change", (event) => { if (event.target.value) at(chosenTime(event.target.value)); else closeMoment(); });
byId("moment-close").addEventListener("click", closeMoment);
document.addEventListener("visibilitychange", tick);
document.addEventListener("keydown", (event) => {
  if (event.key === "/" && !event.target.closest("input, select")) {
    event.preventDefault();
    byId("filter").focus();
  } else if (event.key === "Escape" && opened()) closeDetail();
  else if (event.key === "Escape" && momentIsOpen()) closeMoment();
});
// Many hosts: the one that is shown is in the address, so that the browser's own way back works.
function place() {
  showHost(host());
  closeDetail();
  closeMoment();
  setMinute([]);
  minuteDue = 0;
  answered = null;
  latest = null;
  due = 0;
  tick();
}
function showHost(name) {
  byId("hosts-section").hidden = name !== null || !about?.hosts;
  byId("one").hidden = name === null && Boolean(about?.hosts);
  byId("all").hidden = name === null;
}
addEventListener("hashchange", place);
setInterval(tick, EVERY);
tick();
