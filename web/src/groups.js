// The table of groups. Rows are kept, so that neither focus nor scrolling is lost when numbers change.
import { byId, make, setText } from "./dom.js";
import { NONE, seconds, share, short, size } from "./format.js";

const resident = (group) => group.memory_used - swapped(group);
const swapped = (group) => group.clients.reduce((sum, client) => sum + (client.swap?.swapped ?? 0), 0);
const waits = (group) => group.clients.some((client) => client.state === "waits");

const COLUMNS = [
  { name: "Group", value: ({ group }) => group.name, text: true },
  { name: "Device", value: ({ device }) => device.index },
  { name: "Share", value: ({ group }) => group.share["10s"], show: share, meter: true },
  { name: "Min", value: ({ group }) => group.min, show: share },
  { name: "Max", value: ({ group }) => group.max, show: share },
  { name: "Weight", value: ({ group }) => group.weight, wide: true },
  { name: "Resident", value: ({ group }) => resident(group), show: (bytes) => (bytes ? size(bytes) : NONE) },
  { name: "Swapped", value: ({ group }) => swapped(group), show: (bytes) => (bytes ? size(bytes) : NONE), wide: true },
  { name: "Throttled", value: ({ group }) => group.throttled_s, show: seconds, wide: true },
  { name: "Speed", value: ({ group }) => group.speed, show: share, title: "relative to its speed alone" },
  { name: "P50", value: ({ group }) => group.latency?.p50_s, show: short, requests: true, title: "half of its requests of the last minute took no longer" },
  { name: "P99", value: ({ group }) => group.latency?.p99_s, show: short, requests: true, title: "99 of 100 requests of the last minute took no longer" },
  { name: "Programs", value: ({ group }) => group.clients.length, wide: true },
  { name: "State", value: ({ group }) => (group.clients.length === 0 ? "empty" : waits(group) ? "waits" : group.clients.some((c) => c.state === "runs") ? "runs" : "idle"), text: true },
  { name: "Why", value: ({ group }) => group.reason || (group.why === "shares" ? "" : group.why), text: true, why: true },
];

const classes = (column, more) => [column.wide && "wide", column.why && "why", column.requests && "requests", more].filter(Boolean).join(" ") || undefined;

const rows = new Map(); // by key
let order = { column: COLUMNS[2], down: true };
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
    row = { cells: [] };
    row.element = make("tr");
    for (const column of COLUMNS) {
      const first = column === COLUMNS[0];
      const cell = make(first ? "th" : "td", {
        scope: first ? "row" : undefined,
        class: classes(column, !first && !column.text && "number"),
      });
      let text = cell;
      if (first) cell.append((text = make("button", { type: "button", onclick: () => chosen(key) })));
      if (column.meter) {
        row.bar = make("span");
        row.mark = make("em");
        cell.append(make("span", { class: "meter", "aria-hidden": "true" }, row.bar, row.mark), (text = make("span")));
      }
      row.cells.push(text);
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

export function showGroups(status) {
  const wanted = byId("filter").value.trim().toLowerCase();
  const all = entriesOf(status);
  const shown = all
    .filter((entry) => COLUMNS.filter((column) => column.text).some((column) => column.value(entry).toLowerCase().includes(wanted)))
    .sort(compare);
  byId("groups").classList.toggle("without-requests", !all.some(({ group }) => group.latency));
  for (const column of COLUMNS)
    column.head.setAttribute("aria-sort", order.column !== column ? "none" : order.down ? "descending" : "ascending");
  const body = byId("groups").tBodies[0];
  const elements = shown.map((entry) => {
    const row = rowFor(entry);
    fill(row, entry);
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
