// The frame: which workspace and which view is shown, what is told as it happens, and how actions end.

import { act, listen, look, Refused } from "./api.js";
import { h, icon, put, words } from "./dom.js";
import { ask, failed, toast } from "./dialogs.js";
import { chip } from "./state.js";
import * as conflicts from "./conflicts.js";
import * as devices from "./devices.js";
import * as files from "./files.js";
import * as history from "./history.js";
import * as overview from "./overview.js";
import * as settings from "./settings.js";
import * as storage from "./storage.js";

const VIEWS = {
  overview: ["Overview", overview],
  files: ["Files", files],
  history: ["History", history],
  conflicts: ["Conflicts", conflicts],
  storage: ["Storage", storage],
  devices: ["Devices", devices],
  settings: ["Settings", settings],
};

const main = document.getElementById("main");
const side = document.getElementById("side");
const states = new Map();
let chosen = null;
let connected = true;
let isFirst = true; // the first view does not take the focus: it is at the top, where the link to the content is
let shown = 0; // counts views: an answer that comes late must not be put in place of a newer view
let live = null; // what the view that is shown wants to be told

function place() {
  const [view, ...rest] = location.hash.replace(/^#\/?/, "").split("/");
  return { view: view in VIEWS ? view : "overview", rest: rest.map(decodeURIComponent) };
}

function go(...parts) {
  const hash = `#/${parts.map(encodeURIComponent).join("/")}`;
  if (location.hash === hash) show();
  else location.hash = hash;
}

function state() {
  return states.get(chosen);
}

/** Has something done, with what is wrong told in words. Gives the outcome, or null. */
async function done(action, fields, { quiet = false } = {}) {
  try {
    return await act(chosen, action, fields);
  } catch (error) {
    if (!(error instanceof Refused)) throw error;
    if (error.guard && !fields?.force) {
      const { deleted, files: all } = error.guard;
      const sure = await ask({
        title: "Delete that much?",
        text: [`${error.message}.`, `${deleted} of ${all} files would go. Nothing was changed so far.`],
        yes: `Delete ${deleted} files`,
        danger: true,
      });
      return sure ? done(action, { ...fields, force: true }, { quiet }) : null;
    }
    if (quiet) throw error;
    await failed(error);
    return null;
  }
}

const page = {
  get id() { return chosen; },
  get state() { return state(); },
  look: (view, fields) => look(chosen, view, fields),
  done,
  go,
  toast,
  take: (next) => {
    states.set(next.id, next);
    if (next.id === chosen) drawSide();
  },
  again: () => show({ quiet: true }),
  href: (...parts) => `#/${parts.map(encodeURIComponent).join("/")}`,
};

async function show({ quiet = false } = {}) {
  const { view, rest } = place();
  const [title, module] = VIEWS[view];
  const turn = ++shown;
  live = null;
  drawSide();
  if (!state()) return;
  document.title = `${title} · ${state().name} · MetaSync`;
  if (!quiet) put(main, h("p", { class: "quiet", role: "status" }, "Loading …"));
  let nodes;
  let told = null;
  try {
    ({ nodes, told = null } = await module.view(page, rest));
  } catch (error) {
    if (!(error instanceof Refused)) throw error;
    nodes = [
      h("div", { class: "head" }, h("h1", {}, title)),
      h("div", { class: "card problem blocks", role: "alert" },
        h("h3", {}, icon("alert"), h("span", {}, error.message)),
        error.step && h("p", { class: "quiet" }, words(error.step)),
        h("div", { class: "actions" }, h("button", { type: "button", onclick: () => show() }, icon("sync"), "Try again"))),
    ];
  }
  if (turn !== shown) return;
  live = told;
  put(main, nodes);
  if (!quiet && !isFirst) main.focus({ preventScroll: true });
  if (!quiet && !isFirst) window.scrollTo(0, 0);
  isFirst = false;
}

function drawSide() {
  const { view } = place();
  const now = state();
  const conflict = now?.problems.filter((p) => p.kind === "conflict").length ?? 0;
  const asks = now?.problems.filter((p) => p.asks || p.blocks).length ?? 0;
  const badge = { conflicts: conflict ? "!" : "", overview: asks ? String(asks) : "" };
  const wasOpen = side.classList.contains("open");
  const menu = h("button", { type: "button", class: "menu", "aria-expanded": String(wasOpen), onclick: toggle }, icon("menu"), "Menu");
  const links = Object.entries(VIEWS).map(([name, [title]]) =>
    h("li", {}, h("a", { href: `#/${name}`, "aria-current": name === view ? "page" : null },
      icon(name), title,
      badge[name] && h("span", { class: "badge" }, badge[name], h("span", { class: "hidden" }, " needs you")))));
  put(side,
    h("div", { class: "brand" }, h("img", { src: "static/icon.svg", alt: "" }), "MetaSync", menu),
    h("div", { class: "which" }, which()),
    h("nav", { "aria-label": "Views" }, h("ul", {}, links)),
    h("div", { class: "foot" },
      now && chip(now, connected),
      !connected && h("span", {}, words("The page has ended. Run `metasync ui` again.")),
      now && connected && h("span", {}, words(now.daemon ? "Kept in step by the daemon." : "No daemon keeps this folder in step: `metasync daemon start` does."))));
}

function toggle(event) {
  const open = side.classList.toggle("open");
  event.currentTarget.setAttribute("aria-expanded", String(open));
}

function which() {
  const all = [...states.values()];
  if (all.length < 2) {
    return all[0] && [h("strong", { class: "name" }, all[0].name), h("span", { class: "small quiet" }, all[0].directory)];
  }
  const options = all.map((s) => h("option", { value: s.id, selected: s.id === chosen }, `${s.name} (${s.directory})`));
  return h("label", { class: "small" }, "Workspace", h("select", { onchange: (event) => {
    chosen = event.target.value;
    show();
  } }, options));
}

function heard(next) {
  const before = states.get(next.id);
  states.set(next.id, next);
  if (chosen === null) {
    chosen = next.id;
    show();
    return;
  }
  if (next.id !== chosen) {
    if (!before) drawSide();
    return;
  }
  drawSide();
  if (live) live(next, before);
}

document.getElementById("skip").addEventListener("click", (event) => {
  event.preventDefault();
  main.focus();
});
window.addEventListener("hashchange", () => {
  side.classList.remove("open");
  show();
});
listen(heard, (is) => {
  if (is === connected) return;
  connected = is;
  drawSide();
});
