// The state of a crawl: its numbers now and over time, its workers, its failures.

import { get, crawlPath } from "/static/api.js";
import { chart } from "/static/charts.js";
import { badge, card, el, render, setText, table } from "/static/dom.js";
import { ago, bytes, duration, moment, plural, rate, short, whole } from "/static/format.js";
import { orders } from "/static/orders.js";

const STATUSES = ["todo", "processing", "failed", "finished", "ignored"];
const SPANS = { quarter: "15 min", hour: "1 hour", day: "24 hours", week: "7 days" };
const HISTORY_EVERY = 15_000;
const RECENT = 900;

export function overview({ name, signal, address }) {
  const headline = el("p", { class: "headline" });
  const changed = el("p", { class: "muted", hidden: true });
  const figures = figureRow(["Pages a second", "Left to do", "Time left", "Finished", "Items"]);
  const stages = el("div", {});
  const stageCard = card("Stages", { class: "wide", hidden: true }, stages);
  const hosts = el("div", {});
  const hostCard = card("Hosts that wait, and why", {}, hosts);
  const bar = el("div", { class: "bar", "aria-hidden": "true" });
  const legend = el("ul", { class: "counts" });
  const workers = el("div", {});
  const failures = el("div", {});
  const reasons = el("div", {});
  const charts = history({ name, signal });
  const title = el("h1", { text: name });
  const steering = el("div", { class: "buttons" });
  const element = el(
    "div",
    { class: "stack" },
    el("div", { class: "title-row" }, el("div", {}, title, headline, changed), steering),
    figures.element,
    el("section", { class: "card", "aria-label": "Tasks by status" }, bar, legend),
    stageCard,
    charts.element,
    card("Workers", {}, workers),
    el("div", { class: "columns" },
      card("Recent failures", {}, failures),
      el("div", { class: "stack" }, hostCard, card("Failed and ignored, by reason", {}, reasons)),
    ),
  );

  function update(now) {
    setText(headline, sentence(now));
    render(steering, [now.kind, now.paused !== null, now.workers.length, now.settings], () => orders(now));
    const changes = Object.entries(now.settings).map(([setting, value]) => `${setting}=${value}`);
    setText(changed, changes.length ? `Changed settings: ${changes.join(", ")}` : "");
    changed.hidden = !changes.length;
    const counted = now.counted_at !== null;
    setText(figures.names[0], now.kind === "use_case" ? "Tasks a second" : "Pages a second");
    figures.update([
      [rate(now.rate), now.average_rate === null ? "" : `${rate(now.average_rate)} on average`],
      [counted ? short(now.backlog) : "…", counted ? "" : "counting"],
      [!counted ? "…" : now.backlog ? duration(now.eta) : "done", ""],
      [counted ? short(now.counts.finished) : "…", counted ? `of ${short(now.total)} known${now.redirects ? `, and ${plural(now.redirects, "redirect")}` : ""}` : ""],
      [short(now.items), ""],
    ]);
    charts.now(now);
    render(bar, now.counts, () => segments(now.counts));
    render(legend, [now.counts, now.total], () => STATUSES.map((status) => count(status, now, address)));
    render(workers, now.workers.map((worker) => ({ ...worker, heartbeat: ago(worker.heartbeat, Date.parse(now.now)) })), (some) => workerTable(some, now));
    render(failures, now.failures.map((task) => [task, ago(task.update_time, Date.parse(now.now))]), (some) => failureList(some, name, address));
    render(hosts, now.hosts, (some) => hostList(some, name, address));
    hostCard.hidden = now.kind === "use_case";
    stageCard.hidden = now.kind !== "use_case";
    render(stages, now.stages, (some) => stageTable(some, name, address));
    render(reasons, now.reasons, (some) => reasonList(some, name, address));
  }
  return { element, update };
}

function sentence(now) {
  const at = now.workers.length;
  const kind = now.kind === "use_case" ? "Use case" : "Spider";
  if (now.counted_at === null) return `${kind} · counting its tasks…`;
  const left = now.backlog;
  if (!left) return `${kind} · everything is done: ${plural(now.total, "task")}`;
  if (now.paused) return `${kind} · paused since ${moment(now.paused)}: ${plural(left, "task")} left`;
  if (!at) return `${kind} · no worker is at work: ${plural(left, "task")} left`;
  return `${kind} · ${plural(at, "worker")} at work, ${plural(now.total, "task")} known`;
}

function figureRow(labels) {
  const names = labels.map((label) => el("dt", { text: label }));
  const values = labels.map(() => el("dd", { class: "value", text: "–" }));
  const notes = labels.map(() => el("dd", { class: "note muted" }));
  const element = el("dl", { class: "figures" }, labels.map((_, n) => el("div", { class: "card figure" }, names[n], values[n], notes[n])));
  const update = (texts) => texts.forEach(([value, note], n) => {
    setText(values[n], value);
    setText(notes[n], note);
  });
  return { element, names, update };
}

export function segments(counts) {
  return STATUSES.filter((status) => counts[status]).map((status) => {
    const part = el("span", { class: `segment ${status}` });
    // Set by script: an attribute would be an inline style, which the page's policy forbids.
    part.style.flexGrow = String(counts[status]);
    return part;
  });
}

function count(status, now, address) {
  const share = now.total ? (100 * now.counts[status]) / now.total : 0;
  const percent = share && share < 1 ? "<1" : Math.round(share);
  return el("li", {},
    el("a", { href: address(now.name, "tasks", `?status=${status}`) },
      badge(status),
      el("span", { class: "number", text: whole(now.counts[status]) }),
      el("span", { class: "muted share", text: `${percent} %` }),
    ),
  );
}

function workerTable(workers, now) {
  if (!workers.length) return el("p", { class: "muted none", text: "No worker is at work." });
  const columns = [["Worker"], ["Pages/s", "num"], ["Pages", "num"], ["Processing", "num"], ["Memory", "num"], ["Lag", "num"], ["Started"], ["Seen"]];
  const rows = workers.map((worker) => [
    el("span", {}, el("strong", { text: worker.host || worker.name }), el("span", { class: "muted", text: ` ${worker.pid}` }), worker.silent ? el("span", { class: "tag bad", text: "silent" }) : worker.idle ? el("span", { class: "tag", text: "idle" }) : null),
    rate(worker.rate), whole(worker.pages), whole(worker.processing), worker.memory ? bytes(worker.memory) : "–",
    `${Math.round(worker.lag * 1000)} ms`, ago(worker.started, Date.parse(now.now)), worker.heartbeat,
  ]);
  return table("Workers", columns, rows);
}

function hostList(hosts, name, address) {
  if (!hosts.length) return el("p", { class: "muted none", text: "No host fails, rests or is slow." });
  return el("ul", { class: "hosts" }, hosts.map((host) =>
    el("li", {},
      el("a", { class: "url", href: address(name, "tasks", `?host=${encodeURIComponent(host.name)}`), text: host.name }),
      el("p", { class: "muted" }, el("span", { text: host.why }), host.delay ? el("span", { class: "tag", text: `${host.delay.toFixed(2)} s apart` }) : null),
    )));
}

function stageTable(stages, name, address) {
  if (!stages.length) return el("p", { class: "muted none", text: "Counting the stages…" });
  return table("Stages", [["Stage"], ["Left to do", "num"], [badge("finished"), "num"], [badge("ignored"), "num"]], stages.map((stage) => [
    el("a", { href: address(name, "tasks", `?host=${encodeURIComponent(stage.name)}`), text: stage.name }),
    whole(stage.open), whole(stage.finished), whole(stage.ignored),
  ]));
}

function failureList(failures, name, address) {
  if (!failures.length) return el("p", { class: "muted none", text: "No task has failed." });
  return el("ul", { class: "failures" }, failures.map(([task, when]) =>
    el("li", {},
      badge(task.status),
      el("div", { class: "what" },
        el("a", { class: "url", href: address(name, "task", `/${task.id}`), text: task.url }),
        el("p", { class: "muted" }, el("code", { text: task.reason ?? "" }), " ", el("span", { text: task.error ?? "" })),
      ),
      el("time", { class: "muted when", datetime: task.update_time, title: moment(task.update_time), text: when }),
    )));
}

function reasonList(reasons, name, address) {
  if (!reasons.length) return el("p", { class: "muted none", text: "No task has failed or is ignored." });
  const largest = Math.max(...reasons.map(({ tasks }) => tasks));
  const line = ({ reason, tasks, failure }) => {
    const meter = el("span", { class: `meter ${failure ? "failed" : "ignored"}`, "aria-hidden": "true" });
    meter.style.inlineSize = `${Math.max((100 * tasks) / largest, 0.5)}%`;
    return el("li", {}, el("a", { href: address(name, "tasks", `?reason=${encodeURIComponent(reason)}`), text: reason }), el("span", { class: "track" }, meter), el("span", { class: "number", text: whole(tasks) }));
  };
  const group = (title, some) => (some.length ? [el("h3", { text: title }), el("ul", { class: "reasons" }, some.map(line))] : []);
  // An unwanted page, such as one that robots.txt disallows, is no failure.
  return [...group("Failures", reasons.filter(({ failure }) => failure)), ...group("Unwanted pages", reasons.filter(({ failure }) => !failure))];
}

/** Return the charts, and the buttons that choose their range. */
function history({ name, signal }) {
  let span = "quarter";
  const speed = chart({
    title: "Tasks a second", shown: rate, signal,
    lines: [
      { label: "finished", colour: "--finished", fill: true },
      { label: "failed", colour: "--failed", dash: [6, 3] },
      { label: "ignored", colour: "--ignored", dash: [2, 3] },
    ],
  });
  const load = chart({
    title: "Processing", shown: short, whole: true, signal,
    lines: [{ label: "tasks", colour: "--processing", fill: true }, { label: "workers", colour: "--ignored", dash: [6, 3] }],
  });
  const choose = (key) => {
    span = key;
    for (const button of spans) button.setAttribute("aria-pressed", String(button.dataset.span === span));
    loadHistory();
  };
  const spans = Object.keys(SPANS).map((key) =>
    el("button", { type: "button", "data-span": key, "aria-pressed": String(key === span), on: { click: () => { chosen = true; choose(key); } }, text: SPANS[key] }));
  const element = el("section", { class: "card", "aria-label": "Speed" },
    el("div", { class: "card-head" }, el("h2", { text: "Speed" }), el("div", { class: "segmented", role: "group", "aria-label": "Range" }, spans)),
    el("div", { class: "charts" }, speed.element, load.element));

  let past = null;
  let chosen = false;
  const recent = []; // [time, rate, processing, workers] since the user opened the page
  async function loadHistory() {
    try {
      past = await get(crawlPath(name, `history?span=${span}`), signal);
      draw();
      fit();
    } catch {
      // The stream shows the error, and the timer repeats the request.
    }
  }
  /** Choose a longer range if no worker was at work in this one, unless the user has chosen. */
  function fit() {
    const names = Object.keys(SPANS);
    const longer = names[names.indexOf(span) + 1];
    const known = past && recent.length > 0;
    if (known && !chosen && longer && !past.workers.some(Boolean) && recent.every(([, perSecond]) => perSecond === null)) choose(longer);
  }
  function draw() {
    if (!past) return;
    // Draw from the first worker's step to the last one's. A step without workers is a gap.
    const first = past.workers.findIndex(Boolean);
    const last = past.workers.findLastIndex(Boolean);
    const known = first < 0 ? [] : past.time.slice(first, last + 1);
    const end = past.time[last + 1] ?? past.end;
    const live = recent.filter(([time]) => time > past.end);
    const working = ([, perSecond]) => perSecond !== null;
    const news = live.slice(known.length ? 0 : Math.max(0, live.findIndex(working)), live.findLastIndex(working) + 1);
    const drawn = (column) => known.map((_, n) => (past.workers[first + n] ? column[first + n] : null));
    // The last step goes on to the live values, unless nobody was at work in between.
    const isGap = news.length > 0 && news[0][0] - end > Math.max(120, 1.5 * past.step);
    const columns = (names, ...fields) => [
      [...known, ...(known.length ? [end] : []), ...news.map(([time]) => time)],
      ...names.map((name, n) => {
        const values = drawn(past[name]);
        return [...values, ...(isGap ? values.slice(-1).map(() => null) : values.slice(-1)), ...news.map((seen) => (fields[n] === undefined ? null : seen[fields[n]]))];
      }),
    ];
    const highest = Math.max(0, ...past.finished);
    const [, perSecond, processing, workers] = recent.at(-1) ?? [0, 0, 0, 0];
    speed.update(columns(["finished", "failed", "ignored"], 1), `Tasks finished a second in the last ${SPANS[span]}: at most ${rate(highest)}, now ${rate(perSecond ?? 0)}.`);
    load.update(columns(["processing", "workers"], 2, 3), `Tasks processing in the last ${SPANS[span]}: now ${whole(processing ?? 0)} by ${plural(workers ?? 0, "worker")}.`);
  }
  loadHistory();
  const timer = setInterval(loadHistory, HISTORY_EVERY);
  signal.addEventListener("abort", () => clearInterval(timer));
  return {
    element,
    now(current) {
      const time = Date.parse(current.now) / 1000;
      if (recent.length && time <= recent.at(-1)[0]) return;
      const processing = current.workers.reduce((total, worker) => total + worker.processing, 0);
      recent.push(current.workers.length ? [time, current.rate, processing, current.workers.length] : [time, null, null, null]);
      if (recent.length > RECENT) recent.shift();
      draw();
      if (recent.length === 1) fit();
    },
  };
}
