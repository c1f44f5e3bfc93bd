// The page as a whole: which crawl and view are shown, by the address behind the #, and whether
// what is shown is live. Views are made by crawls.js, overview.js, tasks.js,
// items.js and story.js.

import { live, Refused, start, token } from "/static/api.js";
import { crawlList } from "/static/crawls.js";
import { el, fill, say } from "/static/dom.js";
import { items } from "/static/items.js";
import { overview } from "/static/overview.js";
import { story } from "/static/story.js";
import { tasks } from "/static/tasks.js";

const VIEWS = { overview, tasks, items, task: story };
const NAMES_EVERY = 4_000;
const main = document.getElementById("main");
const picker = document.getElementById("picker");
const choice = document.getElementById("crawl");
const nav = document.getElementById("nav");
const status = document.getElementById("live");

let crawls = [];
let shown = null; // {name, view, part, page, ended}
let listening = null; // {name, ended}
let latest = null;

/** Return the address of a view. */
export function address(name, view = "overview", rest = "") {
  return `#/${encodeURIComponent(name)}/${view}${rest}`;
}

function place() {
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

function tell(state, text) {
  status.className = `live ${state}`;
  fill(status, [state, text], () => [el("span", { class: "dot", "aria-hidden": "true" }), text]);
}

function route() {
  const asked = place();
  if (!asked.name && crawls.length) {
    // A dashboard of one crawl opens with it; the name of the page leads to the list.
    if (crawls.length === 1 && !location.hash) location.replace(address(crawls[0]));
    else all();
    return;
  }
  if (!crawls.includes(asked.name)) {
    nothing(asked.name);
    return;
  }
  listen(asked.name);
  choice.value = asked.name;
  showLinks(asked);
  document.title = `${asked.name} · crawlcw`;
  if (shown?.name === asked.name && shown.view === asked.view && shown.page.move?.(asked)) return;
  shown?.ended.abort();
  const ended = new AbortController();
  const page = VIEWS[asked.view]({ name: asked.name, asked, signal: ended.signal, address });
  shown = { name: asked.name, view: asked.view, page, ended };
  main.replaceChildren(page.element);
  main.className = asked.view;
  if (latest) page.update?.(latest);
  window.scrollTo(0, 0);
}

/** Show the list of all crawls. */
function all() {
  if (shown?.view === "crawls") return;
  listening?.ended.abort();
  shown?.ended.abort();
  listening = latest = null;
  fill(nav, [], () => []);
  choice.value = "";
  document.title = "Crawls · crawlcw";
  tell("waiting", "connecting");
  const ended = new AbortController();
  shown = { name: "", view: "crawls", ended, page: crawlList({ signal: ended.signal, address, on: heard }) };
  main.replaceChildren(shown.page.element);
  main.className = "crawls";
  window.scrollTo(0, 0);
}

function showLinks(asked) {
  const link = (view, text) =>
    el("a", { href: address(asked.name, view), "aria-current": asked.view === view ? "page" : null, text });
  // The tasks of a use case have results, and no items.
  const isCrawl = latest?.kind !== "use_case";
  fill(nav, [asked.name, asked.view, isCrawl], () => [link("overview", "Overview"), link("tasks", "Tasks"), ...(isCrawl ? [link("items", "Items")] : [])]);
}

function listen(name) {
  if (listening?.name === name) return;
  listening?.ended.abort();
  const ended = new AbortController();
  listening = { name, ended };
  latest = null;
  tell("waiting", "connecting");
  live(name, heard, ended.signal);
}

function heard(event, data) {
  if (event === "overview") {
    latest = data;
    tell("on", "live");
    showLinks(place());
    shown?.page.update?.(data);
  } else if (event === "crawls") {
    tell("on", "live");
  } else if (data.status === 401) {
    login();
  } else {
    tell("off", data.error);
  }
}

function nothing(name) {
  listening?.ended.abort();
  shown?.ended.abort();
  listening = shown = latest = null;
  nav.hidden = crawls.length === 0;
  fill(nav, [], () => []);
  choice.value = "";
  tell("waiting", "waiting");
  const unknown = crawls.length > 0;
  main.className = "empty";
  main.replaceChildren(
    el("div", { class: "card hello" },
      el("img", { src: "/static/icon.svg", alt: "", width: 56, height: 56 }),
      el("h1", { text: unknown ? `There is no crawl named ${name}` : "Nothing has been crawled here yet" }),
      el("p", { text: unknown ? "It may have been dropped. Choose another one:" : "This page begins to show a crawl as soon as it has a first task. In another terminal:" }),
      unknown
        ? el("ul", { class: "plain" }, crawls.map((each) => el("li", {}, el("a", { href: address(each), text: each }))))
        : el("pre", { tabindex: "0", text: "crawlcw new books https://books.toscrape.com/\ncrawlcw run books" }),
    ),
  );
}

function login() {
  listening?.ended.abort();
  shown?.ended.abort();
  listening = shown = null;
  picker.hidden = nav.hidden = true;
  tell("off", "token needed");
  main.className = "empty";
  const field = el("input", { id: "token", type: "password", autocomplete: "current-password", required: true, "aria-describedby": "token-why" });
  const why = el("p", { id: "token-why", class: "muted", text: "It is in the file that --token-file names, or in CRAWLCW_TOKEN, where the dashboard was started." });
  const submit = (event) => {
    event.preventDefault();
    token.set(field.value.trim());
    begin();
  };
  if (token.get()) say(why, "That was not the token. Try again.");
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

async function look() {
  try {
    const found = await start();
    const before = crawls.join("\n");
    crawls = found.crawls;
    picker.hidden = nav.hidden = crawls.length === 0;
    fill(choice, crawls, () => [el("option", { value: "", text: "All crawls" }), ...crawls.map((name) => el("option", { value: name, text: name }))]);
    choice.value = shown?.name ?? "";
    if (before !== crawls.join("\n") || shown === null) route();
    return true;
  } catch (error) {
    if (error instanceof Refused && error.status === 401) {
      login();
      return false;
    }
    tell("off", error.message);
    return true;
  }
}

let again = null;
async function begin() {
  clearTimeout(again);
  if (await look()) again = setTimeout(begin, NAMES_EVERY);
}

/** Take a token out of the address: it is not to stay in the history. */
function takeToken() {
  const given = new URLSearchParams(location.hash.slice(1)).get("token");
  if (given === null) return;
  token.set(given);
  history.replaceState(null, "", location.pathname);
}

takeToken();
choice.addEventListener("change", () => { location.hash = choice.value ? address(choice.value, place().view === "tasks" ? "tasks" : "overview") : "#/"; });
window.addEventListener("hashchange", () => { takeToken(); if (shown || crawls.length) route(); });
document.addEventListener("keydown", (event) => {
  if (event.key !== "/" || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target.closest?.("input, select, textarea, dialog[open]") || !crawls.length) return;
  event.preventDefault();
  const field = document.getElementById("text");
  if (field) field.focus();
  else location.hash = address(place().name || crawls[0], "tasks", "?focus=1");
});
begin();
