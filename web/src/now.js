// The page's answers in sentences: who uses the device, who is held back and why, whether promises are kept, and what else matters.
import { byId, make } from "./dom.js";
import { called, NONE, reason, share, size } from "./format.js";
import { entriesOf, keyOf } from "./groups.js";

const MOST = 4; // groups that a sentence names
const HELD = 0.01; // part of the minute; less is the length of a turn

let minute = []; // by group and device, of the last minute
export const setMinute = (rows) => { minute = rows; };

// What held a group back: its own maximum apart from what else it waited for.
export function heldBack(row) {
  const parts = Object.entries(row.waited).map(([name, part]) => [part, reason(name)]);
  parts.push([row.throttled, "its maximum"]);
  return parts.filter(([part]) => part >= HELD).sort(([a], [b]) => b - a);
}

export function broken(row) {
  if (row.short) return `${share(row.short)} short of its minimum, of which ${share(row.owed)} was due`;
  return row.over ? `${share(row.over)} over its maximum` : null;
}

export const ofMinute = (device, name) => minute.find((row) => row.device === device.uuid && row.group === name);

function sentence(items, empty, choose) {
  if (!items.length) return [empty];
  const named = items.slice(0, MOST).flatMap(({ entry, text }, i) => [
    i ? "; " : "",
    entry ? make("button", { type: "button", class: "link", onclick: () => choose(keyOf(entry)) }, entry.group.name) : "",
    entry ? ` ${text}` : text,
  ]);
  return items.length > MOST ? [...named, `; and ${items.length - MOST} more`] : named;
}

export function showNow(status, choose) {
  const all = entriesOf(status).filter(({ device }) => device.index != null);
  const several = status.devices.length > 1;
  const on = ({ device }) => (several ? ` of device ${device.index}` : "");
  const used = all.filter(({ group }) => (group.share["10s"] ?? 0) >= 0.005)
    .sort((a, b) => b.group.share["10s"] - a.group.share["10s"])
    .map((entry) => ({ entry, text: `${share(entry.group.share["10s"])}${on(entry)}` }));
  const known = all.map((entry) => ({ entry, row: ofMinute(entry.device, entry.group.name) })).filter(({ row }) => row);
  const held = known.map(({ entry, row }) => ({ entry, parts: heldBack(row) }))
    .filter(({ parts }) => parts.length)
    .sort((a, b) => b.parts[0][0] - a.parts[0][0])
    .map(({ entry, parts }) => ({ entry, text: `${share(parts[0][0])} of the time: ${parts[0][1]}` }));
  const promised = known.filter(({ entry: { group } }) => group.min > 0 || group.max < 1);
  const failed = promised.filter(({ row }) => broken(row)).sort((a, b) => b.row.short + b.row.over - a.row.short - a.row.over).map(({ entry, row }) => ({ entry, text: broken(row) }));
  const away = all.map((entry) => ({ entry, bytes: entry.group.clients.reduce((sum, one) => sum + (one.swap?.swapped ?? 0), 0) }))
    .filter(({ bytes }) => bytes)
    .sort((a, b) => b.bytes - a.bytes)
    .map(({ entry, bytes }) => ({ entry, text: size(bytes) }));
  const outside = status.outside.map((one) => ({ text: `${called(one)} on device ${one.device}${one.memory ? `, ${size(one.memory)}` : ""}` }));
  outside.push(...status.unmanaged.filter((one) => one.state !== "joined").map((one) => ({ text: `${called(one)} of group ${one.group || "?"} is ${one.state}: ${one.why}` })));
  const kept = promised.length ? `all kept: minima and maxima of ${promised.length} group${promised.length > 1 ? "s" : ""}` : "no group has a minimum or a maximum";
  const facts = [
    ["Use the device, last 10 s", sentence(used, "nobody", choose)],
    ["Held back, last minute", sentence(held, "nobody", choose)],
    ["Promises, last minute", known.length ? sentence(failed, kept, choose) : [NONE], failed.length > 0],
    ["Memory on the host", sentence(away, "none", choose)],
    ["Outside gemlet", sentence(outside, "none"), outside.length > 0],
  ];
  const focused = byId("now").contains(document.activeElement) ? document.activeElement.textContent : null;
  byId("now").replaceChildren(...facts.flatMap(([name, said, bad]) => [make("dt", {}, name), make("dd", { class: bad ? "bad" : undefined }, ...said)]));
  if (focused) [...byId("now").querySelectorAll("button")].find((button) => button.textContent === focused)?.focus({ preventScroll: true });
}
