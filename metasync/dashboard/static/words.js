// Sizes, times and numbers in words.

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB"];

export function size(bytes) {
  if (bytes === null || bytes === undefined) return "–";
  let value = bytes;
  let unit = 0;
  while (value >= 1024 && unit < UNITS.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${unit && value < 100 ? value.toFixed(1) : Math.round(value)} ${UNITS[unit]}`;
}

export function count(n, one, many = `${one}s`) {
  return `${n.toLocaleString("en")} ${n === 1 ? one : many}`;
}

const STEPS = [
  [60, "minute"],
  [3600, "hour"],
  [86400, "day"],
];

/** How long ago a time (seconds since 1970) was, in the largest unit; what lies far back by its day. */
export function ago(time, now = Date.now() / 1000) {
  if (time === null || time === undefined) return "never";
  const passed = now - time;
  if (passed > -300 && passed < 60) return "just now";
  let told = null;
  for (const [unit, name] of STEPS) {
    const n = Math.floor(passed / unit);
    if (n >= 1 && passed < 14 * 86400) told = `${count(n, name)} ago`;
  }
  return told ?? `on ${day(time)}`;
}

export function day(time) {
  return new Date(time * 1000).toLocaleDateString("en-GB", { day: "numeric", month: "short", year: "numeric" });
}

export function moment(time) {
  if (time === null || time === undefined) return "–";
  const options = { day: "numeric", month: "short", year: "numeric", hour: "2-digit", minute: "2-digit" };
  return new Date(time * 1000).toLocaleString("en-GB", options);
}

export function percent(part) {
  return part === null || part === undefined ? "–" : `${Math.round(part * 100)} %`;
}

export function listed(names) {
  if (names.length < 2) return names.join("");
  return `${names.slice(0, -1).join(", ")} and ${names[names.length - 1]}`;
}

export function sentence(text) {
  const full = text.charAt(0).toUpperCase() + text.slice(1);
  return !full || /[.!?:]$/.test(full) ? full : `${full}.`;
}
