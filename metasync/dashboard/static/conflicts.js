// Conflicts: both sides beside each other, and the choice between them.

import { pictureUrl } from "./api.js";
import { h, icon } from "./dom.js";
import { ask } from "./dialogs.js";
import { ago, moment, sentence, size } from "./words.js";

export async function view(page, [copy]) {
  return copy ? one(page, copy) : all(page);
}

async function all(page) {
  const { conflicts } = await page.look("conflicts");
  const nodes = [
    h("div", { class: "head" }, h("h1", {}, "Conflicts"), h("p", {}, "Two devices changed the same file, and nobody but you can tell which is meant. Both are kept until you choose.")),
    conflicts.length
      ? h("div", { class: "card" }, h("ul", { class: "rows" }, conflicts.map((c) => h("li", { class: "row" },
          icon("file"),
          h("span", { class: "grow" }, h("strong", {}, h("bdi", {}, c.text)), h("br"), h("span", { class: "small quiet" }, sentence(c.reason))),
          h("a", { class: "button", href: page.href("conflicts", c.copy.id) }, "Compare", h("span", { class: "hidden" }, ` ${c.text}`))))))
      : h("div", { class: "card hero good" }, h("div", { class: "disc" }, icon("check")), h("div", { class: "told" }, h("h2", {}, "No conflict waits"), h("p", { class: "quiet" }, "All devices agree on every file."))),
  ];
  return { nodes };
}

async function one(page, copy) {
  const c = await page.look("conflict", { copy });
  const nodes = [
    h("div", { class: "head" }, h("h1", { class: "name" }, c.text), h("p", {}, sentence(c.reason))),
    h("div", { class: "stack" },
      h("div", { class: "sides" }, c.sides.map((s, n) => side(page, c, s, n))),
      differs(c),
      h("div", { class: "actions" },
        h("button", { type: "button", onclick: () => choose(page, c, null) }, "Keep both"),
        h("a", { class: "button plain", href: page.href("conflicts") }, "All conflicts"))),
  ];
  return { nodes };
}

const THINGS = { dir: "A folder", link: "A link", missing: "Nothing is there any more", other: "Something that is no file" };

function whose(s) {
  if (s.here) return "This device";
  return s.device ?? "Another device";
}

function side(page, c, s, n) {
  return h("section", { class: "card", "aria-label": whose(s) },
    h("h2", { class: "name" }, whose(s)),
    s.picture && h("img", { src: pictureUrl(page.id, c.copy.id, n), alt: `${s.text}, as ${whose(s)} has it` }),
    h("dl", { class: "facts" },
      h("div", { class: "fact" }, h("dt", {}, "Size"), h("dd", {}, s.kind === "file" ? size(s.size) : THINGS[s.kind])),
      h("div", { class: "fact" }, h("dt", {}, "Changed"), h("dd", { class: "small" }, s.changed ? `${moment(s.changed)} (${ago(s.changed)})` : "–"))),
    h("p", { class: "small quiet" }, "Stands in the folder as ", h("bdi", {}, s.text)),
    h("div", { class: "actions" }, h("button", { type: "button", class: "main", onclick: () => choose(page, c, s) }, `Keep ${s.here ? "this device’s" : s.device ? `${s.device}’s` : "this one"}`)));
}

function differs(c) {
  if (!c.lines.length) return c.note && h("p", { class: "note" }, c.note);
  const kinds = { "+": "added", "-": "deleted", "@": "hunk" };
  const names = { "+": "added: ", "-": "deleted: " };
  return h("div", { class: "card" },
    h("h2", {}, "How they differ"),
    h("p", { class: "small quiet" }, "− stands before lines of ", h("bdi", {}, whose(c.sides[0])), ", + before those of ", h("bdi", {}, whose(c.sides[1])), "."),
    c.note && h("p", { class: "small quiet" }, c.note),
    h("div", { class: "diff mono", tabindex: "0", role: "group", "aria-label": "Lines that differ" }, c.lines.map((line) =>
      h("div", { class: kinds[line[0]] ?? "" }, names[line[0]] && h("span", { class: "hidden" }, names[line[0]]), line))));
}

async function choose(page, c, s) {
  const other = s === null ? null : c.sides.find((o) => o !== s);
  const sure = s === null || await ask({
    title: `Keep ${s.here ? "this device’s" : `${whose(s)}’s`}?`,
    text: [
      h("p", {}, h("bdi", {}, c.text), " gets what ", h("bdi", {}, whose(s)), " made of it, on all devices with the next push."),
      h("p", { class: "note" }, "What ", h("bdi", {}, whose(other)), " made of it goes to .metasync/replaced, and stays there until a version holds it. Versions that hold it can be restored from Files."),
    ],
    yes: "Keep it",
  });
  if (!sure) return;
  const r = await page.done("resolve", { copy: c.copy.id, keep: s === null ? null : s.id });
  if (r === null) return;
  page.toast(s === null ? "Both stay; it is no conflict any more." : `The conflict at ${c.text} is over. The next push tells the other devices.`);
  page.go("conflicts");
}
