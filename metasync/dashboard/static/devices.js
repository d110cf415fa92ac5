// Devices that belong to the workspace, and invitations for new ones.

import { qr } from "./charts.js";
import { h, icon, put, words } from "./dom.js";
import { ask, open } from "./dialogs.js";
import { ago, listed, sentence } from "./words.js";

const STATES = { admitted: ["good", "check", "Belongs to it"], revoked: ["bad", "alert", "Revoked"], joining: ["busy", "sync", "Joining"] };

export async function view(page) {
  const found = await page.look("devices");
  const nodes = [
    h("div", { class: "head" }, h("h1", {}, "Devices"),
      h("button", { type: "button", class: "main", onclick: () => invite(page) }, "Invite a device …"),
      h("p", {}, "Devices that may read and write this workspace.")),
    found.problem && h("p", { class: "note" }, sentence(found.problem)),
    h("div", { class: "card" }, h("ul", { class: "rows" }, found.devices.map((d) => device(page, d)))),
    h("div", { class: "card" },
      h("h2", {}, "Open invitations"),
      found.invitations.length
        ? h("ul", { class: "rows" }, found.invitations.map((i) => h("li", { class: "row" },
            h("strong", { class: "name grow" }, i.name),
            h("span", { class: "small quiet" }, i.expires === null ? "does not end by itself" : `may be used up to version ${i.expires}`),
            h("button", { type: "button", onclick: () => takeBack(page, i) }, "Take back", h("span", { class: "hidden" }, ` ${i.name}`)))))
        : h("p", { class: "empty" }, "None waits to be used.")),
    found.withdraw.length > 0 && h("div", { class: "card problem" },
      h("h3", {}, icon("alert"), "Logins to be withdrawn"),
      h("p", {}, words("Revoked devices still have these logins at the providers. Withdraw them there, then say so with `metasync device confirm`.")),
      h("ul", {}, found.withdraw.map((w) => h("li", {}, h("bdi", {}, `${w.device} at ${w.backend}: ${w.what}`))))),
    h("p", { class: "small quiet" }, words("To revoke a device, run `metasync device revoke NAME`: it changes the keys, and shows a new recovery phrase once.")),
  ];
  return { nodes };
}

function device(page, d) {
  const [colour, sign, words] = STATES[d.state] ?? ["", "waiting", d.state];
  const pushed = d.version === null ? "has pushed nothing that is known here" : d.this ? `at version ${d.version}` : `pushed version ${d.version} ${ago(d.seen)}`;
  return h("li", { class: "row" },
    icon("devices"),
    h("span", { class: "grow" }, h("strong", { class: "name" }, d.name), d.this && " (this device)", h("br"), h("span", { class: "small quiet" }, pushed)),
    h("span", { class: `chip ${colour}` }, icon(sign), words),
    d.state === "admitted" && h("button", { type: "button", class: "plain", onclick: () => rename(page, d) }, "Rename", h("span", { class: "hidden" }, ` ${d.name}`)));
}

async function rename(page, d) {
  const name = await open(`Rename ${d.name}`, (close) => h("form", { class: "stack", method: "dialog", onsubmit: (event) => {
    event.preventDefault();
    close(new FormData(event.target).get("name"));
  } },
  h("label", {}, "New name", h("input", { name: "name", required: true, maxlength: 60, value: d.name, autocomplete: "off" })),
  h("div", { class: "actions" }, h("button", { type: "button", onclick: () => close(null) }, "Cancel"), h("button", { class: "main" }, "Rename"))));
  if (!name || name === d.name) return;
  if ((await page.done("rename", { device: d.id, name })) !== null) {
    page.toast(`${d.name} is called ${name} now, on all devices.`);
    page.again();
  }
}

async function takeBack(page, i) {
  const sure = await ask({ title: `Take the invitation for ${i.name} back?`, text: ["Nobody can use it then. Who has read it already holds the keys of today: if that was a stranger, run `metasync key rotate`."], yes: "Take it back", danger: true });
  if (!sure) return;
  if ((await page.done("take_back", { invitation: i.id })) !== null) {
    page.toast(`The invitation for ${i.name} is void.`);
    page.again();
  }
}

async function invite(page) {
  const made = await open("Invite a device", (close) => {
    const wrong = h("p", { class: "note bad", role: "alert", hidden: true });
    const button = h("button", { class: "main" }, "Make the invitation");
    const submit = async (event) => {
      event.preventDefault();
      const form = event.target;
      const fields = { name: form.elements.name.value.trim(), passphrase: form.elements.passphrase.value, expires: null };
      button.disabled = true;
      wrong.hidden = true;
      try {
        const answer = await page.done("invite", fields, { quiet: true });
        form.reset();
        close(answer);
      } catch (error) {
        put(wrong, sentence(error.message), error.step && ` ${sentence(error.step)}`);
        wrong.hidden = false;
        form.elements.passphrase.value = "";
        form.elements.passphrase.focus();
      } finally {
        button.disabled = false;
      }
    };
    return h("form", { class: "stack", onsubmit: submit },
      h("p", { class: "quiet" }, "The new device joins without the passphrase. Whoever uses the code first is admitted: hand it over on a way that nobody else reads."),
      h("label", {}, "Name of the new device", h("input", { name: "name", required: true, maxlength: 60, autocomplete: "off", autofocus: true })),
      h("label", {}, "Passphrase of the workspace", h("span", { class: "small quiet" }, "or the recovery phrase; it is used now, and kept nowhere"),
        h("input", { name: "passphrase", type: "password", required: true, autocomplete: "off" })),
      wrong,
      h("div", { class: "actions" }, h("button", { type: "button", onclick: () => close(null) }, "Cancel"), button));
  });
  if (made === null) return;
  await open(`Invitation for ${made.name}`, (close) => [
    made.qr.length > 0 && qr(made.qr, `QR code of the invitation for ${made.name}`),
    h("p", {}, "It works once", made.expires === null ? "" : `, up to version ${made.expires}`, ". It is shown now, and not again."),
    h("code", { class: "code mono", tabindex: "0", id: "code" }, made.code),
    h("p", { class: "small quiet" }, "There: ", h("code", {}, "metasync clone FOLDER --invite CODE")),
    made.missing.length > 0 && h("p", { class: "note" }, `Not stored yet on ${listed(made.missing)}.`),
    h("div", { class: "actions" },
      h("button", { type: "button", onclick: async () => {
        await navigator.clipboard.writeText(made.code);
        page.toast("The code is in the clipboard.");
      } }, "Copy"),
      h("button", { type: "button", class: "main", autofocus: true, onclick: () => close() }, "Done")),
  ]);
  page.again();
}
