// Making elements. Text is text: nothing here, or anywhere else, takes data for markup.

// What would turn the direction of text, or is not to be seen at all, is written out.
const UNSEEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g;

/** Return crawled text as it may be shown. */
export function visible(text) {
  return String(text).replace(UNSEEN, (c) => `\\u${c.charCodeAt(0).toString(16).padStart(4, "0")}`);
}

/**
 * Return an element. `class`, `text` and `on` (listeners by name) are understood; every other
 * property is an attribute, left out where it is null or false. Children that are null are none.
 */
export function el(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name === "text") made.textContent = visible(value);
    else if (name === "class") made.className = value;
    else if (name === "on") for (const [event, act] of Object.entries(value)) made.addEventListener(event, act);
    else if (value === true) made.setAttribute(name, "");
    else if (value !== null && value !== undefined && value !== false) made.setAttribute(name, String(value));
  }
  made.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return made;
}

/** Set an element's text where it is another one: a screen reader is not told of nothing. */
export function say(element, text) {
  const shown = visible(text);
  if (element.textContent !== shown) element.textContent = shown;
}

/** Return a link to a crawled page, or its address as text where it is none of http or https. */
export function outward(url, properties = {}) {
  let safe = null;
  try {
    const parsed = new URL(url);
    if (["http:", "https:"].includes(parsed.protocol)) safe = parsed.href;
  } catch {
    // No URL at all: a tracked task's key.
  }
  if (safe === null) return el("span", { ...properties, text: url });
  return el("a", { ...properties, href: safe, target: "_blank", rel: "noopener noreferrer", text: url });
}

/** Replace what is in an element, unless *data* is what it was made of the last time. */
const made = new WeakMap();
export function fill(element, data, make) {
  const key = JSON.stringify(data);
  if (made.get(element) === key) return;
  made.set(element, key);
  element.replaceChildren(...[make(data)].flat());
}

const GLYPHS = { todo: "○", processing: "◐", finished: "✓", failed: "!", ignored: "–" };

/** Return a status as a coloured word with a sign, so that no colour has to be told apart. */
export function badge(status) {
  return el(
    "span",
    { class: `badge ${GLYPHS[status] ? status : ""}` },
    el("span", { class: "glyph", "aria-hidden": "true", text: GLYPHS[status] ?? "·" }),
    status,
  );
}

/** Return a table with a caption; *columns* are [title, class] and *rows* lists of nodes or texts. */
export function table(caption, columns, rows) {
  const cell = (value, kind) => el("td", { class: kind ?? "" }, value instanceof Node ? value : el("span", { text: value ?? "" }));
  return el(
    "div",
    { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    el(
      "table",
      {},
      el("caption", { class: "unseen", text: caption }),
      el("thead", {}, el("tr", {}, columns.map(([title, kind]) => el("th", { scope: "col", class: kind ?? "" }, title instanceof Node ? title : el("span", { text: title }))))),
      el("tbody", {}, rows.map((row) => el("tr", {}, row.map((value, n) => cell(value, columns[n][1]))))),
    ),
  );
}

/** Return a section with a heading. */
export function card(title, properties, ...children) {
  return el("section", { ...properties, class: `card ${properties.class ?? ""}` }, el("h2", { text: title }), ...children);
}
