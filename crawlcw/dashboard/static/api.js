// Requests to the server, with the token if it needs one, and the page's key.

const TOKEN_KEY = "crawlcw-token";
let key = null;

/** A refused request, with the server's message. */
export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

export const token = {
  get: () => sessionStorage.getItem(TOKEN_KEY),
  set: (text) => sessionStorage.setItem(TOKEN_KEY, text),
  forget: () => sessionStorage.removeItem(TOKEN_KEY),
};

function headers(more = {}) {
  const all = { ...more };
  if (token.get()) all.Authorization = `Bearer ${token.get()}`;
  if (key) all["X-Crawlcw-Key"] = key;
  return all;
}

async function checkStatus(response) {
  if (response.ok) return response;
  let message = `the server answered ${response.status}`;
  try {
    message = (await response.json()).error ?? message;
  } catch {
    // A proxy between the page and the server has answered, without JSON.
  }
  throw new Refused(response.status, message);
}

async function request(path, options = {}) {
  let response;
  try {
    response = await fetch(path, { cache: "no-store", ...options });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refused(0, "the dashboard does not answer");
  }
  return checkStatus(response);
}

export async function get(path, signal) {
  return (await request(path, { headers: headers(), signal })).json();
}

export async function post(path, body) {
  const options = { method: "POST", headers: headers({ "Content-Type": "application/json" }), body: JSON.stringify(body) };
  return (await request(path, options)).json();
}

/** Return the names of the crawls; keep the page's key for later requests. */
export async function start() {
  const answer = await get("/api/start");
  key = answer.key;
  return answer;
}

export const crawlPath = (name, rest) => `/api/crawls/${encodeURIComponent(name)}/${rest}`;

/**
 * Call `onEvent(event, data)` for each event of a crawl until *signal* aborts. It reconnects if the
 * connection breaks. EventSource does that as well, but cannot send a token.
 */
export async function live(name, onEvent, signal) {
  let delay = 500;
  while (!signal.aborted) {
    try {
      const response = await request(crawlPath(name, "live"), { headers: headers(), signal });
      for await (const [event, data] of events(response.body)) {
        delay = 500;
        if (signal.aborted) return;
        onEvent(event, data);
      }
      onEvent("lost", { error: "reconnecting" });
    } catch (error) {
      if (signal.aborted) return;
      onEvent("lost", { error: error.message, status: error.status });
    }
    await new Promise((go) => setTimeout(go, delay));
    delay = Math.min(2 * delay, 8_000);
  }
}

async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let buffer = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const parts = (buffer + value).split("\n\n");
    buffer = parts.pop();
    for (const part of parts) {
      const fields = Object.fromEntries(part.split("\n").map((line) => [line.slice(0, line.indexOf(":")), line.slice(line.indexOf(":") + 2)]));
      yield [fields.event, JSON.parse(fields.data)];
    }
  }
}
