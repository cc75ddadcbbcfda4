/**
 * Numbers, times and durations in the browser's language, and times in the zone that the viewer has chosen.
 *
 * No other module formats any of them: what two pages show of one thing reads the same.
 */
import { useEffect, useState } from "preact/hooks";
import { now } from "../api/heard";

export type Zone = "local" | "utc";

const KEY = "ojster-zone";
const watchers = new Set<() => void>();

export const shownZone = (): Zone => (localStorage.getItem(KEY) === "utc" ? "utc" : "local");

export function chooseZone(zone: Zone): void {
  localStorage.setItem(KEY, zone);
  watchers.forEach((tell) => tell());
}

/** The zone of all times that are shown. */
export function useZone(): Zone {
  const [zone, setZone] = useState(shownZone);
  useEffect(() => {
    const tell = (): void => setZone(shownZone());
    watchers.add(tell);
    return () => void watchers.delete(tell);
  }, []);
  return zone;
}

/** The name of the browser's own zone. */
export const localZone = (): string => Intl.DateTimeFormat().resolvedOptions().timeZone;

/** Formats of times, each made once for each zone: making one costs more than using it a hundred times. */
function dates(options: Intl.DateTimeFormatOptions): (at: number) => string {
  const made = {
    local: new Intl.DateTimeFormat(undefined, options),
    utc: new Intl.DateTimeFormat(undefined, { ...options, timeZone: "UTC" }),
  };
  return (at) => made[shownZone()].format(at);
}

const whole = new Intl.NumberFormat();
const decimal = new Intl.NumberFormat(undefined, { maximumFractionDigits: 2 });
const tenth = new Intl.NumberFormat(undefined, { minimumFractionDigits: 1, maximumFractionDigits: 1 });
const short = new Intl.NumberFormat(undefined, { notation: "compact", maximumFractionDigits: 1 });
const share = new Intl.NumberFormat(undefined, { style: "percent" });
const moment = dates({ dateStyle: "medium", timeStyle: "medium" });

/** A time in a zone of its own, such as that of a schedule, with the name of the zone. */
export const exactIn = (at: string, timeZone: string): string =>
  new Intl.DateTimeFormat(undefined, {
    ...{ month: "short", day: "numeric", weekday: "short", hour: "numeric", minute: "2-digit" },
    timeZoneName: "short",
    timeZone,
  } as Intl.DateTimeFormatOptions).format(new Date(at));

/** The time of day with hours, minutes and seconds. */
export const timeOfDay = dates({ timeStyle: "medium" });
/** The time of day without seconds. */
export const minuteOfDay = dates({ timeStyle: "short" });
/** The day and month. */
export const dayOfYear = dates({ month: "short", day: "numeric" });

export const number = (value: number): string => whole.format(value);
/** A number with at most two digits after the point. */
export const fraction = (value: number): string => decimal.format(value);
export const compact = (value: number): string => (value < 10_000 ? decimal.format(value) : short.format(value));
export const percent = (part: number): string => share.format(part);
export const many = (value: number, what: string, plural = `${what}s`): string => `${number(value)} ${value === 1 ? what : plural}`;

/** Units by their symbols in English; other languages have symbols of their own, which the browser knows. */
const SYMBOLS = { millisecond: "ms", second: "s", minute: "min", hour: "h", day: "d" } as const;
type Unit = keyof typeof SYMBOLS;
const isEnglish = whole.resolvedOptions().locale.startsWith("en");
const units = new Map<string, Intl.NumberFormat>();

/** Some of a unit of time: `4.2 s`, `4,2 Sek.`. */
function measured(value: number, unit: Unit, digits = 0): string {
  if (isEnglish) return `${(digits ? tenth : whole).format(value)} ${SYMBOLS[unit]}`;
  const key = `${unit} ${digits}`;
  let made = units.get(key);
  if (!made) {
    made = new Intl.NumberFormat(undefined, { style: "unit", unit, minimumFractionDigits: digits, maximumFractionDigits: digits });
    units.set(key, made);
  }
  return made.format(value);
}

/** A duration in the largest units that say enough: `340 ms`, `4.2 s`, `3 min 20 s`, `2 h 5 min`, `4 d 3 h`. */
export function duration(milliseconds: number): string {
  if (milliseconds < 999.5) return measured(Math.round(milliseconds), "millisecond");
  const seconds = milliseconds / 1000;
  if (seconds < 9.95) return measured(seconds, "second", 1);
  // Rounded first: 119.7 s are 2 min, and not 1 min 60 s.
  const rounded = Math.round(seconds);
  if (rounded < 60) return measured(rounded, "second");
  const minutes = Math.floor(rounded / 60);
  if (minutes < 60) return joined(minutes, "minute", rounded % 60, "second");
  const hours = Math.floor(minutes / 60);
  return hours < 48 ? joined(hours, "hour", minutes % 60, "minute") : joined(Math.floor(hours / 24), "day", hours % 24, "hour");
}

/** A percentile of waiting times; the API says 0 where none was measured. */
export const waited = (milliseconds: number): string => (milliseconds ? duration(milliseconds) : "–");

const joined = (large: number, unit: Unit, small: number, smaller: Unit): string =>
  small ? `${measured(large, unit)} ${measured(small, smaller)}` : measured(large, unit);

const ISO = /^P(?:(\d+)W)?(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:([\d.]+)S)?)?$/;
const ISO_SECONDS = [604_800, 86_400, 3_600, 60, 1];

/** The seconds of a duration as the API writes it, `PT30M`; `null` if it is none. */
export function secondsOf(text: string): number | null {
  const parts = ISO.exec(text)?.slice(1);
  return parts ? ISO_SECONDS.reduce((sum, seconds, place) => sum + seconds * Number(parts[place] ?? 0), 0) : null;
}

/** Seconds as the API takes a duration, to the microsecond: `PT0.5S`. */
export const durationOf = (seconds: number): string => `PT${seconds.toFixed(6).replace(/\.?0+$/, "")}S`;

/** A duration as the API writes it, as people do; anything else stays as it is. */
export function period(text: string): string {
  const seconds = secondsOf(text);
  return seconds === null ? text : duration(1000 * seconds);
}

/** A size in bytes; its units are the same in all languages. */
export function bytes(size: number): string {
  const names = ["B", "KiB", "MiB", "GiB", "TiB"];
  const power = size ? Math.min(Math.floor(Math.log2(size) / 10), 4) : 0;
  const value = size / 1024 ** power;
  return `${power && value < 10 ? tenth.format(value) : number(Math.round(value))} ${names[power]}`;
}

/** A duration in its largest unit alone. */
export function coarse(milliseconds: number): string {
  const [value, unit] = largest(milliseconds);
  return measured(value, unit);
}

function largest(milliseconds: number): [number, Unit] {
  const seconds = milliseconds / 1000;
  if (seconds < 60) return [Math.round(seconds), "second"];
  if (seconds < 3_600) return [Math.floor(seconds / 60), "minute"];
  return seconds < 172_800 ? [Math.floor(seconds / 3_600), "hour"] : [Math.floor(seconds / 86_400), "day"];
}

const relative = new Intl.RelativeTimeFormat(undefined, { style: "short", numeric: "auto" });

/** How long ago a time is, or in how long: `3 min ago`, `vor 3 Min.`. */
export function ago(at: number): string {
  const distance = now() - at;
  const size = Math.abs(distance);
  if (size < 1500) return isEnglish ? "now" : relative.format(0, "second");
  const [value, unit] = largest(size);
  if (!isEnglish) return relative.format(distance > 0 ? -value : value, unit as "second" | "minute" | "hour" | "day");
  return distance > 0 ? `${coarse(size)} ago` : `in ${coarse(size)}`;
}

/** A time, as long ago or ahead as it is; the exact one is shown on hover. */
export function Time({ at }: { at: string | null | undefined }) {
  const [, tick] = useState(0);
  const value = at ? Date.parse(at) : NaN;
  useEffect(() => {
    if (Number.isNaN(value)) return;
    const every = Math.abs(now() - value) < 60_000 ? 1000 : 15_000;
    const timer = window.setInterval(() => !document.hidden && tick((count) => count + 1), every);
    return () => window.clearInterval(timer);
  }, [value]);
  if (!at || Number.isNaN(value)) return <span class="quiet">–</span>;
  return (
    <time dateTime={at} title={moment(value)} class="nowrap">
      {ago(value)}
    </time>
  );
}

/** For how long something has been so. */
export const since = (at: string): string => coarse(Math.max(0, now() - Date.parse(at)));

export const exact = (at: string | number): string => moment(typeof at === "string" ? Date.parse(at) : at);

/** A moment, in milliseconds since the epoch, as the API takes it. */
export const instant = (at: number): string => new Date(at).toISOString();

/** A time so long ago, in milliseconds, as the API takes it. */
export const timestamp = (milliseconds: number): string => new Date(now() - milliseconds).toISOString();

/** A point of a chart in the chosen zone, so that its lines stand at full hours and days of that zone. */
export const wallClock = (at: number, inUtc: (date: Date) => Date): Date => (shownZone() === "utc" ? inUtc(new Date(at)) : new Date(at));

export const between = (from: string | null | undefined, to: string | null | undefined): string =>
  from ? duration(Math.max(0, (to ? Date.parse(to) : now()) - Date.parse(from))) : "–";

/** The end of an id: enough to tell it from its neighbours, which begin alike. */
export const tail = (id: string): string => id.slice(-12);
