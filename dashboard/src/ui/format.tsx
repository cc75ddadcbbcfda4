import { useEffect, useState } from "preact/hooks";

const whole = new Intl.NumberFormat();
const short = new Intl.NumberFormat(undefined, { notation: "compact", maximumFractionDigits: 1 });
const moment = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });

export const number = (value: number): string => whole.format(value);
export const compact = (value: number): string => (value < 10_000 ? whole.format(value) : short.format(value));
export const many = (value: number, what: string, plural = `${what}s`): string => `${number(value)} ${value === 1 ? what : plural}`;

/** A duration in the largest units that say enough: `340 ms`, `4.2 s`, `3 min 20 s`, `2 h 5 min`, `4 d 3 h`. */
export function duration(milliseconds: number): string {
  const seconds = milliseconds / 1000;
  if (seconds < 1) return `${Math.round(milliseconds)} ms`;
  if (seconds < 60) return `${seconds < 10 ? seconds.toFixed(1) : Math.round(seconds)} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return joined(minutes, "min", Math.round(seconds % 60), "s");
  const hours = Math.floor(minutes / 60);
  return hours < 48 ? joined(hours, "h", minutes % 60, "min") : joined(Math.floor(hours / 24), "d", hours % 24, "h");
}

const joined = (large: number, unit: string, small: number, smaller: string): string =>
  small ? `${large} ${unit} ${small} ${smaller}` : `${large} ${unit}`;

export function bytes(size: number): string {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  const power = size ? Math.min(Math.floor(Math.log2(size) / 10), 4) : 0;
  return `${(size / 1024 ** power).toFixed(power && size / 1024 ** power < 10 ? 1 : 0)} ${units[power]}`;
}

/** An ISO 8601 duration in milliseconds. */
export function isoMilliseconds(text: string): number {
  const parts = /^P(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:([\d.]+)S)?)?$/.exec(text)?.slice(1) ?? [];
  const [days = 0, hours = 0, minutes = 0, seconds = 0] = parts.map((part) => Number(part ?? 0));
  return (((days * 24 + hours) * 60 + minutes) * 60 + seconds) * 1000;
}

/** A duration in its largest unit alone. */
export function coarse(milliseconds: number): string {
  const seconds = milliseconds / 1000;
  if (seconds < 60) return `${Math.round(seconds)} s`;
  if (seconds < 3_600) return `${Math.floor(seconds / 60)} min`;
  return seconds < 172_800 ? `${Math.floor(seconds / 3_600)} h` : `${Math.floor(seconds / 86_400)} d`;
}

export function ago(at: number): string {
  const distance = Date.now() - at;
  const size = Math.abs(distance);
  if (size < 1500) return "now";
  const text = coarse(size);
  return distance > 0 ? `${text} ago` : `in ${text}`;
}

/** A time, as long ago or ahead as it is; the exact one is shown on hover. */
export function Time({ at }: { at: string | null | undefined }) {
  const [, tick] = useState(0);
  const value = at ? Date.parse(at) : NaN;
  useEffect(() => {
    if (Number.isNaN(value)) return;
    const every = Math.abs(Date.now() - value) < 60_000 ? 1000 : 15_000;
    const timer = window.setInterval(() => !document.hidden && tick((count) => count + 1), every);
    return () => window.clearInterval(timer);
  }, [value]);
  if (!at || Number.isNaN(value)) return <span class="quiet">–</span>;
  return (
    <time dateTime={at} title={moment.format(value)} class="nowrap">
      {ago(value)}
    </time>
  );
}

/** For how long something has been so. */
export const since = (at: string): string => coarse(Math.max(0, Date.now() - Date.parse(at)));

const clock = new Intl.DateTimeFormat(undefined, { timeStyle: "medium" });

export const timeOfDay = (at: number): string => clock.format(at);

export const exact = (at: string): string => moment.format(Date.parse(at));

export const between = (from: string | null | undefined, to: string | null | undefined): string =>
  from ? duration(Math.max(0, (to ? Date.parse(to) : Date.now()) - Date.parse(from))) : "–";

/** The end of an id: enough to tell it from its neighbours, which begin alike. */
export const tail = (id: string): string => id.slice(-12);
