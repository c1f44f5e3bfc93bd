// All records of one task: the pages that led to it, its attempts, its response and its items.

import { act, buttons } from "/static/actions.js";
import { get, crawlPath } from "/static/api.js";
import { badge, card, el, outward, table } from "/static/dom.js";
import { ago, bytes, moment, plural, whole } from "/static/format.js";

const INTERVAL = 3_000;

export function taskDetails({ name, target, signal, address }) {
  const id = target.rest[0] ?? "";
  const content = el("div", { class: "stack" }, el("p", { class: "muted", text: "Reading…" }));
  const element = el("div", { class: "stack" }, el("p", { class: "back" }, el("a", { href: address(name, "tasks"), text: "← Tasks" })), content);
  let shown = "";

  async function poll() {
    try {
      const task = await get(crawlPath(name, `tasks/${id}`), signal);
      // Keep open details open, and keep the focus.
      if (JSON.stringify(task) === shown) return;
      shown = JSON.stringify(task);
      const open = [...content.querySelectorAll("details[open]")].map((details) => details.dataset.key);
      const focused = content.contains(document.activeElement) ? document.activeElement.dataset.action : null;
      content.replaceChildren(...sections(task));
      for (const details of content.querySelectorAll("details")) details.open = details.open || open.includes(details.dataset.key);
      if (focused) content.querySelector(`[data-action=${focused}]`)?.focus();
    } catch (error) {
      if (error.name === "AbortError") return;
      if (!shown) content.replaceChildren(el("p", { class: "card none", text: error.message }));
    }
  }

  function sections(task) {
    const doing = async (action) => {
      if (await act(name, action, { tasks: [id] }, task.url.slice(0, 300))) poll();
    };
    return [
      el("div", { class: "title-row" },
        el("div", {}, el("h1", { class: "url" }, outward(task.url)), el("p", { class: "headline" }, badge(task.status), task.reason ? el("code", { text: task.reason }) : null, el("span", { class: "muted", text: `since ${moment(task.update_time)} (${ago(task.update_time)})` }))),
        el("div", { class: "buttons" }, buttons(doing))),
      facts(task),
      attempts(task),
      responseCard(task),
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
      task.due ? [task.holder ? "Leased until" : "Due", moment(task.due)] : null,
      task.holder ? ["Leased to", task.holder] : null,
      task.stored ? ["Body stored in", `${task.stored.file}, ${bytes(task.stored.length)} at ${whole(task.stored.offset)}`] : null,
    ];
    return el("section", { class: "card", "aria-label": "Facts" }, definitions(pairs.filter(Boolean)));
  }

  function attempts(task) {
    if (!task.errors.length) return card("Attempts", {}, el("p", { class: "muted none", text: "No attempt has failed." }));
    return card("Failed attempts", {}, el("ol", { class: "attempts" }, task.errors.map((error) =>
      el("li", {},
        el("p", {}, el("strong", { text: `Attempt ${error.attempt}` }), " ", el("code", { text: error.kind }), " ", el("time", { class: "muted", datetime: error.time, text: moment(error.time) })),
        el("p", { class: "message", text: error.message }),
        error.traceback ? el("details", { "data-key": `${error.attempt} ${error.time}` }, el("summary", { text: "Traceback" }), el("pre", { tabindex: "0", text: error.traceback })) : null,
      ))));
  }

  function responseCard(task) {
    const response = task.response;
    if (!response) return null;
    const pairs = [
      ["Status", response.status],
      ["Type", response.content_type ?? "none"],
      ["Size", bytes(response.bytes) + (response.truncated ? `, cut off: ${response.truncated}` : "")],
      ["Took", `${response.elapsed.toFixed(3)} s`],
      response.final_url !== task.url ? ["Final URL", outward(response.final_url)] : null,
      response.etag ? ["ETag", response.etag] : null,
      response.last_modified ? ["Last modified", response.last_modified] : null,
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
    return card("Linked from", {}, el("ol", { class: "chain" }, task.linked_from.map((page) => el("li", {}, el("a", { class: "url", href: address(name, "task", `/${page.id}`), text: page.url })))));
  }

  function items(task) {
    if (!task.item_count) return null;
    const rest = task.item_count - task.items.length;
    return card(plural(task.item_count, "item"), { class: "wide" }, task.items.map((item) => el("pre", { tabindex: "0", text: pretty(item) })), rest ? el("p", { class: "muted", text: `and ${whole(rest)} more` }) : null);
  }

  function values(title, pairs) {
    return card(title, { class: "wide" }, pairs.length ? pairs.map(([key, value]) => el("div", {}, pairs.length > 1 || title !== "Data" ? el("h3", { text: key }) : null, el("pre", { tabindex: "0", text: pretty(value) }))) : el("p", { class: "muted none", text: "No value yet." }));
  }

  function claims(task) {
    return card("Claims", { class: "wide" }, table("Claims, the last first", [["Claim", "num"], ["Stage"], ["Worker"], ["Started"], ["Ended"], ["Outcome"]],
      task.trace.map((claim) => [whole(claim.fence), claim.stage, claim.worker, moment(claim.started_at), moment(claim.ended_at), claim.event])));
  }

  poll();
  const timer = setInterval(poll, INTERVAL);
  signal.addEventListener("abort", () => clearInterval(timer));
  return { element };
}

function definitions(pairs) {
  return el("dl", { class: "facts" }, pairs.map(([key, value]) => el("div", {}, el("dt", { text: key }), el("dd", {}, value instanceof Node ? value : el("span", { text: value })))));
}

const TOKENS = /"(?:[^"\\]|\\.)*"|[{}[\],:]|[^\s"{}[\],:]+/g;

/** Return JSON with a line for each value, token by token: parsing would round large numbers. */
export function pretty(text) {
  try {
    JSON.parse(text);
  } catch {
    return text; // It is cut off, or a sentence.
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
