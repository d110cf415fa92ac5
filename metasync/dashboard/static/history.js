// The history: versions over time by device, and what each of them changed.

import { timeline } from "./charts.js";
import { h, icon, words } from "./dom.js";
import { ago, count, moment, size } from "./words.js";

export async function view(page, [version]) {
  return version ? one(page, version) : all(page);
}

async function all(page) {
  const log = await page.look("log");
  const versions = log.items.filter((i) => i.version);
  const picture = timeline(versions, (v) => page.href("history", v));
  const nodes = [
    h("div", { class: "head" }, h("h1", {}, "History"), h("p", {}, "Every version that your devices agreed on, the newest first.")),
    picture && h("div", { class: "card" }, h("h2", {}, "Versions over time, by device"), picture),
    h("div", { class: "card" },
      versions.length ? h("ul", { class: "rows" }, versions.map((i) => entry(page, i))) : h("p", { class: "empty" }, "Nothing was pushed yet."),
      log.items.length >= log.most && h("p", { class: "small quiet" }, words(`The newest ${log.most} are shown. \`metasync log\` lists all.`))),
  ];
  counted(page);
  return { nodes };
}

/** Writes beside the newest versions how much they changed, as soon as that is counted: it reads the trees of each. */
export async function counted(page) {
  let log;
  try {
    log = await page.look("log", { counted: "yes" });
  } catch {
    return; // the list is whole without
  }
  for (const place of document.querySelectorAll(".counts")) {
    const found = log.items.find((i) => String(i.version) === place.dataset.version);
    const told = countsOf(found?.counts);
    if (told) place.textContent = ` · ${told}`;
  }
}

function countsOf(c) {
  if (!c) return "";
  const kinds = [[c.added, "added"], [c.modified, "changed"], [c.deleted, "deleted"], [c.renamed, "renamed"], [c.other, "with other rights or times"]];
  return kinds.filter(([n]) => n).map(([n, what]) => `${n.toLocaleString("en")} ${what}`).join(", ");
}

/** One version in a list. */
export function entry(page, i) {
  return h("li", { class: "version" },
    h("a", { class: "name", href: page.href("history", i.version) }, i.message || `Version ${i.version}`),
    h("span", { class: "small quiet where" }, ago(i.time)),
    h("span", { class: "small quiet" }, `${i.message ? `Version ${i.version} · ` : ""}${i.device}`, h("span", { class: "counts", "data-version": i.version })),
    i.dropped && h("span", { class: "small quiet" }, `Versions ${i.dropped[0]} to ${i.dropped[1]} are no longer kept.`),
    i.begins && h("span", { class: "small quiet" }, i.begins));
}

const KINDS = {
  added: ["+", "added"], modified: ["~", "changed"], deleted: ["−", "deleted"], renamed: ["→", "renamed"],
  mode: ["~", "rights changed"], type: ["~", "is another kind of thing"], time: ["~", "time changed"],
};

async function one(page, version) {
  const shown = await page.look("version", { version });
  const v = shown.version;
  const nodes = [
    h("div", { class: "head" },
      h("h1", { class: "name" }, v.message || `Version ${v.version}`),
      h("p", {}, `Version ${v.version}`, v.device && ` from ${v.device}, ${moment(v.time)}`)),
    h("p", { class: "actions" },
      h("a", { class: "button", href: page.href("files", v.version) }, icon("files"), "Files of this version"),
      h("a", { class: "button plain", href: page.href("history") }, "All versions")),
    h("div", { class: "card" },
      h("h2", {}, count(shown.count, "change")),
      shown.changes.length
        ? h("ul", { class: "rows" }, shown.changes.map((c) => changed(page, v.version, c)))
        : h("p", { class: "empty" }, v.events.length ? v.events.join("; ") : "It has the files of the version before."),
      shown.count > shown.changes.length && h("p", { class: "small quiet" }, words(`The first ${shown.changes.length} are shown. \`metasync show ${v.version}\` lists all.`))),
  ];
  return { nodes };
}

function changed(page, version, c) {
  const [sign, what] = KINDS[c.kind];
  const kind = c.kind in { added: 1, deleted: 1, renamed: 1 } ? c.kind : "modified";
  const facts = c.after ?? c.before;
  const where = c.after ? page.href("files", version, c.id) : page.href("files", String(version - 1), c.id);
  const sizes = c.before && c.after && c.before.size !== c.after.size ? `${size(c.before.size)} → ${size(c.after.size)}` : size(facts.size);
  return h("li", { class: "row" },
    h("span", { class: `sign ${kind}`, "aria-hidden": "true" }, sign),
    h("span", { class: "grow" }, c.was && [h("bdi", {}, c.was), " → "],
      facts.kind === "file" && version > 1 ? h("a", { href: where }, h("bdi", {}, c.text)) : h("bdi", {}, c.text)),
    h("span", { class: "small quiet" }, what),
    facts.kind === "file" && h("span", { class: "small quiet number" }, sizes));
}
