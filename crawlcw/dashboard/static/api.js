// Asking the server: with the token where one is needed, and the page's key where something changes.

const KEPT = "crawlcw-token";
let key = null;

/** A request that was refused, with the server's own sentence. */
export class Refused extends Error {
  constructor(status, sentence) {
    super(sentence);
    this.status = status;
  }
}

export const token = {
  get: () => sessionStorage.getItem(KEPT),
  set: (text) => sessionStorage.setItem(KEPT, text),
  forget: () => sessionStorage.removeItem(KEPT),
};

function headers(more = {}) {
  const found = { ...more };
  if (token.get()) found.Authorization = `Bearer ${token.get()}`;
  if (key) found["X-Crawlcw-Key"] = key;
  return found;
}

async function answered(response) {
  if (response.ok) return response;
  let sentence = `the server answered ${response.status}`;
  try {
    sentence = (await response.json()).error ?? sentence;
  } catch {
    // Something between the page and the server has answered.
  }
  throw new Refused(response.status, sentence);
}

async function asked(path, options = {}) {
  let response;
  try {
    response = await fetch(path, { cache: "no-store", ...options });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refused(0, "the dashboard does not answer");
  }
  return answered(response);
}

export async function get(path, signal) {
  return (await asked(path, { headers: headers(), signal })).json();
}

export async function post(path, body) {
  const sent = { method: "POST", headers: headers({ "Content-Type": "application/json" }), body: JSON.stringify(body) };
  return (await asked(path, sent)).json();
}

/** Begin: learn the key and which crawls there are. */
export async function start() {
  const found = await get("/api/start");
  key = found.key;
  return found;
}

export const of = (name, rest) => `/api/crawls/${encodeURIComponent(name)}/${rest}`;

/**
 * Listen to a crawl until *signal* ends it: `on(event, data)` for each event. It begins again by
 * itself where the connection breaks; an EventSource would, but it can send no token.
 */
export async function live(name, on, signal) {
  let pause = 500;
  while (!signal.aborted) {
    try {
      const response = await asked(of(name, "live"), { headers: headers(), signal });
      for await (const [event, data] of events(response.body)) {
        pause = 500;
        if (signal.aborted) return;
        on(event, data);
      }
      on("lost", { error: "reconnecting" });
    } catch (error) {
      if (signal.aborted) return;
      on("lost", { error: error.message, status: error.status });
    }
    await new Promise((go) => setTimeout(go, pause));
    pause = Math.min(2 * pause, 8_000);
  }
}

async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const parts = (rest + value).split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      const fields = Object.fromEntries(part.split("\n").map((line) => [line.slice(0, line.indexOf(":")), line.slice(line.indexOf(":") + 2)]));
      yield [fields.event, JSON.parse(fields.data)];
    }
  }
}
