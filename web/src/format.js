// Numbers for people.

export const NONE = "–";

export function share(value) {
  return value == null ? NONE : `${(100 * value).toFixed(value < 0.0995 && value > 0 ? 1 : 0)}%`;
}

export function size(bytes) {
  if (bytes == null) return NONE;
  for (const [unit, length] of [["TiB", 2 ** 40], ["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]])
    if (bytes >= length) return `${(bytes / length).toPrecision(3)} ${unit}`;
  return `${bytes} B`;
}

export function seconds(value) {
  if (value == null) return NONE;
  if (value >= 3600) return `${(value / 3600).toFixed(1)} h`;
  return value >= 120 ? `${(value / 60).toFixed(1)} min` : `${value.toFixed(1)} s`;
}

export function short(value) {
  if (value == null) return NONE;
  return value >= 1 ? `${value.toPrecision(3)} s` : `${Number((1000 * value).toPrecision(3))} ms`;
}

export const perSecond = (bytes) => `${size(Math.round(bytes))}/s`;

export function clock(time) {
  return new Date(1000 * time).toLocaleTimeString();
}
