// Questions, words about what went wrong, and notes that go by themselves.

import { h, put, words } from "./dom.js";
import { sentence } from "./words.js";

/** Opens a dialog. `build(close)` gives what stands in it; the promise has what `close` was called with, or null. */
export function open(title, build) {
  return new Promise((resolve) => {
    let value = null;
    const dialog = h("dialog", { "aria-labelledby": "dialog-title" });
    const close = (given = null) => {
      value = given;
      dialog.close();
      dialog.remove(); // at once: the event "close" comes later, and until then the page would hold its words twice
    };
    put(dialog, h("div", { class: "stack" }, h("h2", { id: "dialog-title" }, title), build(close)));
    dialog.addEventListener("close", () => {
      dialog.remove();
      resolve(value);
    });
    document.body.append(dialog);
    dialog.showModal();
  });
}

/** Asks before something is done. `text`: paragraphs, or nodes. */
export async function ask({ title, text, yes, danger = false }) {
  const said = await open(title, (close) => [
    text.map((t) => (typeof t === "string" ? h("p", {}, words(t)) : t)),
    h("div", { class: "actions" },
      h("button", { type: "button", autofocus: true, onclick: () => close(null) }, "Cancel"),
      h("button", { type: "button", class: danger ? "danger" : "main", onclick: () => close(true) }, yes)),
  ]);
  return said === true;
}

/** Says what went wrong, and what to do. */
export function failed(error) {
  return open("That did not work", (close) => [
    h("p", { role: "alert" }, sentence(error.message)),
    error.step && h("p", { class: "note" }, words(sentence(error.step))),
    h("div", { class: "actions" }, h("button", { type: "button", class: "main", autofocus: true, onclick: () => close() }, "Close")),
  ]);
}

const TOAST_MS = 12_000;

/** A note that goes by itself. `undo`: what a button beside it does. */
export function toast(text, undo = null) {
  const note = h("div", { class: "toast" }, h("span", {}, text), undo && h("button", { type: "button", onclick: () => {
    note.remove();
    undo();
  } }, "Undo"));
  document.getElementById("toasts").append(note);
  setTimeout(() => note.remove(), TOAST_MS);
}
