// The table of groups. Rows are kept, so that neither focus nor scrolling is lost when numbers change.
import { byId, make, setText } from "./dom.js";
import { NONE, seconds, share, short, size } from "./format.js";

const resident = (group) => group.memory_used - swapped(group);
const swapped = (group) => group.clients.reduce((sum, client) => sum + (client.swap?.swapped ?? 0), 0);
const waits = (group) => group.clients.some((client) => client.state === "waits");

const limit = ({ group }) => (group.memory_limit !== undefined ? group.memory_limit : group.memory);
const state = ({ group }) => (group.clients.length === 0 ? "empty" : waits(group) ? "waits" : group.clients.some((c) => c.state === "runs") ? "runs" : "idle");
const why = ({ group }) => group.reason || (group.why === "shares" ? "" : group.why);
const CLASSES = { latency: 2, normal: 1, "best-effort": 0 };

// What is read first comes first: a narrow window cuts the rest off. `tells`: whether a column says anything about any of the groups.
const COLUMNS = [
  { name: "Group", value: ({ group }) => group.name, text: true },
  { name: "Device", value: ({ device }) => device.index, tells: (all) => new Set(all.map(({ device }) => device.index).filter((index) => index !== null)).size > 1 },
  { name: "State", value: state, text: true },
  { name: "Why", value: (entry) => (why(entry) === state(entry) ? "" : why(entry)), text: true, why: true },
  { name: "Share", value: ({ group }) => group.share["10s"], show: share, meter: true, title: "of the device, over the last 10 s" },
  { name: "Min", value: ({ group }) => group.min, show: share },
  { name: "Max", value: ({ group }) => group.max, show: share },
  { name: "Class", value: ({ group }) => CLASSES[group.priority], show: (value) => Object.keys(CLASSES).find((name) => CLASSES[name] === value), tells: (all) => all.some(({ group }) => group.priority !== "normal"), words: true },
  { name: "Weight", value: ({ group }) => group.weight, wide: true, tells: (all) => all.some(({ group }) => group.weight !== 1) },
  { name: "Speed", value: ({ group }) => (group.clients.length ? group.speed : null), show: share, title: "of its programs lately, relative to their speed alone" },
  { name: "Resident", value: ({ group }) => resident(group), show: (bytes) => (bytes ? size(bytes) : NONE), title: "its memory on the device" },
  { name: "Swapped", value: ({ group }) => swapped(group), show: (bytes) => (bytes ? size(bytes) : NONE), tells: (all) => all.some(({ group }) => swapped(group)), title: "its memory on the host" },
  { name: "Limit", value: limit, show: (bytes) => (bytes == null ? NONE : size(bytes)), wide: true, tells: (all) => all.some((entry) => limit(entry) != null), title: "of its memory" },
  { name: "Throttled", value: ({ group }) => group.throttled_s, show: seconds, wide: true, tells: (all) => all.some(({ group }) => group.throttled_s >= 0.05), title: "how long its maximum made it wait since it exists" },
  { name: "P50", value: ({ group }) => group.latency?.p50_s, show: short, tells: (all) => all.some(({ group }) => group.latency), title: "half of its requests of the last minute took no longer" },
  { name: "P99", value: ({ group }) => group.latency?.p99_s, show: short, tells: (all) => all.some(({ group }) => group.latency), title: "99 of 100 requests of the last minute took no longer" },
  { name: "Programs", value: ({ group }) => group.clients.length, wide: true },
];

const classes = (column, more) => [column.wide && "wide", column.why && "why", more].filter(Boolean).join(" ") || undefined;

const rows = new Map(); // by key
let order = { column: COLUMNS.find((column) => column.meter), down: true };
let chosen = () => {};

export const keyOf = ({ device, group }) => `${device.uuid} ${group.name}`;

export function prepareGroups(choose, changed) {
  chosen = choose;
  const heads = COLUMNS.map((column) => {
    const button = make("button", { type: "button", title: column.title, onclick: () => {
      order = { column, down: order.column === column ? !order.down : !column.text };
      changed();
    } }, column.name);
    column.head = make("th", { scope: "col", class: classes(column) }, button);
    return column.head;
  });
  byId("groups").tHead.append(make("tr", {}, ...heads));
  byId("filter").addEventListener("input", changed);
}

function rowFor(entry) {
  const key = keyOf(entry);
  let row = rows.get(key);
  if (!row) {
    row = { cells: [], places: [] }; // where texts are, and their cells
    row.element = make("tr");
    for (const column of COLUMNS) {
      const first = column === COLUMNS[0];
      const cell = make(first ? "th" : "td", {
        scope: first ? "row" : undefined,
        class: classes(column, !first && !column.text && !column.words && "number"),
      });
      let text = cell;
      if (first) cell.append((text = make("button", { type: "button", dir: "auto", onclick: () => chosen(key) })));
      if (column.meter) {
        row.bar = make("span");
        row.mark = make("em");
        cell.append(make("span", { class: "meter", "aria-hidden": "true" }, row.bar, row.mark), (text = make("span")));
      }
      row.cells.push(text);
      row.places.push(cell);
      row.element.append(cell);
    }
    rows.set(key, row);
  }
  return row;
}

function fill(row, entry) {
  COLUMNS.forEach((column, i) => {
    const value = column.value(entry);
    setText(row.cells[i], value == null ? NONE : column.show ? column.show(value) : String(value));
  });
  const used = entry.group.share["10s"] ?? 0;
  row.bar.style.width = `${Math.min(100, 100 * used)}%`;
  row.bar.className = used > entry.group.min + 0.005 ? "over" : "";
  row.mark.style.left = `${Math.min(99, 100 * entry.group.min)}%`;
}

function compare(a, b) {
  const [x, y] = [order.column.value(a), order.column.value(b)];
  const sign = order.down ? -1 : 1;
  if (x == null || y == null) return (x == null) - (y == null);
  return sign * (order.column.text ? x.localeCompare(y) : x - y) || keyOf(a).localeCompare(keyOf(b));
}

// What a group is that no program uses: promised, and on no device.
const vacant = (limits) => ({
  device: { index: null, uuid: "" },
  group: { ...limits, share: {}, memory_used: 0, clients: [], throttled_s: null, speed: null, reason: "no programs", why: "" },
});

export function entriesOf(status) {
  const placed = status.devices.flatMap((device) => device.groups.map((group) => ({ device, group })));
  const names = new Set(placed.map(({ group }) => group.name));
  return [...placed, ...status.groups.filter((limits) => !names.has(limits.name)).map(vacant)];
}

// Puts the focus where a group was opened.
export const focusGroup = (key) => rows.get(key)?.cells[0].focus();

export function showGroups(status) {
  const wanted = byId("filter").value.trim().toLowerCase();
  const all = entriesOf(status);
  const shown = all
    .filter((entry) => COLUMNS.filter((column) => column.text).some((column) => column.value(entry).toLowerCase().includes(wanted)))
    .sort(compare);
  const told = COLUMNS.map((column) => !column.tells || column.tells(all));
  COLUMNS.forEach((column, i) => { column.head.hidden = !told[i]; });
  for (const column of COLUMNS)
    column.head.setAttribute("aria-sort", order.column !== column ? "none" : order.down ? "descending" : "ascending");
  const body = byId("groups").tBodies[0];
  const elements = shown.map((entry) => {
    const row = rowFor(entry);
    fill(row, entry);
    row.places.forEach((cell, i) => { cell.hidden = !told[i]; });
    return row.element;
  });
  if (elements.length !== body.children.length || elements.some((element, i) => body.children[i] !== element)) {
    const focused = body.contains(document.activeElement) ? document.activeElement : null;
    body.replaceChildren(...elements);
    focused?.focus({ preventScroll: true });
  }
  const present = new Set(all.map(keyOf));
  for (const key of rows.keys()) if (!present.has(key)) rows.delete(key);
  const waiting = all.filter(({ group }) => waits(group)).length;
  setText(byId("count"), `${shown.length} of ${all.length} shown, ${waiting} waiting now`);
}
