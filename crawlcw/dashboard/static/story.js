// All that is recorded of one task: how it was found, tried, and what it gave.

import { act, buttons } from "/static/actions.js";
import { get, of } from "/static/api.js";
import { badge, card, el, outward, table } from "/static/dom.js";
import { ago, bytes, moment, plural, whole } from "/static/format.js";

const AGAIN = 3_000;

export function story({ name, asked, signal, address }) {
  const id = asked.rest[0] ?? "";
  const content = el("div", { class: "stack" }, el("p", { class: "muted", text: "Reading…" }));
  const element = el("div", { class: "stack" }, el("p", { class: "back" }, el("a", { href: address(name, "tasks"), text: "← Tasks" })), content);
  let shown = "";

  async function look() {
    try {
      const task = await get(of(name, `tasks/${id}`), signal);
      // What was opened to be read stays open, and what is focused stays so.
      if (JSON.stringify(task) === shown) return;
      shown = JSON.stringify(task);
      const open = [...content.querySelectorAll("details[open]")].map((each) => each.dataset.key);
      const focused = content.contains(document.activeElement) ? document.activeElement.dataset.action : null;
      content.replaceChildren(...whole_story(task));
      for (const each of content.querySelectorAll("details")) each.open = each.open || open.includes(each.dataset.key);
      if (focused) content.querySelector(`[data-action=${focused}]`)?.focus();
    } catch (error) {
      if (error.name === "AbortError") return;
      if (!shown) content.replaceChildren(el("p", { class: "card none", text: error.message }));
    }
  }

  function whole_story(task) {
    const doing = async (action) => {
      if (await act(name, action, { tasks: [id] }, task.url.slice(0, 300))) look();
    };
    return [
      el("div", { class: "title-row" },
        el("div", {}, el("h1", { class: "url" }, outward(task.url)), el("p", { class: "headline" }, badge(task.status), task.reason ? el("code", { text: task.reason }) : null, el("span", { class: "muted", text: `since ${moment(task.update_time)} (${ago(task.update_time)})` }))),
        el("div", { class: "buttons" }, buttons(doing))),
      facts(task),
      attempts(task),
      response(task),
      leadsTo(task),
      foundOn(task),
      task.tracked ? values("Results by stage", Object.entries(task.results)) : items(task),
      task.tracked ? values("Data", [["data", task.data]]) : null,
      task.context ? values("Context", [["context", task.context]]) : null,
      task.trace.length ? claims(task) : null,
    ].filter(Boolean);
  }

  function facts(task) {
    const pairs = [
      ["Known since", moment(task.create_time)],
      [task.tracked ? "Stage" : "Host", task.host],
      task.tracked ? null : ["Request", `${task.method}${task.body_bytes ? `, a body of ${bytes(task.body_bytes)}` : ""}`],
      task.tracked ? null : ["Callback", `${task.callback}()`],
      task.tracked ? null : ["Depth", whole(task.depth)],
      ["Priority", whole(task.priority)],
      ["Failed attempts", whole(task.retry)],
      task.lost ? ["Workers lost on it", whole(task.lost)] : null,
      task.due ? [task.holder ? "Lease until" : "Due", moment(task.due)] : null,
      task.holder ? ["Leased to", task.holder] : null,
      task.stored ? ["Body kept in", `${task.stored.file}, ${bytes(task.stored.length)} at ${whole(task.stored.offset)}`] : null,
    ];
    return el("section", { class: "card", "aria-label": "Facts" }, definitions(pairs.filter(Boolean)));
  }

  function attempts(task) {
    if (!task.errors.length) return card("Attempts", {}, el("p", { class: "muted none", text: "No attempt has failed." }));
    return card("Attempts that failed", {}, el("ol", { class: "attempts" }, task.errors.map((error) =>
      el("li", {},
        el("p", {}, el("strong", { text: `Attempt ${error.attempt}` }), " ", el("code", { text: error.kind }), " ", el("time", { class: "muted", datetime: error.time, text: moment(error.time) })),
        el("p", { class: "message", text: error.message }),
        error.traceback ? el("details", { "data-key": `${error.attempt} ${error.time}` }, el("summary", { text: "Traceback" }), el("pre", { tabindex: "0", text: error.traceback })) : null,
      ))));
  }

  function response(task) {
    const found = task.response;
    if (!found) return null;
    const pairs = [
      ["Status", found.status],
      ["Type", found.content_type ?? "none"],
      ["Size", bytes(found.bytes) + (found.truncated ? `, cut: ${found.truncated}` : "")],
      ["Took", `${found.elapsed.toFixed(3)} s`],
      found.final_url !== task.url ? ["It was at", outward(found.final_url)] : null,
      found.etag ? ["ETag", found.etag] : null,
      found.last_modified ? ["Last modified", found.last_modified] : null,
    ];
    return card("Last response", {}, definitions(pairs.filter(Boolean)));
  }

  function leadsTo(task) {
    if (!task.leads_to.length) return null;
    return card("Leads to", {}, el("ol", { class: "chain" }, task.leads_to.map((page) =>
      el("li", {}, badge(page.status), " ", page.reason ? el("code", { text: page.reason }) : null, " ", el("a", { class: "url", href: address(name, "task", `/${page.id}`), text: page.url })))));
  }

  function foundOn(task) {
    if (task.tracked || !task.linked_from.length) return null;
    return card("Found on", {}, el("ol", { class: "chain" }, task.linked_from.map((page) => el("li", {}, el("a", { class: "url", href: address(name, "task", `/${page.id}`), text: page.url })))));
  }

  function items(task) {
    if (!task.item_count) return null;
    const rest = task.item_count - task.items.length;
    return card(plural(task.item_count, "item"), { class: "wide" }, task.items.map((item) => el("pre", { tabindex: "0", text: pretty(item) })), rest ? el("p", { class: "muted", text: `and ${whole(rest)} more` }) : null);
  }

  function values(title, pairs) {
    return card(title, { class: "wide" }, pairs.length ? pairs.map(([key, value]) => el("div", {}, pairs.length > 1 || title !== "Data" ? el("h3", { text: key }) : null, el("pre", { tabindex: "0", text: pretty(value) }))) : el("p", { class: "muted none", text: "None yet." }));
  }

  function claims(task) {
    return card("Claims", { class: "wide" }, table("Claims, the last first", [["Claim", "num"], ["Stage"], ["Worker"], ["Began"], ["Ended"], ["How"]],
      task.trace.map((each) => [whole(each.fence), each.stage, each.worker, moment(each.started_at), moment(each.ended_at), each.event])));
  }

  look();
  const timer = setInterval(look, AGAIN);
  signal.addEventListener("abort", () => clearInterval(timer));
  return { element };
}

function definitions(pairs) {
  return el("dl", { class: "facts" }, pairs.map(([key, value]) => el("div", {}, el("dt", { text: key }), el("dd", {}, value instanceof Node ? value : el("span", { text: value })))));
}

const TOKENS = /"(?:[^"\\]|\\.)*"|[{}[\],:]|[^\s"{}[\],:]+/g;

/** Return JSON with a line for each value. Its own text: a number that is parsed may be another one. */
export function pretty(text) {
  try {
    JSON.parse(text);
  } catch {
    return text; // It was cut, or is said in words.
  }
  const tokens = text.match(TOKENS);
  let depth = 0;
  const line = () => `\n${"  ".repeat(depth)}`;
  return tokens.map((token, n) => {
    if (token === ",") return `,${line()}`;
    if (token === ":") return ": ";
    if ("{[".includes(token)) {
      depth += 1;
      return "}]".includes(tokens[n + 1]) ? token : token + line();
    }
    if (!"}]".includes(token)) return token;
    depth -= 1;
    return "{[".includes(tokens[n - 1]) ? token : line() + token;
  }).join("");
}
