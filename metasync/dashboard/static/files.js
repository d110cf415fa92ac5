// The files of any version: look around, download, and restore after a look at what that would change.

import { fileUrl } from "./api.js";
import { h, icon } from "./dom.js";
import { ask } from "./dialogs.js";
import { changesOf } from "./overview.js";
import { ago, count, listed, moment, size } from "./words.js";

export async function view(page, [version = "latest", path = ""]) {
  const [found, log] = await Promise.all([page.look("files", { version, path }), page.look("log")]);
  const versions = log.items.filter((i) => i.version);
  const newest = versions[0]?.version ?? 0;
  const number = found.version ?? newest;
  const isFile = found.entries.length === 1 && found.entries[0].id === found.path.id && path !== "";
  const nodes = [
    h("div", { class: "head" }, h("h1", {}, "Files"), h("p", {}, "What any version holds. A file that is restored takes its place in the folder; what was there and is in no version is kept beside it.")),
    h("div", { class: "card" },
      h("div", { class: "head" }, crumbs(page, version, found.path), picker(page, version, number, versions, path)),
      isFile ? await file(page, number, newest, found.entries[0]) : folder(page, version, number, newest, found)),
  ];
  return { nodes };
}

function bytesOf(id) {
  const text = atob(id.replace(/-/g, "+").replace(/_/g, "/"));
  return Uint8Array.from(text, (c) => c.charCodeAt(0));
}

function idOf(bytes) {
  return btoa(String.fromCharCode(...bytes)).replace(/\+/g, "-").replace(/\//g, "_").replace(/=+$/, "");
}

/** The folders on the way to a path: a name and an id each. */
function steps(path) {
  const bytes = bytesOf(path.id);
  const names = path.text.split("/");
  const out = [];
  bytes.forEach((byte, at) => {
    if (byte === 0x2f) out.push({ id: idOf(bytes.slice(0, at)), text: names[out.length] });
  });
  return path.text ? [...out, { id: path.id, text: names[out.length] }] : [];
}

function crumbs(page, version, path) {
  const way = [{ id: "", text: page.state.name }, ...steps(path)];
  return h("nav", { class: "crumbs", "aria-label": "Folders" }, h("ol", {}, way.map((step, n) =>
    h("li", {}, n === way.length - 1
      ? h("strong", { "aria-current": "page" }, h("bdi", {}, step.text))
      : h("a", { href: page.href("files", version, step.id) }, h("bdi", {}, step.text))))));
}

function picker(page, version, number, versions, path) {
  const options = versions.map((i) => h("option", { value: i.version, selected: i.version === number },
    `${i.version}: ${i.message || i.device}, ${ago(i.time)}`));
  return h("label", { class: "small" }, "Version", h("select", { id: "version", onchange: (event) => page.go("files", event.target.value, path) }, options));
}

function folder(page, version, number, newest, found) {
  if (!found.entries.length) return h("p", { class: "empty" }, "This folder is empty in this version.");
  return [
    h("table", {},
      h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Name"), h("th", { scope: "col", class: "number wide" }, "Size"),
        h("th", { scope: "col", class: "wide" }, "Changed"), h("th", { scope: "col" }, h("span", { class: "hidden" }, "Actions")))),
      h("tbody", {}, found.entries.map((e) => h("tr", {},
        h("td", {}, h("span", { class: "entry" }, icon(e.kind === "file" ? "file" : e.kind),
          e.kind === "link" ? h("bdi", {}, `${e.name} → ${e.target}`) : h("a", { href: page.href("files", version, e.id) }, h("bdi", {}, e.name)))),
        h("td", { class: "number small quiet wide" }, e.kind === "file" ? size(e.size) : ""),
        h("td", { class: "small quiet wide" }, e.time ? moment(e.time) : ""),
        h("td", {}, h("div", { class: "actions" }, download(page, number, e), restoreButton(page, number, newest, e, e.name))))))),
    found.count > found.entries.length && h("p", { class: "small quiet" }, `The first ${found.entries.length.toLocaleString("en")} of ${found.count.toLocaleString("en")} are shown.`),
  ];
}

function download(page, number, e) {
  if (e.kind !== "file") return null;
  return h("a", { class: "button plain", href: fileUrl(page.id, number, e.id), download: "" }, icon("down"),
    h("span", {}, "Save"), h("span", { class: "hidden" }, ` ${e.text}`));
}

function restoreButton(page, number, newest, e, name) {
  return h("button", { type: "button", class: "plain", onclick: () => restore(page, number, newest, e) }, icon("back"),
    h("span", {}, "Restore …"), h("span", { class: "hidden" }, ` ${name}`));
}

async function file(page, number, newest, e) {
  const log = await page.look("log", { path: e.id });
  const rows = log.items.filter((i) => i.version);
  return [
    h("div", { class: "row" }, icon("file"), h("strong", { class: "grow" }, h("bdi", {}, e.text)),
      h("span", { class: "small quiet" }, `${size(e.size)}, changed ${moment(e.time)}`), download(page, number, e), restoreButton(page, number, newest, e, e.text)),
    h("h2", {}, "Versions in which it changed"),
    h("ul", { class: "rows" }, rows.map((i) => h("li", { class: "row" },
      h("span", { class: "grow" }, h("a", { href: page.href("files", i.version, e.id) }, i.message || `Version ${i.version}`),
        h("span", { class: "small quiet" }, ` ${i.message ? `version ${i.version}, ` : ""}${i.device}, ${ago(i.time)}`)),
      i.version === number ? h("span", { class: "chip" }, "Shown") : restoreButton(page, i.version, newest, e, `${e.text} of version ${i.version}`)))),
  ];
}

async function restore(page, number, newest, e) {
  const plan = await page.done("restore", { version: String(number), path: e.id, dry_run: true });
  if (plan === null) return;
  const all = plan.changes.count;
  if (!all && !plan.unsaved.length) {
    page.toast("The folder has it already, as this version does.");
    return;
  }
  const sure = await ask({
    title: `Restore ${e.text}?`,
    text: [
      `The folder gets ${e.kind === "dir" ? "what is in it" : "it"} as of version ${number}. ${count(all, "path")} ${all === 1 ? "changes" : "change"}; nothing is deleted.`,
      changesOf(plan.changes),
      plan.unsaved.length
        ? h("p", { class: "note" }, `${count(plan.unsaved.length, "file")} here ${plan.unsaved.length === 1 ? "is" : "are"} in no version yet: ${plan.unsaved.length === 1 ? "it is" : "they are"} kept beside the restored, as a conflict.`)
        : h("p", { class: "note" }, `To undo it, restore the same from version ${newest}.`),
    ],
    yes: "Restore",
  });
  if (!sure) return;
  const r = await page.done("restore", { version: String(number), path: e.id });
  if (r === null) return;
  const kept = r.conflicts.length ? ` What was here is kept as ${listed(r.conflicts.map((c) => c.copy.text))}.` : "";
  const canUndo = number !== newest && !r.conflicts.length;
  page.toast(`Restored ${e.text} from version ${number}.${kept}`, canUndo ? () => restore(page, newest, newest, e) : null);
  if (r.failed.length) page.toast(`${count(r.failed.length, "path")} could not be restored: ${r.failed[0].reason}`);
  page.again();
}
