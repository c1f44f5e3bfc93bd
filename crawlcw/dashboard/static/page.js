// The page as a whole: the address behind the # names the crawl and the view, and the bar on top
// shows whether the data is live. crawls.js, overview.js, tasks.js, items.js and task.js make views.

import { live, Refused, start, token } from "/static/api.js";
import { crawlList } from "/static/crawls.js";
import { el, render, setText } from "/static/dom.js";
import { items } from "/static/items.js";
import { overview } from "/static/overview.js";
import { taskDetails } from "/static/task.js";
import { tasks } from "/static/tasks.js";

const VIEWS = { overview, tasks, items, task: taskDetails };
const NAMES_INTERVAL = 4_000;
const main = document.getElementById("main");
const picker = document.getElementById("picker");
const choice = document.getElementById("crawl");
const nav = document.getElementById("nav");
const status = document.getElementById("live");

let crawls = [];
let shown = null; // {name, view, page, ended}
let stream = null; // {name, ended}
let latest = null;

/** Return the address of a view. */
export function address(name, view = "overview", rest = "") {
  return `#/${encodeURIComponent(name)}/${view}${rest}`;
}

function readAddress() {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  const [name = "", view = "overview", ...rest] = path.split("/").map((part) => {
    try {
      return decodeURIComponent(part);
    } catch {
      return "";
    }
  });
  return { name, view: Object.hasOwn(VIEWS, view) ? view : "overview", rest, query: new URLSearchParams(query) };
}

function showStatus(state, text) {
  status.className = `live ${state}`;
  render(status, [state, text], () => [el("span", { class: "dot", "aria-hidden": "true" }), text]);
}

function route() {
  const target = readAddress();
  if (!target.name && crawls.length) {
    // A dashboard of one crawl opens with that crawl. The link at the top leads to the list.
    if (crawls.length === 1 && !location.hash) location.replace(address(crawls[0]));
    else showCrawls();
    return;
  }
  if (!crawls.includes(target.name)) {
    showEmpty(target.name);
    return;
  }
  listen(target.name);
  choice.value = target.name;
  showLinks(target);
  document.title = `${target.name} · crawlcw`;
  if (shown?.name === target.name && shown.view === target.view && shown.page.move?.(target)) return;
  shown?.ended.abort();
  const ended = new AbortController();
  const page = VIEWS[target.view]({ name: target.name, target, signal: ended.signal, address });
  shown = { name: target.name, view: target.view, page, ended };
  main.replaceChildren(page.element);
  main.className = target.view;
  if (latest) page.update?.(latest);
  window.scrollTo(0, 0);
}

/** Show the list of all crawls. */
function showCrawls() {
  if (shown?.view === "crawls") return;
  stream?.ended.abort();
  shown?.ended.abort();
  stream = latest = null;
  render(nav, [], () => []);
  choice.value = "";
  document.title = "Crawls · crawlcw";
  showStatus("waiting", "connecting");
  const ended = new AbortController();
  shown = { name: "", view: "crawls", ended, page: crawlList({ signal: ended.signal, address, onEvent }) };
  main.replaceChildren(shown.page.element);
  main.className = "crawls";
  window.scrollTo(0, 0);
}

function showLinks(target) {
  const link = (view, text) =>
    el("a", { href: address(target.name, view), "aria-current": target.view === view ? "page" : null, text });
  // The tasks of a use case have results instead of items.
  const isCrawl = latest?.kind !== "use_case";
  render(nav, [target.name, target.view, isCrawl], () => [link("overview", "Overview"), link("tasks", "Tasks"), ...(isCrawl ? [link("items", "Items")] : [])]);
}

function listen(name) {
  if (stream?.name === name) return;
  stream?.ended.abort();
  const ended = new AbortController();
  stream = { name, ended };
  latest = null;
  showStatus("waiting", "connecting");
  live(name, onEvent, ended.signal);
}

function onEvent(event, data) {
  if (event === "overview") {
    latest = data;
    showStatus("on", "live");
    showLinks(readAddress());
    shown?.page.update?.(data);
  } else if (event === "crawls") {
    showStatus("on", "live");
  } else if (data.status === 401) {
    login();
  } else {
    showStatus("off", data.error);
  }
}

function showEmpty(name) {
  stream?.ended.abort();
  shown?.ended.abort();
  stream = shown = latest = null;
  nav.hidden = crawls.length === 0;
  render(nav, [], () => []);
  choice.value = "";
  showStatus("waiting", "waiting");
  const unknown = crawls.length > 0;
  main.className = "empty";
  main.replaceChildren(
    el("div", { class: "card hello" },
      el("img", { src: "/static/icon.svg", alt: "", width: 56, height: 56 }),
      el("h1", { text: unknown ? `There is no crawl named ${name}` : "Nothing has been crawled here yet" }),
      el("p", { text: unknown ? "It may have been dropped. Choose another one:" : "This page shows a crawl as soon as it has a first task. In another terminal:" }),
      unknown
        ? el("ul", { class: "plain" }, crawls.map((name) => el("li", {}, el("a", { href: address(name), text: name }))))
        : el("pre", { tabindex: "0", text: "crawlcw new books https://books.toscrape.com/\ncrawlcw run books" }),
    ),
  );
}

function login() {
  stream?.ended.abort();
  shown?.ended.abort();
  stream = shown = null;
  picker.hidden = nav.hidden = true;
  showStatus("off", "token needed");
  main.className = "empty";
  const field = el("input", { id: "token", type: "password", autocomplete: "current-password", required: true, "aria-describedby": "token-why" });
  const why = el("p", { id: "token-why", class: "muted", text: "The command crawlcw dashboard took it from the file of --token-file, or from CRAWLCW_TOKEN." });
  const submit = (event) => {
    event.preventDefault();
    token.set(field.value.trim());
    begin();
  };
  if (token.get()) setText(why, "That was not the token. Try again.");
  token.forget();
  main.replaceChildren(
    el("form", { class: "card hello", on: { submit } },
      el("h1", { text: "Access token" }),
      el("label", { for: "token", text: "Token of this dashboard" }),
      field,
      why,
      el("button", { class: "primary", type: "submit", text: "Open" }),
    ),
  );
  field.focus();
}

async function pollNames() {
  try {
    const answer = await start();
    const oldNames = crawls.join("\n");
    crawls = answer.crawls;
    picker.hidden = nav.hidden = crawls.length === 0;
    render(choice, crawls, () => [el("option", { value: "", text: "All crawls" }), ...crawls.map((name) => el("option", { value: name, text: name }))]);
    choice.value = shown?.name ?? "";
    if (oldNames !== crawls.join("\n") || shown === null) route();
    return true;
  } catch (error) {
    if (error instanceof Refused && error.status === 401) {
      login();
      return false;
    }
    showStatus("off", error.message);
    return true;
  }
}

let timer = null;
async function begin() {
  clearTimeout(timer);
  if (await pollNames()) timer = setTimeout(begin, NAMES_INTERVAL);
}

/** Remove the token from the address, so that the browser's history does not keep it. */
function takeToken() {
  const text = new URLSearchParams(location.hash.slice(1)).get("token");
  if (text === null) return;
  token.set(text);
  history.replaceState(null, "", location.pathname);
}

takeToken();
choice.addEventListener("change", () => { location.hash = choice.value ? address(choice.value, readAddress().view === "tasks" ? "tasks" : "overview") : "#/"; });
window.addEventListener("hashchange", () => { takeToken(); if (shown || crawls.length) route(); });
document.addEventListener("keydown", (event) => {
  if (event.key !== "/" || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target.closest?.("input, select, textarea, dialog[open]") || !crawls.length) return;
  event.preventDefault();
  const field = document.getElementById("text");
  if (field) field.focus();
  else location.hash = address(readAddress().name || crawls[0], "tasks", "?focus=1");
});
begin();
