// The page: asks for the status each second and for the history as often as its steps need, and shows both.
import { ask, host, takeToken } from "./api.js";
import { drawDevices, showDevices } from "./devices.js";
import { closeDetail, openDetail, opened, refreshDetail } from "./detail.js";
import { byId, make, setText } from "./dom.js";
import { clock, size } from "./format.js";
import { refreshHosts } from "./hosts.js";
import { refreshModels } from "./models.js";
import { entriesOf, keyOf, prepareGroups, showGroups } from "./groups.js";

const RANGES = { "5 minutes": 300, "15 minutes": 900, "1 hour": 3600, "6 hours": 21600, "1 day": 86400, "7 days": 604800, "90 days": 7776000 };
const POINTS = 240;
const EVERY = 1000; // ms, for the status
let about = null; // what this page shows: {write, hosts, serving}
let latest = null;
let write = false;
let due = 0; // when the history is asked for again
let zoom = null; // seconds, chosen in a chart

const range = () => zoom ?? Number(byId("range").value);
const again = () => Math.min(60, Math.max(2, range() / 120)) * 1000;

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
  showDevices(latest.devices, zoomed);
  showGroups(latest);
  const idle = entriesOf(latest)
    .flatMap(({ device, group }) => group.clients.filter((one) => one.state === "idle" && one.memory > 0).map((one) => ({ device, group, one })))
    .sort((a, b) => b.one.memory - a.one.memory);
  list("idle", idle.map(({ device, group, one }) => `${one.command || "?"} (${one.pid}) of ${group.name} holds ${size(one.memory)} on device ${device.index}`), "none");
  list("outside", latest.outside.map((one) => `${one.command || "?"} (${one.pid}) on device ${one.device}`), "none");
  byId("outside").parentElement.hidden = latest.outside.length === 0;
  list("events", latest.events.toReversed().map((one) => `${clock(one.time)} ${one.kind} ${[one.group, one.command, one.text].filter(Boolean).join(" · ")}`), "none");
}

function zoomed(from) {
  zoom = Math.max(60, Math.ceil(Date.now() / 1000 - from));
  byId("range").selectedIndex = -1;
  due = 0;
  say(`showing since ${clock(from)}; choose a range to go back`);
  tick();
}

function choose(key) {
  const entry = entriesOf(latest).find((one) => keyOf(one) === key);
  if (!entry) return;
  openDetail(entry, write, tick);
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
    const here = host();
    const answer = await ask("/api/status");
    if (here !== host()) return;
    latest = answer.status;
    write = answer.write;
    show();
    if (performance.now() >= due) {
      due = performance.now() + again();
      const query = new URLSearchParams({ since: range(), points: POINTS, columns: "share,min,moved" });
      drawDevices(await ask(`/api/history?${query}`));
      if (about.serving) await refreshModels();
      await refreshDetail(range(), POINTS);
    }
    const off = latest.daemon.history;
    if (zoom === null) say(off ? `live; no history is recorded: ${off}` : write ? "live, may change limits" : "live");
  } catch (error) {
    due = 0;
    say(error.message, true);
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
document.addEventListener("visibilitychange", tick);
document.addEventListener("keydown", (event) => {
  if (event.key === "/" && !event.target.closest("input, select")) {
    event.preventDefault();
    byId("filter").focus();
  } else if (event.key === "Escape" && opened()) closeDetail();
});
// Many hosts: the one that is shown is in the address, so that the browser's own way back works.
function place() {
  showHost(host());
  closeDetail();
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
