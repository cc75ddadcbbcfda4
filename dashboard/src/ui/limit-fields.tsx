/** Fields for limits: numbers, rates and spans of time, each of which may be left empty for "no limit". */
import type { ComponentChildren } from "preact";
import { durationOf, period, secondsOf } from "./format";

const UNITS = [
  ["1", "seconds"],
  ["60", "minutes"],
  ["3600", "hours"],
  ["86400", "days"],
] as const;

/** A span of time as it is typed: a number, and the seconds of its unit. */
export interface Span {
  count: string;
  unit: string;
}

export interface RateDraft extends Span {
  limit: string;
}

interface RateBody {
  limit: number;
  period: string;
}

/** What the API says of a span, in the largest unit of which it is a whole number. */
export function spanOf(text: string | null | undefined): Span {
  const seconds = text ? secondsOf(text) : null;
  if (seconds === null) return { count: "", unit: text === undefined || text === null ? "86400" : "1" };
  const unit = [...UNITS].reverse().find(([size]) => seconds % Number(size) === 0)?.[0] ?? "1";
  return { count: String(seconds / Number(unit)), unit };
}

export const rateOf = (rate: RateBody | null | undefined): RateDraft =>
  rate ? { limit: String(rate.limit), ...spanOf(rate.period) } : { limit: "", count: "1", unit: "60" };

/** A typed number; `null`: none. */
export function numberIn(text: string, what: string): number | null {
  const typed = text.trim();
  if (typed === "") return null;
  if (!/^\d{1,9}$/.test(typed)) throw new Error(`${what}: ${typed} is no whole number.`);
  return Number(typed);
}

/** A typed span, as the API takes it, to the microsecond; `null`: none. */
export function spanIn(span: Span, what: string): string | null {
  const typed = span.count.trim();
  if (typed === "") return null;
  if (!/^\d+([.,]\d+)?$/.test(typed)) throw new Error(`${what}: ${typed} is no number.`);
  const seconds = Number(typed.replace(",", ".")) * Number(span.unit);
  return durationOf(seconds);
}

export function rateIn(rate: RateDraft, what: string): RateBody | null {
  const limit = numberIn(rate.limit, what);
  if (limit === null) return null;
  const span = spanIn(rate, what);
  if (span === null) throw new Error(`${what}: say in which time.`);
  if (!secondsOf(span)) throw new Error(`${what}: ${rate.count.trim()} is no number above zero.`);
  return { limit, period: span };
}

/** A rate in words: `100 in 1 min`. */
export const rateInWords = (rate: RateBody): string => `${rate.limit} in ${period(rate.period)}`;

interface Labelled {
  label: string;
  /** How much of it is used now, or what it means. */
  now?: ComponentChildren;
}

export function NumberField(props: Labelled & { value: string; set: (value: string) => void; empty?: string }) {
  return (
    <label class="field">
      <span>{props.label}</span>
      <input
        class="input"
        inputMode="numeric"
        value={props.value}
        placeholder={props.empty ?? "no limit"}
        onInput={(event) => props.set(event.currentTarget.value)}
      />
      {props.now && <small>{props.now}</small>}
    </label>
  );
}

export function SpanField(props: Labelled & { value: Span; set: (value: Span) => void; empty: string }) {
  return (
    <div class="field">
      <span>{props.label}</span>
      <span class="pair">
        <SpanInputs {...props} />
      </span>
      {props.now && <small>{props.now}</small>}
    </div>
  );
}

export function RateField(props: Labelled & { value: RateDraft; set: (value: RateDraft) => void }) {
  const { value, set, label } = props;
  return (
    <div class="field">
      <span>{label}</span>
      <span class="pair">
        <input
          class="input"
          inputMode="numeric"
          aria-label={label}
          value={value.limit}
          placeholder="no limit"
          onInput={(event) => set({ ...value, limit: event.currentTarget.value })}
        />
        in
        <SpanInputs label={`${label}: in which time`} value={value} set={(span) => set({ ...value, ...span })} empty="1" />
      </span>
      {props.now && <small>{props.now}</small>}
    </div>
  );
}

function SpanInputs(props: { label: string; value: Span; set: (value: Span) => void; empty: string }) {
  const { label, value, set } = props;
  return (
    <>
      <input
        class="input"
        inputMode="decimal"
        aria-label={label}
        value={value.count}
        placeholder={props.empty}
        onInput={(event) => set({ ...value, count: event.currentTarget.value })}
      />
      <select class="input" aria-label={`${label}: unit`} value={value.unit} onChange={(event) => set({ ...value, unit: event.currentTarget.value })}>
        {UNITS.map(([seconds, name]) => (
          <option key={seconds} value={seconds}>
            {name}
          </option>
        ))}
      </select>
    </>
  );
}
