// Orders to the running crawls of a spider: pause, resume, set and stop, as the commands give them.

import { ask, confirm, toast } from "/static/actions.js";
import { crawlPath, post } from "/static/api.js";
import { el } from "/static/dom.js";
import { plural } from "/static/format.js";

const SETTINGS = [
  { name: "concurrency", label: "concurrency: pages at the same time in each process" },
  { name: "delay", label: "delay: time between two requests to a host, such as 500ms" },
  { name: "per_host_concurrency", label: "per_host_concurrency: requests to a host at the same time" },
];

/** Return the buttons for a crawl; a use case has none, because its workers are other programs. */
export function orders(now) {
  if (now.kind === "use_case") return [];
  const button = (text, order, give, kind = "") => el("button", { type: "button", class: kind, "data-order": order, on: { click: () => give(now) }, text });
  return [
    button("Set", "set", set),
    now.paused ? button("Resume", "resume", resume, "primary") : button("Pause", "pause", pause),
    now.workers.length ? button("Stop", "stop", stop) : null,
  ].filter(Boolean);
}

function set(now) {
  ask({
    title: `Change settings of ${now.name}`,
    text: "Running crawls follow within a second, on all machines, and so do crawls that start later. An empty field means the crawl's own setting.",
    fields: SETTINGS.map((field) => ({ ...field, value: now.settings[field.name] ?? "", hint: "the crawl's own" })),
    yes: "Set",
    async send(values) {
      const changes = Object.entries(values).filter(([name, value]) => value !== (now.settings[name] ?? ""));
      if (!changes.length) return toast("No setting is changed.", "plain");
      await post(crawlPath(now.name, "steer"), { order: "set", settings: Object.fromEntries(changes.map(([name, value]) => [name, value || null])) });
      toast(now.workers.length ? `Set: ${plural(now.workers.length, "worker")} will follow.` : "Set: crawls that start later follow.");
    },
  });
}

const pause = (now) => give(now, "pause", "Paused: current requests finish.", {
  title: `Pause ${now.name}?`,
  text: "Its crawls finish the current requests and begin no others, on all machines, until you resume it.",
  yes: "Pause",
});

const resume = (now) => give(now, "resume", "Resumed.", {
  title: `Resume ${now.name}?`,
  text: "Its crawls continue within a second.",
  yes: "Resume",
});

const stop = (now) => give(now, "stop", "Stopped: the workers finish their requests and end.", {
  title: `Stop ${plural(now.workers.length, "worker")} of ${now.name}?`,
  text: "Its running crawls end, on all machines. Current requests finish within the crawl's grace, and all other tasks are released. The next run continues the crawl.",
  yes: "Stop",
  danger: true,
});

async function give(now, order, done, question) {
  if (!(await confirm(question))) return;
  try {
    await post(crawlPath(now.name, "steer"), { order });
    toast(done);
  } catch (error) {
    toast(error.message, "bad");
  }
}
