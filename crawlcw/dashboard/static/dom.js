// Make elements. Data becomes text nodes and attributes only, and never markup.

// Characters that are invisible, or that turn the direction of text: they are written as escapes.
const INVISIBLE = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g;

/** Return crawled text with its invisible characters as escapes. */
export function visible(text) {
  return String(text).replace(INVISIBLE, (c) => `\\u${c.charCodeAt(0).toString(16).padStart(4, "0")}`);
}

/**
 * Return an element. `class`, `text` and `on` (listeners by event) have their own meaning. Every
 * other property is an attribute, which is left out if it is null or false. Null children are skipped.
 */
export function el(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name === "text") element.textContent = visible(value);
    else if (name === "class") element.className = value;
    else if (name === "on") for (const [event, act] of Object.entries(value)) element.addEventListener(event, act);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== null && value !== undefined && value !== false) element.setAttribute(name, String(value));
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

/** Set an element's text if it differs, because a screen reader reads every change aloud. */
export function setText(element, text) {
  const shown = visible(text);
  if (element.textContent !== shown) element.textContent = shown;
}

/** Return a link to a crawled page; its address as text if the scheme is not http or https. */
export function outward(url, properties = {}) {
  let safe = null;
  try {
    const parsed = new URL(url);
    if (["http:", "https:"].includes(parsed.protocol)) safe = parsed.href;
  } catch {
    // A tracked task's key is not a URL.
  }
  if (safe === null) return el("span", { ...properties, text: url });
  return el("a", { ...properties, href: safe, target: "_blank", rel: "noopener noreferrer", text: url });
}

/** Replace the content of an element by `make(data)`, unless *data* is that of the last time. */
const lastData = new WeakMap();
export function render(element, data, make) {
  const key = JSON.stringify(data);
  if (lastData.get(element) === key) return;
  lastData.set(element, key);
  element.replaceChildren(...[make(data)].flat());
}

const GLYPHS = { todo: "○", processing: "◐", finished: "✓", failed: "!", ignored: "–" };

/** Return a status as a word with a sign and a colour: nobody has to tell colours apart. */
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
