// Pictures: bars, the timeline of versions, and which backends keep what. Each has words beside it that say the same.

import { h, svg } from "./dom.js";
import { ago, day, percent, size } from "./words.js";

/** A bar of parts of a whole, each `[part, class]`. `label` says what it shows. */
export function bar(parts, label, colour = "") {
  let at = 0;
  const drawn = parts.map(([part, kind]) => {
    const width = Math.max(0, Math.min(100 - at, part * 100));
    const rect = svg("rect", { class: kind, x: at, y: 0, width, height: 10 });
    at += width;
    return rect;
  });
  return svg("svg", { class: `bar ${colour}`, viewBox: "0 0 100 10", preserveAspectRatio: "none", role: "img", "aria-label": label }, drawn);
}

/** What a backend holds of what may go there. `asked`: whether it was asked how much room it has. */
export function room(backend, { asked = true } = {}) {
  const used = backend.used ?? 0;
  const whole = backend.limit ?? backend.total ?? (backend.free === null ? null : used + backend.free);
  if (!whole) return h("p", { class: "small quiet" }, `${size(backend.used)} used.${asked ? " It does not tell how much room it has." : ""}`);
  const others = backend.total && backend.free !== null && backend.limit === null ? Math.max(0, backend.total - backend.free - used) : 0;
  const tight = (used + others) / whole;
  const told = backend.limit === null ? `${size(used)} used, ${size(backend.free)} free` : `${size(used)} of ${size(whole)} promised`;
  return h("div", { class: "meter" },
    bar([[used / whole, "used"], [others / whole, "other"]], told, tight > 0.97 ? "bad" : tight > 0.9 ? "warn" : ""),
    h("p", { class: "small quiet" }, told, others ? `, ${size(others)} of other things` : ""));
}

const TONES = 6;

/** A class for each name: colours tell devices and backends apart, beside their names. */
export function tones(names) {
  return new Map(names.map((name, n) => [name, `tone${(n % TONES) + 1}`]));
}

const WIDTH = 760;
const LANE = 34;
const LEFT = 118;

/** Versions over time, a lane a device. `href(version)`: where a dot leads. */
export function timeline(items, href) {
  const dated = items.filter((i) => i.version && i.time && i.device);
  if (dated.length < 2) return null;
  const devices = [...new Set(dated.map((i) => i.device))].sort();
  const colours = tones(devices);
  const times = dated.map((i) => i.time);
  const [first, last] = [Math.min(...times), Math.max(...times)];
  const x = (time) => LEFT + 14 + ((time - first) / Math.max(1, last - first)) * (WIDTH - LEFT - 28);
  const y = (device) => 18 + devices.indexOf(device) * LANE;
  const height = devices.length * LANE + 26;
  const lanes = devices.map((device) => [
    svg("line", { class: "lane", x1: LEFT, x2: WIDTH - 4, y1: y(device), y2: y(device) }),
    svg("text", { x: 0, y: y(device) + 4 }, device.length > 15 ? `${device.slice(0, 14)}…` : device, svg("title", {}, device)),
  ]);
  const dots = [...dated].reverse().map((i) =>
    svg("a", { href: href(i.version), "aria-label": `Version ${i.version}, ${i.device}, ${ago(i.time)}${i.message ? `: ${i.message}` : ""}` },
      svg("circle", { class: `dot ${colours.get(i.device)}`, cx: x(i.time).toFixed(1), cy: y(i.device), r: 7 }),
      svg("title", {}, `Version ${i.version} · ${i.device} · ${ago(i.time)}${i.message ? ` · ${i.message}` : ""}`)));
  const edge = (time, anchor, at) => svg("text", { x: at, y: height - 4, "text-anchor": anchor }, day(time));
  return svg("svg", { class: "timeline", viewBox: `0 0 ${WIDTH} ${height}`, role: "group", "aria-label": "Versions over time, by device" },
    lanes, dots, edge(first, "start", LEFT), day(first) !== day(last) && edge(last, "end", WIDTH - 4));
}

/** Which backends keep the same data, how much of it: a row a backend, a block where it keeps a part. */
export function weave(together, backends) {
  const colours = tones(backends);
  const row = 30;
  const left = 130;
  const rows = backends.map((name, n) => {
    let at = left;
    const blocks = together.map((part) => {
      const width = part.share * (WIDTH - left);
      const here = part.backends.includes(name)
        ? svg("rect", { class: colours.get(name), x: at + 1, y: n * row + 4, width: Math.max(0, width - 2), height: row - 10, rx: 3 })
        : null;
      at += width;
      return here;
    });
    return [
      svg("rect", { class: "track", x: left, y: n * row + 4, width: WIDTH - left, height: row - 10, rx: 3 }),
      blocks.filter(Boolean),
      svg("text", { x: 0, y: n * row + 20 }, name.length > 17 ? `${name.slice(0, 16)}…` : name),
    ];
  });
  const told = together.map((part) => `${percent(part.share)} on ${part.backends.join(" and ")}`).join("; ");
  return svg("svg", { class: "weave", viewBox: `0 0 ${WIDTH} ${backends.length * row}`, role: "img", "aria-label": `Where the data lie: ${told}` }, rows);
}

/** A QR code from rows of 0 and 1, with its quiet zone. */
export function qr(rows, label) {
  const edge = 4;
  const side = rows.length + 2 * edge;
  const d = rows.flatMap((line, y) => [...line].map((cell, x) => (cell === "1" ? `M${x + edge} ${y + edge}h1v1h-1z` : ""))).join("");
  return svg("svg", { class: "qr", viewBox: `0 0 ${side} ${side}`, role: "img", "aria-label": label, "shape-rendering": "crispEdges" }, svg("path", { d }));
}
