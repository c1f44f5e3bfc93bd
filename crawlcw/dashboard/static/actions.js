// Actions on tasks, dialogs and toasts. An action first shows the number of tasks, and asks.

import { crawlPath, post } from "/static/api.js";
import { el, setText } from "/static/dom.js";
import { plural } from "/static/format.js";

export const ACTIONS = {
  retry: { verb: "Retry", done: "todo again", why: "Failed tasks become todo again, as if never tried. Other tasks do not change." },
  ignore: { verb: "Ignore", done: "ignored", why: "Waiting tasks leave the crawl. Reset brings them back." },
  reset: { verb: "Reset", done: "todo again", why: "Tasks start again from the beginning, finished ones too. Their items stay until there are new ones." },
};

const dialog = document.getElementById("dialog");
const toasts = document.getElementById("toasts");

/** Show a message for some seconds. */
export function toast(text, kind = "good") {
  const made = el("p", { class: `toast ${kind}`, text });
  toasts.append(made);
  setTimeout(() => made.remove(), 8_000);
}

/** Ask a question in a dialog; resolves to whether the user agrees. */
export function confirm({ title, text, yes, danger = false }) {
  return new Promise((resolve) => {
    const cancel = el("button", { type: "button", on: { click: () => dialog.close("no") }, text: "Cancel" });
    const go = el("button", { type: "button", class: danger ? "danger" : "primary", on: { click: () => dialog.close("yes") }, text: yes });
    dialog.replaceChildren(
      el("h2", { id: "dialog-title", text: title }),
      el("p", { text }),
      el("div", { class: "buttons" }, cancel, go),
    );
    dialog.returnValue = "no";
    dialog.addEventListener("close", () => resolve(dialog.returnValue === "yes"), { once: true });
    dialog.showModal();
    cancel.focus();
  });
}

/**
 * Ask for values in a dialog: *fields* are [{name, label, hint, value}]. `send(values)` gets the
 * texts by name; if it fails, the dialog shows the error and stays.
 */
export function ask({ title, text, fields, yes, send }) {
  const inputs = fields.map(({ name, value, hint }) => el("input", { type: "text", id: `ask-${name}`, name, value, placeholder: hint, autocomplete: "off", spellcheck: "false" }));
  const problem = el("p", { class: "problem", role: "alert" });
  const submit = async (event) => {
    event.preventDefault();
    try {
      await send(Object.fromEntries(inputs.map((input) => [input.name, input.value.trim()])));
      dialog.close("yes");
    } catch (error) {
      setText(problem, error.message);
    }
  };
  dialog.replaceChildren(
    el("form", { on: { submit } },
      el("h2", { id: "dialog-title", text: title }),
      el("p", { text }),
      fields.map(({ name, label }, n) => el("div", { class: "asked" }, el("label", { for: `ask-${name}`, text: label }), inputs[n])),
      problem,
      el("div", { class: "buttons" },
        el("button", { type: "button", on: { click: () => dialog.close("no") }, text: "Cancel" }),
        el("button", { type: "submit", class: "primary", text: yes })),
    ),
  );
  dialog.showModal();
  inputs[0].focus();
}

/**
 * Do an action on tasks after a confirmation: *which* is {tasks: [id]} or {selection: {...}}, and
 * *about* describes them. Return whether a task has changed.
 */
export async function act(name, action, which, about) {
  const { verb, done, why } = ACTIONS[action];
  try {
    const { changed, at_least } = await post(crawlPath(name, "act"), { action, ...which, dry_run: true });
    if (!changed && !at_least) {
      toast(`${verb} changes none of these: ${about}.`, "plain");
      return false;
    }
    const count = `${at_least ? "at least " : ""}${plural(changed, "task")}`;
    const go = await confirm({ title: `${verb} ${count}?`, text: `${about}. ${why}`, yes: `${verb} ${count}`, danger: action !== "retry" });
    if (!go) return false;
    const result = await post(crawlPath(name, "act"), { action, ...which });
    toast(`${plural(result.changed, "task")} ${done}.`);
    return result.changed > 0;
  } catch (error) {
    toast(error.message, "bad");
    return false;
  }
}

/** Return the buttons of all actions; a click calls *on* with the action's name. */
export function buttons(on, actions = Object.keys(ACTIONS)) {
  return actions.map((action) => el("button", { type: "button", "data-action": action, on: { click: () => on(action) }, text: ACTIONS[action].verb }));
}
