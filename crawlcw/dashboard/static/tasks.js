// Search tasks, page by page, and choose some of them for an action.

import { act, buttons } from "/static/actions.js";
import { get, crawlPath } from "/static/api.js";
import { badge, el, render, setText } from "/static/dom.js";
import { ago, moment, plural, whole } from "/static/format.js";

const STATUSES = ["todo", "processing", "failed", "finished", "ignored"];
const TIMES = { "": "any time", "600": "last 10 minutes", "3600": "last hour", "86400": "last 24 hours", "604800": "last 7 days" };
const PAGE = 50;
// A response covers 10,000 tasks: read up to this many responses in a row.
const ROUNDS = 60;

export function tasks({ name, target, signal, address }) {
  let query = target.query;
  let running = null;
  let rows = []; // rows as they are shown
  let cursor = null;
  const selectedIds = new Set();
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
  const stop = el("button", { type: "button", hidden: true, on: { click: () => running?.abort() }, text: "Stop" });
  const selected = el("div", { class: "selection", role: "group", "aria-label": "Selection" });
  const element = el("div", { class: "stack" }, el("h1", { text: "Tasks" }), form, selected, el("section", { class: "card wide", "aria-label": "Tasks found" }, result, el("div", { class: "foot" }, line, stop, more)));

  function asText() {
    const filters = new URLSearchParams();
    if (text.value.trim()) filters.set("text", text.value.trim());
    const statuses = boxes.filter((box) => box.checked).map((box) => box.value);
    if (statuses.length) filters.set("status", statuses.join(","));
    if (reason.value) filters.set("reason", reason.value);
    if (host.value.trim()) filters.set("host", host.value.trim());
    if (since.value) filters.set("since", since.value);
    const all = String(filters);
    return all ? `?${all}` : "";
  }

  function show() {
    text.value = query.get("text") ?? "";
    host.value = query.get("host") ?? "";
    since.value = query.get("since") ?? "";
    const statuses = (query.get("status") ?? "").split(",");
    for (const box of boxes) box.checked = statuses.includes(box.value);
    showReasons();
  }
  function showReasons() {
    const wanted = query.get("reason") ?? "";
    render(reason, [wanted, ...reasons], () => [el("option", { value: "", text: "any" }), ...[...new Set([...(wanted ? [wanted] : []), ...reasons])].map((name) => el("option", { value: name, text: name }))]);
    reason.value = wanted;
  }

  /** Return the filters for the server. A text that begins like a URL is a prefix. */
  function selection() {
    const filters = {};
    const typed = query.get("text");
    if (typed) filters[/^https?:\/\//i.test(typed) ? "prefix" : "text"] = typed;
    for (const field of ["reason", "host"]) if (query.get(field)) filters[field] = query.get(field);
    if (query.get("status")) filters.status = query.get("status").split(",");
    const age = Number(query.get("since"));
    if (age) filters.changed_since = new Date(Date.now() - 1000 * age).toISOString();
    return filters;
  }

  async function search(restart) {
    running?.abort();
    const request = (running = new AbortController());
    signal.addEventListener("abort", () => request.abort(), { signal: request.signal });
    if (restart) {
      rows = [];
      cursor = null;
      selectedIds.clear();
    }
    const wanted = rows.length + PAGE;
    let scanned = 0;
    stop.hidden = false;
    more.hidden = true;
    try {
      for (let round = 0; round < ROUNDS && rows.length < wanted; round += 1) {
        const { status, ...rest } = selection();
        const query = new URLSearchParams({ ...rest, ...(status ? { status: status.join(",") } : {}), limit: String(Math.min(wanted - rows.length, PAGE)), ...(cursor ? { cursor } : {}) });
        const answer = await get(crawlPath(name, `tasks?${query}`), request.signal);
        const known = new Set(rows.map((task) => task.id));
        rows = [...rows, ...answer.tasks.filter((task) => !known.has(task.id))];
        cursor = answer.next_cursor;
        scanned += answer.scanned_tasks;
        showRows();
        if (cursor === null) break;
        setText(line, `${plural(rows.length, "task")}; searched back to ${moment(answer.scanned_back_to)}…`);
      }
      setText(line, cursor === null ? `${plural(rows.length, "task")}, that is all` : `${plural(rows.length, "task")} so far`);
    } catch (error) {
      if (request !== running && error.name === "AbortError") return;
      setText(line, error.name === "AbortError" ? `${plural(rows.length, "task")} so far; stopped` : error.message);
      showRows();
    }
    stop.hidden = true;
    more.hidden = cursor === null;
    setText(more, rows.length ? "More" : `Search beyond ${whole(scanned)} tasks`);
  }

  function showRows() {
    render(body, rows, () => (rows.length ? rows.map(row) : [el("tr", {}, el("td", { colspan: "6", class: "muted none", text: "No task matches." }))]));
    showSelection();
  }
  function row(task) {
    const box = el("input", { type: "checkbox", value: task.id, "aria-label": `Select ${task.url.slice(0, 200)}`, on: { change: () => { if (box.checked) selectedIds.add(task.id); else selectedIds.delete(task.id); showSelection(); } } });
    box.checked = selectedIds.has(task.id);
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
    selectedIds.clear();
    if (on) for (const task of rows) selectedIds.add(task.id);
    for (const box of body.querySelectorAll("input[type=checkbox]")) box.checked = on;
    showSelection();
  }
  function showSelection() {
    all.checked = rows.length > 0 && selectedIds.size === rows.length;
    all.indeterminate = selectedIds.size > 0 && selectedIds.size < rows.length;
    const filters = selection();
    const whole = selectedIds.size === 0 && rows.length > 0 && !("text" in filters);
    render(selected, [selectedIds.size, whole], () => {
      if (!selectedIds.size && !whole) return [];
      const what = selectedIds.size ? `${plural(selectedIds.size, "task")} selected` : "All that match the search";
      return [el("span", { text: what }), ...buttons((action) => doAll(action))];
    });
  }
  async function doAll(action) {
    const which = selectedIds.size ? { tasks: [...selectedIds] } : { selection: selection() };
    const about = selectedIds.size ? `The ${plural(selectedIds.size, "task")} that you have selected` : "All tasks that match the search";
    if (await act(name, action, which, about)) search(true);
  }

  show();
  search(true);
  if (query.get("focus")) requestAnimationFrame(() => text.focus());
  return {
    element,
    update(now) {
      const kind = now.kind === "use_case";
      setText(hostLabel, kind ? "Stage" : "Host");
      const known = now.reasons.map(({ reason }) => reason).sort();
      if (known.join() !== reasons.join()) {
        reasons = known;
        showReasons();
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
