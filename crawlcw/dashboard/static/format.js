// Numbers, durations and times as text for people.

const WHOLE = new Intl.NumberFormat("en-US");
const SHORT = new Intl.NumberFormat("en-US", { notation: "compact", maximumFractionDigits: 1 });

export const whole = (number) => (number === null || number === undefined ? "–" : WHOLE.format(number));
export const short = (number) => (Math.abs(number) < 10_000 ? WHOLE.format(number) : SHORT.format(number));

/** Return pages a second, with three significant digits. */
export function rate(perSecond) {
  if (perSecond === null || perSecond === undefined) return "–";
  return perSecond >= 100 ? WHOLE.format(Math.round(perSecond)) : perSecond.toFixed(perSecond >= 10 ? 1 : 2);
}

/** Return a number of seconds in its two largest units. */
export function duration(seconds) {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return "–";
  if (seconds < 1) return "under 1 s";
  const units = [["d", 86_400], ["h", 3_600], ["min", 60], ["s", 1]];
  const first = units.findIndex(([, size]) => seconds >= size);
  const [unit, size] = units[first];
  const count = Math.floor(seconds / size);
  const [smaller, part] = units[first + 1] ?? [];
  const rest = smaller ? Math.floor((seconds - count * size) / part) : 0;
  return rest ? `${count} ${unit} ${rest} ${smaller}` : `${count} ${unit}`;
}

/** Return the time from *time* to *now*; the server's clock gives both. */
export function ago(time, now = Date.now()) {
  const seconds = (Number(now) - Date.parse(time)) / 1000;
  return seconds < 1 ? "now" : `${duration(seconds)} ago`;
}

export function bytes(count) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let n = 0;
  while (count >= 1024 && n < units.length - 1) {
    count /= 1024;
    n += 1;
  }
  return `${n ? count.toFixed(1) : count} ${units[n]}`;
}

/** Return a time to the second, in UTC, as the log and `crawlcw show` write it. */
export const moment = (time) => (time ? `${time.slice(0, 19).replace("T", " ")}Z` : "–");

export const plural = (count, one) => `${whole(count)} ${one}${count === 1 ? "" : "s"}`;
