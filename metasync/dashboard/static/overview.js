// The state at a glance: in step or not, what goes on, what needs the user, and how the backends fare.

import { bar, room } from "./charts.js";
import { h, icon, put, words } from "./dom.js";
import { open } from "./dialogs.js";
import { counted, entry } from "./history.js";
import { health, phase, tone } from "./state.js";
import { ago, count, listed, sentence, size } from "./words.js";

const AGAIN_MS = 10_000; // between two looks that nobody asked for: each reads the folder's stats

export async function view(page) {
  const began = Date.now();
  const hero = h("div", { class: "card" });
  const problems = h("div", { class: "stack", id: "problems" });
  const moving = h("div", {});
  const [status, log] = await Promise.all([page.look("overview"), page.look("log")]);
  if (status.state) page.take(status.state);
  const draw = (state) => {
    put(hero, heroOf(page, state, status));
    put(problems, state.problems.map((p) => problemOf(page, p)));
    put(moving, transfersOf(state));
  };
  draw(page.state);
  let asked = JSON.stringify([page.state.version, page.state.daemon]);
  const told = (state, before) => {
    draw(state);
    const now = JSON.stringify([state.version, state.daemon]);
    const isSeen = document.visibilityState === "visible" && Date.now() - began > AGAIN_MS;
    if (state.daemon && before && now !== asked && state.doing === "in step" && isSeen) {
      asked = now;
      page.again();
    }
  };
  const nodes = [
    h("div", { class: "head" }, h("h1", { class: "name" }, status.name)),
    h("div", { class: "stack" },
      hero, problems, moving,
      h("div", { class: "card" }, h("h2", {}, "Your data"), factsOf(status)),
      status.changes.count > 0 && h("div", { class: "card" }, h("h2", {}, "Changed here, not pushed yet"), changesOf(status.changes)),
      status.warnings.map((text) => h("p", { class: "note" }, text)),
      h("div", { class: "card" },
        h("div", { class: "head" }, h("h2", {}, "Backends"), h("a", { href: page.href("storage") }, "More about storage")),
        h("ul", { class: "rows" }, status.backends.map((b) => backendOf(b, { asked: status.state !== null })))),
      h("div", { class: "card" },
        h("div", { class: "head" }, h("h2", {}, "Latest versions"), h("a", { href: page.href("history") }, "All of the history")),
        log.items.length
          ? h("ul", { class: "rows" }, log.items.filter((i) => i.version).slice(0, 5).map((i) => entry(page, i)))
          : h("p", { class: "empty" }, "Nothing was pushed yet."))),
  ];
  counted(page);
  return { nodes, told };
}

function headline(state, status) {
  if (state.daemon || state.doing !== "waiting") return tone(state)[2];
  if (status.newest !== null && status.newest > status.version) return `${count(status.newest - status.version, "version")} behind`;
  return status.changes.count ? "Changes to push" : tone(state)[2];
}

function heroOf(page, state, status) {
  const [colour, sign] = tone(state);
  const version = status.time === null
    ? `Version ${status.version}`
    : `Version ${status.version}, ${ago(status.time)} from ${status.device}`;
  const running = state.activity !== null;
  const part = running && state.activity.total ? state.activity.done / state.activity.total : null;
  const paused = state.doing === "paused" || status.paused || state.paused;
  return h("div", { class: `hero ${colour}` },
    h("div", { class: "disc" }, icon(sign)),
    h("div", { class: "told" },
      h("h2", { id: "headline" }, headline(state, status)),
      state.why && h("p", {}, words(sentence(state.why))),
      h("p", { class: "quiet" }, `${version}.`),
      state.daemon && state.changed > 0 && h("p", { class: "small" }, `${count(state.changed, "change")} here waiting for the next push.`),
      running && h("p", { class: "small" }, phase(state.activity)),
      part !== null && bar([[part, "used"]], phase(state.activity))),
    h("div", { class: "actions" },
      h("button", { type: "button", class: "main", disabled: running, onclick: () => syncNow(page) }, icon("sync"), "Sync now"),
      paused
        ? h("button", { type: "button", onclick: () => resume(page) }, icon("play"), "Resume")
        : h("button", { type: "button", onclick: () => pause(page) }, icon("pause"), "Pause …"),
      !state.daemon && h("button", { type: "button", class: "plain", disabled: running, onclick: () => page.again() }, "Look again")));
}

async function syncNow(page) {
  const r = await page.done("sync", {});
  if (r === null) return;
  if (r.asked) page.toast("It looks and pushes now.");
  else page.toast(syncWords(r));
  page.again();
}

function syncWords(r) {
  const came = r.pulled.changes.count;
  const version = r.pushed.version;
  const told = [];
  if (came) told.push(`${count(came, "change")} came from other devices`);
  if (version !== null) told.push(`version ${version} was pushed`);
  return told.length ? sentence(told.join("; ")) : "All is in step.";
}

const PAUSES = [["For an hour", 3600], ["For four hours", 4 * 3600], ["For a day", 86400], ["Until I resume it", null]];

async function pause(page) {
  const seconds = await open("Pause transfers on this device", (close) => [
    h("p", { class: "quiet" }, "Nothing is sent or fetched meanwhile. What has begun ends first."),
    h("div", { class: "stack" }, PAUSES.map(([words, s], n) =>
      h("button", { type: "button", autofocus: n === 0, onclick: () => close({ s }) }, words))),
    h("div", { class: "actions" }, h("button", { type: "button", onclick: () => close(null) }, "Cancel")),
  ]);
  if (seconds === null) return;
  if ((await page.done("pause", { seconds: seconds.s })) !== null) {
    page.toast("Transfers are paused.", () => resume(page));
    page.again();
  }
}

async function resume(page) {
  if ((await page.done("resume", {})) !== null) {
    page.toast("Transfers go on.");
    page.again();
  }
}

const WHAT = { push: "Push it all the same", pull: "Take it all the same" };

function problemOf(page, p) {
  const answer = async (allow) => {
    if ((await page.done("answer", { key: p.key, allow })) !== null) page.toast(allow ? "It goes on." : "It stays as it is.");
  };
  const goes = { conflict: ["conflicts", "Compare and choose"], backend: ["storage", "See storage"], space: ["storage", "See storage"], fork: ["storage", "See storage"] }[p.kind];
  return h("div", { class: `card problem ${p.blocks ? "blocks" : ""}` },
    h("h3", {}, icon("alert"), h("span", {}, sentence(p.text))),
    p.next_step && h("p", {}, words(sentence(p.next_step))),
    p.since !== null && h("p", { class: "small quiet" }, `Noticed ${ago(p.since)}.`),
    (p.asks || goes) && h("div", { class: "actions" },
      p.asks && h("button", { type: "button", class: "danger", onclick: () => answer(true) }, WHAT[p.asks]),
      p.asks && h("button", { type: "button", onclick: () => answer(false) }, "Do not"),
      goes && h("a", { class: "button", href: page.href(goes[0]) }, goes[1])));
}

function transfersOf(state) {
  const lines = state.lines.filter((line) => line.up || line.down);
  if (!lines.length) return null;
  const most = Math.max(...lines.map((line) => line.up + line.down), 1);
  return h("div", { class: "card" },
    h("h2", {}, "Transfers"),
    h("ul", { class: "rows" }, lines.map((line) => h("li", { class: "meter" },
      h("div", { class: "row" }, h("strong", { class: "name grow" }, line.backend),
        h("span", { class: "small number" }, `↑ ${size(line.up)} sent`), h("span", { class: "small number" }, `↓ ${size(line.down)} fetched`)),
      bar([[(line.up + line.down) / most, "used"]], `${line.backend}: ${size(line.up)} sent, ${size(line.down)} fetched`)))));
}

function factsOf(s) {
  const fact = (name, value, more) => h("div", { class: "fact" }, h("dt", {}, name), h("dd", {}, value), more && h("dd", { class: "small quiet" }, more));
  const away = s.backends.filter((b) => !b.holds).map((b) => b.name);
  const safe = s.packs === 0 ? "–" : s.short === 0 ? count(s.copies, "copy", "copies") : "Fewer than promised";
  const why = s.packs === 0
    ? "Nothing is stored yet."
    : s.short === 0
      ? "of everything, as promised."
      : `${s.short.toLocaleString("en")} of ${count(s.packs, "pack")} ${s.short === 1 ? "has" : "have"} fewer than ${count(s.copies, "copy", "copies")} within reach${away.length ? `: ${listed(away)} is away` : ""}.`;
  return h("dl", { class: "facts" },
    fact("Copies", safe, why),
    fact("Backends", `${s.backends.filter((b) => b.holds).length} of ${s.backends.length}`, "can be used now."),
    fact("Newest version", s.newest === null ? "Not known" : String(s.newest), s.newest === null ? "Too few backends answer." : `Fingerprint ${s.fingerprint}`),
    fact("Conflicts", String(s.conflicts), s.conflicts ? "wait for your choice." : "none waits."));
}

export function changesOf(changes) {
  const kinds = [["added", "+"], ["modified", "~"], ["deleted", "−"], ["renamed", "→"]];
  const items = kinds.flatMap(([kind, sign]) => changes[kind].first.map((p) => ({ ...p, kind, sign })));
  const most = 12;
  const rest = changes.count - Math.min(most, items.length);
  return h("ul", {}, items.slice(0, most).map((p) =>
    h("li", {}, h("span", { class: `sign ${p.kind}`, "aria-hidden": "true" }, p.sign), h("span", { class: "hidden" }, `${p.kind} `),
      p.was && [h("bdi", {}, p.was), " → "], h("bdi", {}, p.text))),
  rest > 0 && h("li", { class: "quiet" }, `and ${rest.toLocaleString("en")} more`));
}

function backendOf(b, { asked }) {
  return h("li", { class: "row" }, h("strong", { class: "name grow" }, b.name),
    b.data ? h("div", { class: "grow" }, room(b, { asked })) : h("span", { class: "small quiet grow" }, "votes, holds no data"), health(b));
}
