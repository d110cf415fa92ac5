// The backends: how each fares, whether it is to be trusted, what it holds, and which of them keep the same data.

import { room, tones, weave } from "./charts.js";
import { h, icon, svg, words } from "./dom.js";
import { health } from "./state.js";
import { ago, count, listed, percent, sentence, size } from "./words.js";

export async function view(page) {
  const [storage, status] = await Promise.all([page.look("storage"), page.look("overview")]);
  const evidence = new Map(status.backends.map((b) => [b.name, b.evidence]));
  const backends = storage.backends.map((b) => ({ ...b, evidence: evidence.get(b.name) ?? [] }));
  const names = backends.filter((b) => b.data).map((b) => b.name);
  const colours = tones(names);
  const nodes = [
    h("div", { class: "head" }, h("h1", {}, "Storage"), h("p", {}, sentence(storage.survives))),
    h("div", { class: "stack" },
      h("div", { class: "grid" }, backends.map((b) => backendCard(page, b, colours))),
      storage.together.length > 0 && h("div", { class: "card" },
        h("h2", {}, "Where the data lie"),
        h("p", { class: "small quiet" }, `Everything is on ${count(status.copies, "backend")}. Blocks above each other are copies of the same data.`),
        weave(storage.together, names),
        h("h3", { class: "hidden" }, "The same in words"),
        h("ul", {}, storage.together.slice(0, 12).map((part) => h("li", { class: "small" }, `${percent(part.share)} of the data: `, h("bdi", {}, listed(part.backends)))))),
      storage.moving.packs > 0 && h("p", { class: "note" }, words(`${count(storage.moving.packs, "pack")} (${size(storage.moving.bytes)}) still to be moved to where the backends of today want them. \`metasync rebalance\` does that at once.`)),
      status.trailing.map((t) => h("p", { class: "note" }, `${count(t.packs, "pack")} (${size(t.bytes)}) still to be copied to ${t.backend}.`)),
      status.withdraw.length > 0 && h("p", { class: "note bad" }, `Logins of revoked devices that were not withdrawn yet: ${listed(status.withdraw)}. See Devices.`)),
  ];
  return { nodes };
}

function backendCard(page, b, colours) {
  const roles = b.data && b.votes ? "keeps data, and votes" : b.data ? "keeps data" : "votes";
  const line = page.state.lines.find((l) => l.backend === b.name);
  return h("section", { class: "card stack", "aria-label": b.name },
    h("div", { class: "row" },
      colours.has(b.name) && svg("svg", { class: "swatch", viewBox: "0 0 10 10", "aria-hidden": "true" }, svg("rect", { class: colours.get(b.name), width: 10, height: 10, rx: 2 })),
      h("h2", { class: "name grow" }, b.name), health(b)),
    h("p", { class: "small quiet" }, h("bdi", {}, b.url || "no way to it from this device")),
    b.condition !== "ok" && h("p", { class: "note" }, sentence(b.state), b.since !== null && ` Since ${ago(b.since)}.`),
    b.evidence.map((e) => h("p", { class: "note bad" }, h("strong", {}, "Seen here: "), sentence(e.what), ` Noticed ${ago(e.since)}.`)),
    b.warning && h("p", { class: "note" }, sentence(b.warning)),
    b.data && room(b),
    h("dl", { class: "facts" },
      h("div", { class: "fact" }, h("dt", {}, "Role"), h("dd", { class: "small" }, roles)),
      b.share !== null && h("div", { class: "fact" }, h("dt", {}, "Share of all data"), h("dd", { class: "small" }, percent(b.share))),
      h("div", { class: "fact" }, h("dt", {}, "Trust"), h("dd", { class: "small" }, b.evidence.length ? "It did what no honest one does" : "Nothing was seen that speaks against it")),
      b.data && h("div", { class: "fact" }, h("dt", {}, "Last full look"), h("dd", { class: "small" }, ago(b.looked))),
      line && h("div", { class: "fact" }, h("dt", {}, "Since the page is open"), h("dd", { class: "small" }, `${size(line.up)} sent, ${size(line.down)} fetched`))),
    !b.linked && h("p", { class: "small" }, icon("link"), " This device has no way there: ", h("code", {}, `metasync backend link ${b.name} URL`)));
}
