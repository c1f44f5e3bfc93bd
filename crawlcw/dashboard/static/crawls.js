// The start page: all crawls of the ledger, their states and their progress.

import { get } from "/static/api.js";
import { el, render, setText } from "/static/dom.js";
import { duration, plural, rate, whole } from "/static/format.js";
import { segments } from "/static/overview.js";

const INTERVAL = 3_000;

export function crawlList({ signal, address, onEvent }) {
  const headline = el("p", { class: "headline", text: "Reading…" });
  const list = el("ul", { class: "crawl-list" });
  const element = el("div", { class: "stack" }, el("div", {}, el("h1", { text: "Crawls" }), headline), list);

  async function read() {
    try {
      const { crawls } = await get("/api/crawls", signal);
      onEvent("crawls");
      const running = crawls.filter((crawl) => state(crawl) === "running");
      const speed = running.reduce((sum, crawl) => sum + crawl.rate, 0);
      setText(headline, `${plural(crawls.length, "crawl")} · ${running.length ? `${running.length} running, ${rate(speed)} tasks a second` : "none is running"}`);
      const ordered = [...running, ...crawls.filter((crawl) => !running.includes(crawl))];
      render(list, ordered, () => ordered.map((crawl) => line(crawl, address)));
    } catch (error) {
      if (!signal.aborted) onEvent("lost", { error: error.message, status: error.status });
    }
  }
  read();
  const timer = setInterval(read, INTERVAL);
  signal.addEventListener("abort", () => clearInterval(timer));
  return { element };
}

function state(crawl) {
  if (crawl.error) return "unreadable";
  if (crawl.paused) return "paused";
  if (crawl.workers) return "running";
  if (crawl.counted_at === null) return "counting";
  return crawl.backlog ? "not running" : "done";
}

function line(crawl, address) {
  const name = el("a", { class: "url", href: address(crawl.name), text: crawl.name });
  const sign = el("span", { class: `state ${state(crawl).replace(" ", "-")}`, text: state(crawl) });
  const head = (text) => el("div", { class: "crawl-name" }, el("h2", {}, name), sign, el("p", { class: "muted", text }));
  if (crawl.error) return el("li", { class: "card" }, head(crawl.error));
  const known = crawl.counted_at !== null;
  const kind = crawl.kind === "use_case" ? "Use case" : "Spider";
  const figures = [
    [crawl.kind === "use_case" ? "Tasks a second" : "Pages a second", crawl.workers ? rate(crawl.rate) : "–"],
    ["Left to do", known ? whole(crawl.backlog) : "…"],
    ["Time left", !known ? "…" : crawl.backlog ? duration(crawl.eta) : "done"],
    ...(crawl.kind === "use_case" ? [] : [["Items", whole(crawl.items)]]),
  ];
  return el("li", { class: "card" },
    head(`${kind} · ${known ? `${plural(crawl.total, "task")} known` : "counting its tasks…"}${crawl.workers ? `, ${plural(crawl.workers, "worker")}` : ""}`),
    el("div", { class: "bar", "aria-hidden": "true" }, segments(crawl.counts)),
    el("dl", { class: "crawl-figures" }, figures.map(([label, value]) => el("div", {}, el("dt", { text: label }), el("dd", { text: value })))));
}
