// Many hosts: a row each, those that do not answer first; a click goes to the host.
import { ask } from "./api.js";
import { byId, make, setText } from "./dom.js";
import { NONE, clock, share, size } from "./format.js";
import { showTable } from "./table.js";

const mean = (values) => (values.length ? values.reduce((sum, value) => sum + value, 0) / values.length : null);
const known = (host, name) => (host.devices ?? []).map((device) => device[name]).filter((value) => value != null);
const total = (host, name) => known(host, name).reduce((sum, value) => sum + value, 0);

const columns = (choose) => [
  { name: "Host", of: (host) => make("button", { type: "button", onclick: () => choose(host.name) }, host.name) },
  { name: "Devices", of: (host) => (host.devices ? String(host.devices.length) : NONE) },
  { name: "Busy", of: (host) => share(mean(known(host, "busy"))) },
  { name: "Groups use", of: (host) => share(mean(known(host, "share"))) },
  { name: "Memory", of: (host) => (host.devices ? `${size(total(host, "memory_used"))} of ${size(total(host, "memory_total"))}` : NONE) },
  { name: "Groups", of: (host) => String(host.groups ?? NONE) },
  { name: "Waiting", of: (host) => String(host.waiting ?? NONE) },
  { name: "Outside", of: (host) => String(host.outside ?? NONE) },
  { name: "State", text: true, of: (host) => (host.error ? make("span", { class: "bad" }, said(host)) : "answers") },
];

const said = (host) => `does not answer${host.seen ? ` since ${clock(host.seen)}` : ""}: ${host.error}`;

export async function refreshHosts(choose) {
  const { hosts } = await ask("/api/hosts");
  const silent = hosts.filter((host) => host.error);
  showTable("hosts", columns(choose), [...silent, ...hosts.filter((host) => !host.error)]);
  setText(byId("hosts-count"), `${hosts.length} hosts, ${silent.length} of them do not answer`);
}
