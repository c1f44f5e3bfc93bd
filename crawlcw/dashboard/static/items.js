// The recorded items of a crawl, those of the task that changed last first, with their tasks.

import { get, crawlPath } from "/static/api.js";
import { el, setText } from "/static/dom.js";
import { ago, moment, plural, whole } from "/static/format.js";
import { pretty } from "/static/task.js";

const TASKS = 20;
// A response covers so many tasks, and these may have no items: read up to this many in a row.
const ROUNDS = 40;

export function items({ name, signal, address }) {
  const list = el("div", { class: "stack" });
  const line = el("p", { class: "muted", role: "status" });
  const more = el("button", { type: "button", hidden: true, on: { click: () => read() }, text: "More" });
  const reload = el("button", { type: "button", on: { click: () => restart() }, text: "Reload" });
  const element = el("div", { class: "stack" },
    el("div", { class: "title-row" },
      el("div", {}, el("h1", { text: "Items" }), el("p", { class: "headline", text: "Of the finished tasks, the last changed first" })),
      el("div", { class: "buttons" }, reload)),
    list,
    el("div", { class: "foot" }, line, more));
  let cursor = null;
  let number = 0;

  async function read() {
    more.hidden = reload.disabled = true;
    setText(line, "Reading…");
    try {
      const wanted = list.children.length + TASKS;
      for (let round = 0; round < ROUNDS && list.children.length < wanted; round += 1) {
        const answer = await get(crawlPath(name, `items?limit=${TASKS}${cursor ? `&cursor=${cursor}` : ""}`), signal);
        list.append(...answer.tasks.map(task));
        number += answer.tasks.reduce((sum, { item_count }) => sum + item_count, 0);
        cursor = answer.next_cursor;
        if (cursor === null) break;
      }
      setText(line, `${number ? plural(number, "item") : "No item"}${cursor === null ? ", that is all" : " so far"}`);
    } catch (error) {
      if (signal.aborted) return;
      setText(line, error.message);
    }
    more.hidden = cursor === null;
    reload.disabled = false;
  }

  function restart() {
    cursor = null;
    number = 0;
    list.replaceChildren();
    read();
  }

  function task(one) {
    const rest = one.item_count - one.items.length;
    const page = address(name, "task", `/${one.id}`);
    return el("section", { class: "card wide", "aria-label": `Items of ${one.url}` },
      el("div", { class: "card-head" },
        el("h2", {}, el("a", { class: "url", href: page, text: one.url })),
        el("p", { class: "muted" }, `${plural(one.item_count, "item")} · `, el("time", { datetime: one.update_time, title: moment(one.update_time), text: ago(one.update_time) }))),
      one.items.map((item) => el("pre", { tabindex: "0", text: pretty(item) })),
      rest ? el("p", { class: "muted", text: `and ${whole(rest)} more` }) : null);
  }

  read();
  return { element };
}
