/** How far a job is, its attempts in time, and their errors. */
import { now } from "../../api/heard";
import { duration, percent, Time } from "../../ui/format";
import { Failure } from "../../ui/failure";
import { Json } from "../../ui/json";
import { Bar, Empty } from "../../ui/parts";
import { Line } from "../../ui/plain";
import { FINAL } from "../../ui/states";
import type { Job } from "../Jobs";
import type { Entry } from "./History";

export function Progress({ job }: { job: Job }) {
  if (job.progress === undefined || job.progress === null) return null;
  const share = typeof job.progress === "number" ? job.progress : (job.progress.progress ?? 0);
  const message = typeof job.progress === "number" ? "" : (job.progress.message ?? "");
  return (
    <div class="progress">
      <Bar done={share} of={1} label="Progress" />
      <span class="num">{percent(share)}</span>
      <span class="quiet">
        <Line text={message} />
      </span>
    </div>
  );
}

interface Span {
  label: string;
  from: number;
  to: number;
  kind: "wait" | "run" | "ok" | "bad" | "off";
}

/** What a job did when, from its history: it waits, runs, and waits for the next attempt. */
function spansOf(job: Job, events: Entry[]): Span[] {
  const spans: Span[] = [];
  let since = Date.parse(job.created_at);
  let isRunning = false;
  for (const event of events) {
    const at = Date.parse(event.timestamp);
    const data = event.data as Record<string, unknown>;
    if (event.event_type !== "job.state_changed") continue;
    if (data.to === "active") {
      spans.push({ label: `wait ${Math.floor(spans.length / 2) + 1}`, from: since, to: at, kind: "wait" });
      isRunning = true;
    } else if (isRunning) {
      const kind = data.to === "completed" ? "ok" : data.to === "cancelled" || data.to === "available" ? "off" : "bad";
      spans.push({ label: `attempt ${Math.floor(spans.length / 2) + 1}`, from: since, to: at, kind });
      isRunning = false;
    } else if (data.to === "available") {
      continue; // it still waits
    }
    since = at;
  }
  if (!FINAL.has(job.state)) spans.push({ label: isRunning ? "runs" : "waits", from: since, to: Math.max(since, now()), kind: isRunning ? "run" : "wait" });
  return spans;
}

export function Attempts({ job, events }: { job: Job; events: Entry[] }) {
  const spans = spansOf(job, events);
  const start = spans[0]?.from ?? 0;
  const length = Math.max(1, (spans.at(-1)?.to ?? 1) - start);
  if (!spans.length) return <Empty title="It never ran" />;
  return (
    <div class="timeline">
      {spans.map((span, place) => (
        <div class="row" key={place}>
          <span>{span.label}</span>
          <span class="track">
            <i
              class={`t-${span.kind}`}
              style={{ left: `${(100 * (span.from - start)) / length}%`, width: `${Math.max(0.4, (100 * (span.to - span.from)) / length)}%` }}
            />
          </span>
          <span class="num">{duration(span.to - span.from)}</span>
        </div>
      ))}
    </div>
  );
}

export function Errors({ job }: { job: Job }) {
  const errors = [...(job.errors ?? [])].reverse() as Record<string, unknown>[];
  if (!errors.length) return <Empty icon="check" title="No attempt has failed" />;
  return (
    <div class="stack">
      {errors.map((error, place) => (
        <Failure key={place} error={error} of={`in attempt ${String(error.attempt)}`}>
          {error.details !== undefined && <Json value={error.details} label="the error's details" />}
          <span class="quiet">
            <Time at={String(error.occurred_at ?? "")} />
          </span>
        </Failure>
      ))}
    </div>
  );
}
