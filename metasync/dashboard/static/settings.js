// What is set for this workspace on this device, and what all devices agreed on.

import { ask } from "./dialogs.js";
import { h, words as told } from "./dom.js";
import { sentence } from "./words.js";

const HERE = [
  ["limit.up", "Upload limit", "Bytes a second, such as 500k or 2M; with hours: 9:00-18:00 500k, 2M"],
  ["limit.down", "Download limit", "The same for what comes in"],
  ["limit.connections", "Calls at once on each backend", "1 to 32"],
  ["limit.requests", "Requests a minute to each backend", "10 or more; off: any number. Empty: what its provider publishes"],
  ["durability", "Copies that a push waits for", "The others are made in the background. Empty: all"],
  ["upkeep", "Upkeep after a push", "How long it may move, mend and check data, such as 2s; off: never"],
  ["scrub.days", "Read every copy within days", "Where a store tells no digests. 0: never"],
  ["cache-mb", "Cache", "Megabytes of directories and history kept here, 64 or more. Empty: 1024"],
  ["daemon.quiet", "The daemon pushes after a quiet of", "Such as 5s. Empty: 5s"],
  ["daemon.longest", "or when a change has waited for", "Such as 30s. Empty: 30s"],
  ["daemon.trash", "What pulls replaced is kept for days", "In .metasync/replaced, such as 30. Empty: until a version holds it"],
  ["notify.desktop", "Notices on the desktop", "By the daemon. off: none"],
  ["notify.after", "Tell of a backend that is away after", "Such as 30m or 2h. Empty: an hour"],
  ["nice", "Step back for other programs", "0 to 19, as the program nice has it"],
];
const AGREED = [
  ["copies", "Copies of everything", "More are safer, and take more room. Fewer may need the passphrase: then `metasync config set copies`"],
  ["keep", "Versions that are kept", "Such as last=10 daily=7 weekly=5 monthly=12. Empty: all"],
];

const SURE = { // what an agreed setting does, for the question before it is changed
  copies: "It holds for all devices. What is stored already is copied, or its surplus deleted, by and by.",
  keep: "It holds for all devices. Versions that it does not keep are dropped by the next `metasync gc` on any of them, for good. What is in the newest version stays.",
};

export async function view(page) {
  const set = await page.look("settings");
  const known = new Set(HERE.map(([key]) => key));
  const others = Object.entries(set.settings).filter(([key]) => !known.has(key));
  const nodes = [
    h("div", { class: "head" }, h("h1", {}, "Settings")),
    set.paused && h("p", { class: "note" }, sentence(`transfers are paused ${set.paused}`)),
    h("div", { class: "card stack" }, h("h2", {}, "This device"), HERE.map(([key, name, words]) => field(page, key, name, words, set.settings[key] ?? "")),
      others.length > 0 && [h("h3", {}, "Set by metasync config set"), h("ul", {}, others.map(([key, value]) => h("li", {}, h("code", {}, `${key} = ${value}`))))]),
    h("div", { class: "card stack" }, h("h2", {}, "Agreed by all devices"), AGREED.map(([key, name, words]) => field(page, key, name, words, String((key === "keep" ? set.keep : set.copies) ?? "")))),
  ];
  return { nodes };
}

function field(page, key, name, words, value) {
  const id = `set-${key}`;
  const save = async (event) => {
    event.preventDefault();
    const typed = event.target.elements.value.value.trim();
    if (key in SURE && !(await ask({ title: `${name}: ${typed || "all"}?`, text: [SURE[key]], yes: "Change it for all devices" }))) return;
    if ((await page.done("set", { key, value: typed || null })) !== null) page.toast(typed ? `${name}: ${typed}` : `${name} is not set any more.`);
  };
  return h("form", { class: "field", onsubmit: save },
    h("label", { for: id }, name),
    h("span", { class: "small quiet", id: `${id}-words` }, told(words)),
    h("div", { class: "row" },
      h("input", { id, name: "value", value, autocomplete: "off", spellcheck: "false", "aria-describedby": `${id}-words` }),
      h("button", {}, "Save", h("span", { class: "hidden" }, ` ${name}`))));
}
