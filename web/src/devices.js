// A lane for each device: what was promised, what was used of it, and what was borrowed, over time.
import { Chart } from "./charts.js";
import { byId, CATEGORY, colour, make } from "./dom.js";
import { perSecond, share, size } from "./format.js";

const SWAPPERS = 5; // groups with a band of their own
const lanes = new Map(); // by UUID

function facts(device) {
  const idle = device.utilization == null ? [] : [["busy", share(device.utilization)]];
  const away = device.groups.flatMap((group) => group.clients).reduce((sum, client) => sum + (client.swap?.swapped ?? 0), 0);
  const all = [
    ...idle,
    ["groups use", share(device.share["10s"])],
    ["memory", `${size(device.memory_used)} of ${size(device.memory_total)}`],
    ...(away ? [["on the host", size(away)]] : []),
    ...(device.power == null ? [] : [["power", `${Math.round(device.power)} W`]]),
    ...(device.temperature == null ? [] : [["temperature", `${Math.round(device.temperature)} °C`]]),
    ["policy", device.policy],
  ];
  return all.map(([name, value]) => make("span", {}, `${name} `, make("b", {}, value)));
}

export function showDevices(devices, zoomed, clicked) {
  for (const device of devices) {
    let lane = lanes.get(device.uuid);
    if (!lane) {
      const chart = new Chart(`Device ${device.index}, shares over time`, { top: 1, zoomed, clicked });
      lane = { chart, title: make("h3", { title: device.uuid }), facts: make("p", { class: "facts" }) };
      lane.swap = new Chart(`Device ${device.index}, memory moved between device and host`, { show: perSecond, zoomed, clicked, bytes: true });
      lane.moved = make("div", { class: "moved", hidden: "" }, make("h4", {}, "Swap traffic"), lane.swap.element);
      lane.element = make("article", { class: "card", "data-device": device.index }, lane.title, lane.facts, chart.element, lane.moved);
      lanes.set(device.uuid, lane);
      byId("devices").append(lane.element);
    }
    lane.title.textContent = `${device.index}: ${device.name || device.uuid}`;
    lane.facts.replaceChildren(...facts(device));
  }
  for (const [uuid, lane] of lanes)
    if (!devices.some((device) => device.uuid === uuid)) {
      lane.element.remove();
      lanes.delete(uuid);
    }
}

// The parts of each moment: used of the promised, borrowed beyond it, and the sum of the promises.
export function parts(series, length) {
  const own = Array(length).fill(null);
  const borrowed = Array(length).fill(null);
  const promised = Array(length).fill(null);
  for (const { share: used, min } of series.map((one) => one.values))
    for (let i = 0; i < length; i++) {
      if (used?.[i] == null) continue;
      const floor = min?.[i] ?? 0;
      own[i] += Math.min(used[i], floor);
      borrowed[i] += Math.max(0, used[i] - floor);
      promised[i] += floor;
    }
  return { own, borrowed, promised };
}

// By group, those that moved most first; nothing where nobody did.
function showSwaps(lane, time, series) {
  lane.moved.hidden = series.length === 0;
  if (lane.moved.hidden) return;
  const sum = (one) => one.values.moved.reduce((all, bytes) => all + (bytes ?? 0), 0);
  const sorted = series.toSorted((a, b) => sum(b) - sum(a));
  const named = sorted.slice(0, SWAPPERS).map((one, i) => ({ name: one.group, colour: CATEGORY[i], values: one.values.moved }));
  const rest = sorted.slice(SWAPPERS);
  if (rest.length)
    named.push({ name: `${rest.length} others`, colour: colour("dim"), values: time.map((_, i) => rest.reduce((all, one) => all + (one.values.moved[i] ?? 0), 0)) });
  lane.swap.set(time, named);
}

export function drawDevices(recorded) {
  for (const [uuid, lane] of lanes) {
    const series = recorded.series.filter((one) => one.device === uuid && one.group !== null);
    const { own, borrowed, promised } = parts(series, recorded.time.length);
    lane.chart.set(
      recorded.time,
      [
        { name: "used of the promised", colour: colour("used"), values: own },
        { name: "borrowed", colour: colour("borrowed"), values: borrowed },
      ],
      [{ name: "promised", colour: colour("promised"), values: promised }],
    );
    showSwaps(lane, recorded.time, series.filter((one) => one.values.moved?.some((bytes) => bytes > 0)));
  }
}
