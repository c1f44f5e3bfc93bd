// Searching tasks, a page at a time, and choosing some of them for an action.

import { act, buttons } from "/static/actions.js";
import { get, of } from "/static/api.js";
import { badge, el, fill, say } from "/static/dom.js";
import { ago, moment, plural, whole } from "/static/format.js";

const STATUSES = ["todo", "processing", "failed", "finished", "ignored"];
const TIMES = { "": "any time", "600": "last 10 minutes", "3600": "last hour", "86400": "last 24 hours", "604800": "last 7 days" };
const PAGE = 50;
// A search looks at some thousand tasks at a time; it goes on by itself so many times.
const ROUNDS = 60;

export function tasks({ name, asked, signal, address }) {
  let query = asked.query;
  let searching = null;
  let found = []; // rows as they are shown
  let after = null;
  const chosen = new Set();
  let reasons = [];

  const text = el("input", { id: "text", type: "search", placeholder: "https://… or a part of it", autocomplete: "off", spellcheck: "false", "aria-keyshortcuts": "/" });
  const reason = el("select", { id: "reason" });
  const host = el("input", { id: "host", type: "text", placeholder: "any", autocomplete: "off", spellcheck: "false" });
  const since = el("select", { id: "since" }, Object.entries(TIMES).map(([value, label]) => el("option", { value, text: label })));
  const boxes = STATUSES.map((status) => el("input", { type: "checkbox", value: status, id: `status-${status}` }));
  const submit = (event) => {
    event?.preventDefault();
    location.hash = address(name, "tasks", asText());
  };
  const hostLabel = el("label", { for: "host", text: "Host" });
  const form = el("form", { class: "card search", role: "search", "aria-label": "Search tasks", on: { submit, change: (event) => { if (event.target !== text && event.target !== host) submit(); } } },
    el("div", { class: "field grow" }, el("label", { for: "text", text: "URL or key" }), text),
    el("div", { class: "field" }, el("label", { for: "reason", text: "Reason" }), reason),
    el("div", { class: "field" }, hostLabel, host),
    el("div", { class: "field" }, el("label", { for: "since", text: "Changed" }), since),
    el("button", { class: "primary", type: "submit", text: "Search" }),
    el("fieldset", {}, el("legend", { class: "unseen", text: "Status" }), boxes.map((box) => el("label", { class: "chip" }, box, badge(box.value)))),
  );
  const all = el("input", { type: "checkbox", "aria-label": "Select all that are shown", on: { change: () => choose(all.checked) } });
  const body = el("tbody");
  const result = el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Tasks found" },
    el("table", { class: "tasks" }, el("caption", { class: "unseen", text: "Tasks found, the last changed first" }),
      el("thead", {}, el("tr", {}, el("th", { scope: "col", class: "box" }, all), ["Status", "URL", "Reason", "Failed attempts", "Changed"].map((title) => el("th", { scope: "col", class: title === "Failed attempts" ? "num" : "", text: title })))),
      body));
  const line = el("p", { class: "muted", role: "status" });
  const more = el("button", { type: "button", on: { click: () => search(false) }, text: "More" });
  const stop = el("button", { type: "button", hidden: true, on: { click: () => searching?.abort() }, text: "Stop" });
  const selected = el("div", { class: "selection", role: "group", "aria-label": "Selection" });
  const element = el("div", { class: "stack" }, el("h1", { text: "Tasks" }), form, selected, el("section", { class: "card wide", "aria-label": "Tasks found" }, result, el("div", { class: "foot" }, line, stop, more)));

  function asText() {
    const made = new URLSearchParams();
    if (text.value.trim()) made.set("text", text.value.trim());
    const statuses = boxes.filter((box) => box.checked).map((box) => box.value);
    if (statuses.length) made.set("status", statuses.join(","));
    if (reason.value) made.set("reason", reason.value);
    if (host.value.trim()) made.set("host", host.value.trim());
    if (since.value) made.set("since", since.value);
    const all = String(made);
    return all ? `?${all}` : "";
  }

  function show() {
    text.value = query.get("text") ?? "";
    host.value = query.get("host") ?? "";
    since.value = query.get("since") ?? "";
    const statuses = (query.get("status") ?? "").split(",");
    for (const box of boxes) box.checked = statuses.includes(box.value);
    offer();
  }
  function offer() {
    const asked = query.get("reason") ?? "";
    fill(reason, [asked, ...reasons], () => [el("option", { value: "", text: "any" }), ...[...new Set([...(asked ? [asked] : []), ...reasons])].map((each) => el("option", { value: each, text: each }))]);
    reason.value = asked;
  }

  /** Return what is asked for, as the server takes it: what looks like a URL's beginning is one. */
  function selection() {
    const made = {};
    const typed = query.get("text");
    if (typed) made[/^https?:\/\//i.test(typed) ? "prefix" : "text"] = typed;
    for (const each of ["reason", "host"]) if (query.get(each)) made[each] = query.get(each);
    if (query.get("status")) made.status = query.get("status").split(",");
    const age = Number(query.get("since"));
    if (age) made.changed_since = new Date(Date.now() - 1000 * age).toISOString();
    return made;
  }

  async function search(anew) {
    searching?.abort();
    const own = (searching = new AbortController());
    signal.addEventListener("abort", () => own.abort(), { signal: own.signal });
    if (anew) {
      found = [];
      after = null;
      chosen.clear();
    }
    const wanted = found.length + PAGE;
    let looked = 0;
    stop.hidden = false;
    more.hidden = true;
    try {
      for (let round = 0; round < ROUNDS && found.length < wanted; round += 1) {
        const { status, ...rest } = selection();
        const query = new URLSearchParams({ ...rest, ...(status ? { status: status.join(",") } : {}), limit: String(Math.min(wanted - found.length, PAGE)), ...(after ? { cursor: after } : {}) });
        const answer = await get(of(name, `tasks?${query}`), own.signal);
        const known = new Set(found.map((task) => task.id));
        found = [...found, ...answer.tasks.filter((task) => !known.has(task.id))];
        after = answer.next_cursor;
        looked += answer.scanned_tasks;
        rows();
        if (after === null) break;
        say(line, `${plural(found.length, "task")}; looked back to ${moment(answer.scanned_back_to)}…`);
      }
      say(line, after === null ? `${plural(found.length, "task")}, that is all` : `${plural(found.length, "task")} so far`);
    } catch (error) {
      if (own !== searching && error.name === "AbortError") return;
      say(line, error.name === "AbortError" ? `${plural(found.length, "task")} so far; stopped` : error.message);
      rows();
    }
    stop.hidden = true;
    more.hidden = after === null;
    say(more, found.length ? "More" : `Look further than ${whole(looked)} tasks`);
  }

  function rows() {
    fill(body, found, () => (found.length ? found.map(row) : [el("tr", {}, el("td", { colspan: "6", class: "muted none", text: "No task matches." }))]));
    choice();
  }
  function row(task) {
    const box = el("input", { type: "checkbox", value: task.id, "aria-label": `Select ${task.url.slice(0, 200)}`, on: { change: () => { if (box.checked) chosen.add(task.id); else chosen.delete(task.id); choice(); } } });
    box.checked = chosen.has(task.id);
    return el("tr", {},
      el("td", { class: "box" }, box),
      el("td", {}, badge(task.status)),
      el("td", { class: "main-cell" }, el("a", { class: "url", href: address(name, "task", `/${task.id}`), text: task.url }), task.error ? el("p", { class: "muted error", text: task.error }) : null),
      el("td", {}, task.reason ? el("code", { text: task.reason }) : task.status_code ? el("span", { class: "muted", text: `HTTP ${task.status_code}` }) : ""),
      el("td", { class: `num ${task.retry ? "" : "zero"}`, text: task.retry }),
      el("td", { class: "nowrap" }, el("time", { datetime: task.update_time, title: moment(task.update_time), text: ago(task.update_time) })),
    );
  }
  function choose(on) {
    chosen.clear();
    if (on) for (const task of found) chosen.add(task.id);
    for (const box of body.querySelectorAll("input[type=checkbox]")) box.checked = on;
    choice();
  }
  function choice() {
    all.checked = found.length > 0 && chosen.size === found.length;
    all.indeterminate = chosen.size > 0 && chosen.size < found.length;
    const asked = selection();
    const whole = chosen.size === 0 && found.length > 0 && !("text" in asked);
    fill(selected, [chosen.size, whole], () => {
      if (!chosen.size && !whole) return [];
      const what = chosen.size ? `${plural(chosen.size, "task")} selected` : "All that match the search";
      return [el("span", { text: what }), ...buttons((action) => doAll(action))];
    });
  }
  async function doAll(action) {
    const which = chosen.size ? { tasks: [...chosen] } : { selection: selection() };
    const about = chosen.size ? `The ${plural(chosen.size, "task")} that you have selected` : "All tasks that match the search";
    if (await act(name, action, which, about)) search(true);
  }

  show();
  search(true);
  if (query.get("focus")) requestAnimationFrame(() => text.focus());
  return {
    element,
    update(now) {
      const kind = now.kind === "use_case";
      say(hostLabel, kind ? "Stage" : "Host");
      const known = now.reasons.map(({ reason }) => reason).sort();
      if (known.join() !== reasons.join()) {
        reasons = known;
        offer();
      }
    },
    move(next) {
      query = next.query;
      show();
      search(true);
      return true;
    },
  };
}
