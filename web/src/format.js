// Numbers for people.

export const NONE = "–";

export function share(value) {
  return value == null ? NONE : `${(100 * value).toFixed(value < 0.0995 && value > 0 ? 1 : 0)}%`;
}

export function size(bytes) {
  if (bytes == null) return NONE;
  for (const [unit, length] of [["TiB", 2 ** 40], ["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]])
    if (bytes >= length) return `${bytes >= 999.5 * length ? Math.round(bytes / length) : (bytes / length).toPrecision(3)} ${unit}`;
  return `${bytes} B`;
}

export function seconds(value) {
  if (value == null || value < 0.05) return NONE;
  if (value >= 3600) return `${(value / 3600).toFixed(1)} h`;
  return value >= 120 ? `${(value / 60).toFixed(1)} min` : `${value.toFixed(1)} s`;
}

export function short(value) {
  if (value == null) return NONE;
  return value >= 1 ? `${value.toPrecision(3)} s` : `${Number((1000 * value).toPrecision(3))} ms`;
}

export const perSecond = (bytes) => `${size(Math.round(bytes))}/s`;

const two = (number) => String(number).padStart(2, "0");

// Hours, minutes and seconds, as a field of type time has them; in charts without seconds, or the day, where steps are long.
export function clock(time, step = 1) {
  const at = new Date(1000 * time);
  if (step >= 86400) return `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}`;
  return `${two(at.getHours())}:${two(at.getMinutes())}${step < 60 ? `:${two(at.getSeconds())}` : ""}`;
}

// What a program is called, and whose it is.
export const called = (one) => `${one.name || one.command || "?"} (${[one.pid, one.user].filter(Boolean).join(", ")})`;

// Reasons to wait, in words.
const REASONS = {
  shares: "the device's next turn", always: "its turn", "both busy": "its turn: others keep the device busy, too", ahead: "others who were behind",
  behind: "its turn: it was behind", slowed: "requests of others", unverified: "its turn: its speed alone is not known", memory: "its memory, which is on the host",
};
export const reason = (name) => REASONS[name] ?? name;
