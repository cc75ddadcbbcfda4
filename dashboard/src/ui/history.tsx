/** Throughput and times of waiting and running over time: of all queues, or of one queue, type, worker or host. */
import { useState } from "preact/hooks";
import { accepted, client, query } from "../api/client";
import { now } from "../api/heard";
import { useData } from "../api/use";
import { Chart } from "./chart";
import { duration, fraction, instant, many, number, Time } from "./format";
import { Card, Segments, Shown } from "./parts";
import { useTheme } from "./theme";

const RANGES = {
  "1h": { period: "1m", seconds: 3_600, step: 60 },
  "6h": { period: "5m", seconds: 21_600, step: 300 },
  "24h": { period: "5m", seconds: 86_400, step: 300 },
  "7d": { period: "1h", seconds: 604_800, step: 3_600 },
  "60d": { period: "1d", seconds: 5_184_000, step: 86_400 },
} as const;

type Range = keyof typeof RANGES;

/** What charts can be of. */
export const DIMENSIONS = ["queue", "type", "worker", "host"] as const;
export type Dimension = (typeof DIMENSIONS)[number];
export interface Subject {
  by: Dimension;
  name: string;
}

const GROUPS: Record<Dimension, string> = { queue: "One queue", type: "One job type", worker: "One worker", host: "One host" };

interface Of {
  subject?: Subject | undefined;
  /** Subjects to choose from. */
  choices?: Partial<Record<Dimension, [value: string, label: string][]>>;
  choose?: (subject: Subject | null) => void;
}

export function History({ subject, choices, choose }: Of) {
  const [range, setRange] = useState<Range>("1h");
  const theme = useTheme();
  const { period, seconds, step } = RANGES[range];
  const load = () => {
    // At the start of a step, so that all pages ask the same.
    const since = instant((Math.floor(now() / 1000 / step) * step - seconds) * 1000);
    return accepted(
      client.GET("/ojs/v1/admin/stats/history", { params: { query: query({ period, since, ...(subject && { [subject.by]: subject.name }) }) } }),
    );
  };
  const history = useData(`history ${range} ${subject?.by ?? ""} ${subject?.name ?? ""}`, load, { kinds: ["job", "worker"] });
  const hasPushes = !subject || subject.by === "queue";
  const deployed = history.data?.deployments ?? [];
  const marks = deployed.map((one) => ({ at: Date.parse(one.at) / 1000, label: one.code_version }));
  return (
    <div class="stack">
      <Card
        title="Jobs per minute"
        end={
          <>
            {choices && <Chooser subject={subject} choices={choices} choose={choose} />}
            <Segments
              label="Range"
              of={(Object.keys(RANGES) as Range[]).map((one): [Range, string] => [one, one])}
              chosen={range}
              choose={setRange}
            />
          </>
        }
      >
        <Shown of={history} rows={8}>
          {({ data }) => {
            const { times, of } = filled(data, seconds, step);
            const sum = (name: "completed" | "failed" | "enqueued"): number =>
              data.reduce((total, one) => total + one[name], 0);
            const rate = (value: number | null): number | null => (value === null ? null : (60 * value) / step);
            return (
              <Chart
                theme={theme}
                label={`Jobs per minute in the last ${range}: ${number(sum("completed"))} completed, ${number(sum("failed"))} failed attempts${hasPushes ? `, ${number(sum("enqueued"))} enqueued` : ""}`}
                times={times}
                marks={marks}
                show={(value) => `${fraction(value)} a minute`}
                series={[
                  { label: "completed", colour: "green", values: of((one) => one.completed, 0).map(rate), isFilled: true },
                  { label: "failed", colour: "red", values: of((one) => one.failed, 0).map(rate), isFilled: true },
                  ...(hasPushes ? [{ label: "enqueued", colour: "blue" as const, values: of((one) => one.enqueued, 0).map(rate) }] : []),
                ]}
              />
            );
          }}
        </Shown>
        {history.data?.counted_since && (
          <p class="more quiet">
            <span>
              Counted among the newest jobs: those created since <Time at={history.data.counted_since} />.
            </span>
          </p>
        )}
        {deployed.length > 0 && (
          <p class="more quiet">
            <span>
              New code came {many(deployed.length, "time")}, last <Time at={deployed[deployed.length - 1]?.at} />:{" "}
              <span class="mono">{deployed[deployed.length - 1]?.code_version}</span>.
            </span>
          </p>
        )}
      </Card>
      {TIMES.map(({ title, label, name }) => (
        <Card title={title} key={name}>
          <Shown of={history} rows={8}>
            {({ data }) => {
              const { times, of } = filled(data, seconds, step);
              return (
                <Chart
                  theme={theme}
                  label={`${label}, in the last ${range}`}
                  times={times}
                  marks={marks}
                  show={duration}
                  tick={duration}
                  distances={ROUND_MS}
                  series={[
                    { label: "half", colour: "green", values: of((one) => one[`${name}_p50_ms`], null) },
                    { label: "95 %", colour: "amber", values: of((one) => one[`${name}_p95_ms`], null) },
                    { label: "99 %", colour: "red", values: of((one) => one[`${name}_p99_ms`], null) },
                  ]}
                />
              );
            }}
          </Shown>
        </Card>
      ))}
    </div>
  );
}

function Chooser({ subject, choices, choose }: Of) {
  const chosen = subject ? `${subject.by} ${subject.name}` : "";
  const change = (value: string): void => {
    const place = value.indexOf(" ");
    choose?.(place < 0 ? null : { by: value.slice(0, place) as Dimension, name: value.slice(place + 1) });
  };
  const groups = DIMENSIONS.map((by): [Dimension, [string, string][]] => {
    const known = choices?.[by] ?? [];
    const isKnown = subject?.by !== by || known.some(([value]) => value === subject.name);
    return [by, isKnown || !subject ? known : [...known, [subject.name, subject.name]]];
  });
  return (
    <label>
      <span class="hidden">Charts of</span>
      <select class="input" value={chosen} onChange={(event) => change(event.currentTarget.value)}>
        <option value="">All jobs</option>
        {groups.map(
          ([by, known]) =>
            known.length > 0 && (
              <optgroup label={GROUPS[by]} key={by}>
                {known.map(([value, label]) => (
                  <option value={`${by} ${value}`} key={value}>
                    {label}
                  </option>
                ))}
              </optgroup>
            ),
        )}
      </select>
    </label>
  );
}

/** Durations that are round, in milliseconds: lines of a chart stand at them. */
const ROUND_MS = [
  ...[1, 2, 5, 10, 20, 50, 100, 200, 500],
  ...[1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1_200, 1_800].map((seconds) => seconds * 1_000),
  ...[1, 2, 4, 6, 12, 24, 48, 120, 240, 480, 960, 2_400].map((hours) => hours * 3_600_000),
];

const TIMES = [
  { name: "latency", title: "Waiting time", label: "How long jobs waited before they began" },
  { name: "run", title: "Run time", label: "How long attempts ran until they completed or failed" },
] as const;

interface Step {
  timestamp: string;
  completed: number;
  failed: number;
  enqueued: number;
  latency_p50_ms: number;
  latency_p95_ms: number;
  latency_p99_ms: number;
  run_p50_ms: number;
  run_p95_ms: number;
  run_p99_ms: number;
}

/** The steps of a range, with those in which nothing happened. */
function filled(data: Step[], seconds: number, step: number) {
  const last = Math.floor(now() / 1000 / step) * step;
  const times: number[] = [];
  for (let at = last - seconds + step; at <= last; at += step) times.push(at);
  const known = new Map(data.map((one) => [Math.round(Date.parse(one.timestamp) / 1000), one]));
  const of = (value: (one: Step) => number, none: number | null): (number | null)[] =>
    times.map((at) => {
      const one = known.get(at);
      return one ? value(one) : none;
    });
  return { times, of };
}
