// Elements from plain values. What is shown is always a text node: names of files, devices and backends are other
// people's, and become no markup here.

const SVG = "http://www.w3.org/2000/svg";

function filled(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "value" && "value" in node) node.value = value;
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  node.append(...children.flat(9).filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

/** An HTML element. `on...` attributes are listeners; children are nodes or texts, null is left out. */
export function h(name, attributes, ...children) {
  return filled(document.createElement(name), attributes, children);
}

/** An SVG element. */
export function svg(name, attributes, ...children) {
  return filled(document.createElementNS(SVG, name), attributes, children);
}

const ICONS = {
  overview: "M3 11.5 12 4l9 7.500M5.500 10v9.500h13V10M9.500 19.500v-5.500h5v5.500",
  files: "M3.500 6.500a1.500 1.500 0 0 1 1.500-1.500h4.500l2 2.500h7.500a1.500 1.500 0 0 1 1.500 1.500v8.500a1.500 1.500 0 0 1-1.500 1.500H5a1.500 1.500 0 0 1-1.500-1.500z",
  history: "M4 12a8 8 0 1 0 2.600-5.900M4 4.500v4h4M12 8v4.500l3 2",
  conflicts: "M6 4v5c0 3 6 3 6 6v5M18 4v5c0 3-6 3-6 6M9.500 17.500 12 20l2.500-2.500",
  storage: "M4 6.500C4 4.800 7.600 3.500 12 3.500s8 1.300 8 3-3.600 3-8 3-8-1.300-8-3zM4 6.500v11c0 1.700 3.600 3 8 3s8-1.300 8-3v-11M4 12c0 1.700 3.600 3 8 3s8-1.300 8-3",
  devices: "M4.500 16V6.500A1.500 1.500 0 0 1 6 5h12a1.500 1.500 0 0 1 1.500 1.500V16M2.500 19h19l-2-3h-15z",
  settings: "M4 7h9M17 7h3M4 12h3M11 12h9M4 17h7M15 17h5M15 5v4M9 10v4M13 15v4",
  check: "M5 12.500l4.500 4.500L19 7.500",
  sync: "M4.500 11a7.500 7.500 0 0 1 13.300-3.500L19.500 9.500M19.500 5v4.500H15M19.500 13a7.500 7.500 0 0 1-13.300 3.500L4.500 14.500M4.500 19v-4.500H9",
  pause: "M8.500 6v12M15.500 6v12",
  play: "M8 5.500v13l10.500-6.500z",
  alert: "M12 7.500v6M12 16.800v.2M10.400 3.900 2.700 17.400A1.800 1.800 0 0 0 4.300 20h15.400a1.800 1.800 0 0 0 1.600-2.600L13.600 3.900a1.800 1.800 0 0 0-3.200 0z",
  waiting: "M12 7v5.200l3.200 1.900M12 20.500a8.500 8.500 0 1 0 0-17 8.500 8.500 0 0 0 0 17z",
  file: "M6.500 3.500h7l4.500 4.500v11.500a1 1 0 0 1-1 1H6.500a1 1 0 0 1-1-1v-15a1 1 0 0 1 1-1zM13.500 3.500V8H18",
  link: "M10 14a4 4 0 0 0 6 .4l2.500-2.500a4 4 0 0 0-5.700-5.700L11.500 7.500M14 10a4 4 0 0 0-6-.4l-2.500 2.500a4 4 0 0 0 5.700 5.700l1.300-1.300",
  down: "M12 4v11M7.500 11 12 15.500 16.500 11M5 19.500h14",
  back: "M4 12a8 8 0 1 0 2.600-5.900M4 4.500v4h4",
  menu: "M4 7h16M4 12h16M4 17h16",
  dir: "M3.500 6.500a1.500 1.500 0 0 1 1.500-1.500h4.500l2 2.500h7.500a1.500 1.500 0 0 1 1.500 1.500v8.500a1.500 1.500 0 0 1-1.500 1.500H5a1.500 1.500 0 0 1-1.500-1.500z",
};

/** A small picture beside words; a screen reader passes over it. */
export function icon(name) {
  const drawn = svg("path", { d: ICONS[name] });
  return svg("svg", { class: `icon icon-${name}`, viewBox: "0 0 24 24", "aria-hidden": "true", focusable: "false" }, drawn);
}

/** A text whose commands, between backticks, stand out. */
export function words(text) {
  return text.split("`").map((part, n) => (n % 2 ? h("code", {}, part) : part));
}

/** Puts nodes in place of all that an element holds. */
export function put(element, ...nodes) {
  element.replaceChildren(...nodes.flat(9).filter((node) => node !== null && node !== undefined && node !== false));
}
