/** The settings of a queue as controls, with their present use. What a change means is shown before it is made. */
import { useState } from "preact/hooks";
import { accepted, client, type Schemas } from "../api/client";
import { useMay } from "../api/session";
import { Dialog, useDialogs } from "../ui/dialogs";
import { many, number, percent, period, Time } from "../ui/format";
import {
  numberIn,
  NumberField,
  rateIn,
  RateField,
  rateInWords,
  rateOf,
  spanIn,
  SpanField,
  spanOf,
  type RateDraft,
  type Span,
} from "../ui/limit-fields";
import { Bar, Button, Card, Facts, Table } from "../ui/parts";

type Detail = Schemas["QueueDetailAnswer"];
type Config = Schemas["QueueConfigurationBody"];
type Body = Schemas["QueueConfigBody"];
type Change = Schemas["SettingChange"];
type Strategy = "reject" | "block" | "drop_oldest";

const STRATEGIES: Record<Strategy, string> = {
  reject: "refuse pushes",
  block: "let pushes wait",
  drop_oldest: "discard the oldest job",
};

const LABELS: Record<string, string> = {
  concurrency: "Jobs at once",
  rate_limit: "Starts",
  throttle: "Starts, evenly spread",
  "backpressure.max_depth": "Waiting jobs",
  "backpressure.strategy": "When it is full",
  "backpressure.warning_threshold": "Warns from",
  "retention.completed": "Keeps completed jobs",
  "retention.cancelled": "Keeps cancelled jobs",
  "retention.discarded": "Keeps discarded jobs",
  "dead_letter.retention.max_age": "Keeps dead letters",
  "dead_letter.retention.max_count": "Dead letters",
  allowed_job_types: "Job types",
};

interface Draft {
  concurrency: string;
  rate: RateDraft;
  throttle: RateDraft;
  depth: string;
  strategy: Strategy;
  completed: Span;
  cancelled: Span;
  discarded: Span;
  deadAge: Span;
  deadCount: string;
  types: string;
}

const typed = (value: number | null | undefined): string => (value === null || value === undefined ? "" : String(value));

function draftOf(config: Config): Draft {
  const dead = config.dead_letter?.retention;
  return {
    concurrency: typed(config.concurrency),
    rate: rateOf(config.rate_limit),
    throttle: rateOf(config.throttle),
    depth: typed(config.backpressure?.max_depth),
    strategy: (config.backpressure?.strategy as Strategy | undefined) ?? "reject",
    completed: spanOf(config.retention?.completed),
    cancelled: spanOf(config.retention?.cancelled),
    discarded: spanOf(config.retention?.discarded),
    deadAge: spanOf(dead?.max_age),
    deadCount: typed(dead?.max_count),
    types: (config.allowed_job_types ?? []).join(", "),
  };
}

const FINISHED = ["completed", "cancelled", "discarded"] as const;

type Members = Record<string, unknown>;

/** Settings whose members are changed one by one. */
const GROUPS = new Set(["retention", "dead_letter"]);

/** The members of a request that a draft sets; all of them, so that two drafts can be compared. */
function bodyOf(draft: Draft): Members {
  const depth = numberIn(draft.depth, "Waiting jobs");
  if (depth === 0) throw new Error("Waiting jobs: 0 is no bound. Leave the field empty for a queue without one.");
  const types = draft.types.split(/[\s,]+/).filter(Boolean);
  return {
    concurrency: numberIn(draft.concurrency, "Jobs at once"),
    rate_limit: rateIn(draft.rate, "Starts"),
    throttle: rateIn(draft.throttle, "Starts, evenly spread"),
    backpressure: depth === null ? null : { max_depth: depth, strategy: draft.strategy },
    retention: Object.fromEntries(FINISHED.map((state) => [state, spanIn(draft[state], LABELS[`retention.${state}`] ?? state)])),
    dead_letter: {
      retention: { max_age: spanIn(draft.deadAge, "Keeps dead letters"), max_count: numberIn(draft.deadCount, "Dead letters") },
    },
    allowed_job_types: types.length ? types : null,
  };
}

/** The members of `after` that differ from those of `before`. */
const differing = (before: Members, after: Members): Members =>
  Object.fromEntries(
    Object.entries(after)
      .filter(([name, value]) => JSON.stringify(value) !== JSON.stringify(before[name]))
      .map(([name, value]) => [name, GROUPS.has(name) ? differing(before[name] as Members, value as Members) : value]),
  );

/** The members that a request sets, with other values. */
const alike = (request: Members, values: Members): Members =>
  Object.fromEntries(
    Object.entries(request).map(([name, value]) => [name, GROUPS.has(name) ? alike(value as Members, values[name] as Members) : values[name]]),
  );

/** The bound of a queue as it is now, with what a draft changes of it: the API sets all its members at once. */
function boundOf(draft: Draft, begun: Draft, config: Config): Config["backpressure"] {
  const now = draftOf(config);
  const depth = numberIn(draft.depth === begun.depth ? now.depth : draft.depth, "Waiting jobs");
  if (depth === null) return null;
  const strategy = draft.strategy === begun.strategy ? now.strategy : draft.strategy;
  return { ...config.backpressure, max_depth: depth, strategy };
}

/**
 * What a draft changes, and what takes it back.
 *
 * It is compared with the settings with which it began, and not with those of now: what somebody else has changed since
 * stays as it is.
 */
function changesOf(draft: Draft, begun: Draft, config: Config): { body: Body; back: Body } {
  const body = differing(bodyOf(begun), bodyOf(draft));
  if ("backpressure" in body) body.backpressure = boundOf(draft, begun, config);
  const back = alike(body, { ...bodyOf(draftOf(config)), backpressure: config.backpressure ?? null });
  return { body: body as Body, back: back as Body };
}

/** A value of a setting in words. */
function said(setting: string, value: unknown): string {
  if (value === null || value === undefined) return setting === "allowed_job_types" ? "all" : setting.startsWith("retention") ? "as the server" : "no limit";
  if (setting === "rate_limit" || setting === "throttle") return rateInWords(value as { limit: number; period: string });
  if (setting === "backpressure.strategy") return STRATEGIES[value as Strategy];
  if (setting === "backpressure.warning_threshold") return percent(Number(value));
  if (Array.isArray(value)) return value.join(", ");
  return typeof value === "number" ? number(value) : typeof value === "string" ? period(value) : JSON.stringify(value);
}

const label = (setting: string): string => LABELS[setting] ?? setting.replaceAll(/[._]/g, " ");

export function QueueSettings({ name, data, reload }: { name: string; data: Detail; reload: () => void }) {
  const may = useMay();
  const { act, tell } = useDialogs();
  const [draft, setDraft] = useState<Draft | null>(null);
  /** What the fields showed when the first of them was changed. */
  const [begun, setBegun] = useState<Draft | null>(null);
  const [foreseen, setForeseen] = useState<{ changes: Change[]; body: Body; back: Body } | null>(null);
  const config = data.configuration;
  const path = { params: { path: { name } } };
  const look = async (): Promise<void> => {
    if (!draft || !begun) return;
    await act(async () => {
      const wanted = changesOf(draft, begun, config);
      const { changes } = await accepted(client.POST("/ojs/v1/admin/queues/{name}/config/preview", { ...path, body: wanted.body }));
      if (changes.length) setForeseen({ changes, ...wanted });
      else tell("Nothing would change.");
    });
  };
  const change = (next: Draft): void => {
    if (!draft) setBegun(draftOf(config));
    setDraft(next);
  };
  const put = async (body: Body): Promise<void> => {
    await accepted(client.PUT("/ojs/v1/admin/queues/{name}/config", { ...path, body }));
    setDraft(null);
    setForeseen(null);
    reload();
  };
  const apply = async (): Promise<void> => {
    if (!foreseen) return;
    await act(
      async () => {
        await put(foreseen.body);
        return `The settings of ${name} were changed.`;
      },
      undefined,
      () => put(foreseen.back),
    );
  };
  if (!may("admin")) {
    return (
      <Card title="Limits and settings">
        <Facts facts={[...uses(data), ...settings(config)]} />
        {!settings(config).length && <p class="quiet">None: jobs are handed out as fast as workers take them.</p>}
      </Card>
    );
  }
  return (
    <Card title="Limits and settings">
      <Controls data={data} draft={draft ?? draftOf(config)} set={change} />
      <Others config={config} />
      <div class="buttons">
        <Button disabled={!draft} onClick={() => setDraft(null)}>
          Keep settings
        </Button>
        <Button kind="main" disabled={!draft} onClick={() => void look()}>
          Preview change
        </Button>
      </div>
      {foreseen && <Foreseen name={name} changes={foreseen.changes} close={() => setForeseen(null)} apply={() => void apply()} />}
    </Card>
  );
}

function Controls({ data, draft, set }: { data: Detail; draft: Draft; set: (draft: Draft) => void }) {
  const change = (part: Partial<Draft>): void => set({ ...draft, ...part });
  const now = Object.fromEntries(uses(data));
  return (
    <div class="stack">
      <div class="fields bare">
        <NumberField label={label("concurrency")} value={draft.concurrency} set={(concurrency) => change({ concurrency })} now={now.Running} />
        <NumberField label={label("backpressure.max_depth")} value={draft.depth} set={(depth) => change({ depth })} now={now.Waiting} />
        <label class="field">
          <span>{label("backpressure.strategy")}</span>
          <select
            class="input"
            value={draft.strategy}
            disabled={!draft.depth.trim()}
            onChange={(event) => change({ strategy: event.currentTarget.value as Strategy })}
          >
            {Object.entries(STRATEGIES).map(([strategy, words]) => (
              <option key={strategy} value={strategy}>
                {words}
              </option>
            ))}
          </select>
        </label>
      </div>
      <RateField label={label("rate_limit")} value={draft.rate} set={(rate) => change({ rate })} now={now.Starts} />
      <RateField label={label("throttle")} value={draft.throttle} set={(throttle) => change({ throttle })} now={now["Next start"]} />
      <details class="folded">
        <summary>Retention and job types</summary>
        <div class="stack">
          {FINISHED.map((state) => (
            <SpanField
              key={state}
              label={label(`retention.${state}`)}
              value={draft[state]}
              set={(span) => change({ [state]: span })}
              empty="as the server"
            />
          ))}
          <SpanField label={label("dead_letter.retention.max_age")} value={draft.deadAge} set={(deadAge) => change({ deadAge })} empty="as the server" />
          <NumberField label={label("dead_letter.retention.max_count")} value={draft.deadCount} set={(deadCount) => change({ deadCount })} />
          <label class="field">
            <span>{label("allowed_job_types")}</span>
            <input class="input" value={draft.types} placeholder="all" onInput={(event) => change({ types: event.currentTarget.value })} />
            <small>
              Separated by commas; <code>payment.*</code> stands for all with this beginning.
            </small>
          </label>
        </div>
      </details>
    </div>
  );
}

/** What is set and has no control here. */
function Others({ config }: { config: Config }) {
  const others = settings(config).filter(([name]) => name.startsWith("ml "));
  return others.length ? <Facts facts={others} /> : null;
}

/** How much of the limits is used now. */
function uses(data: Detail): [string, preact.ComponentChildren][] {
  const { limit_use: use, max_depth: most } = data;
  const active = data.counts.active ?? 0;
  const limit = use?.concurrency?.limit;
  const shown: [string, preact.ComponentChildren][] = [
    ["Running", limit === undefined ? `${number(active)} run now` : <Used done={active} of={limit} words={`${number(active)} of ${number(limit)} run now`} />],
    ["Waiting", most ? <Used done={data.depth} of={most} words={`${number(data.depth)} of ${number(most)} wait now`} /> : `${number(data.depth)} wait now`],
  ];
  if (use?.rate) {
    const { current_count: used, limit: starts, window_resets_at: resets } = use.rate;
    const words = `${number(used)} of ${number(starts)} used now`;
    shown.push(["Starts", <><Used done={used} of={starts} words={words} />{resets && <> starts again <Time at={resets} /></>}</>]);
  }
  if (use?.throttle) shown.push(["Next start", <>the next may start <Time at={use.throttle.next_allowed_at} /></>]);
  return shown;
}

function Used({ done, of, words }: { done: number; of: number; words: string }) {
  return (
    <span class="progress">
      {words}
      <Bar done={Math.min(done, of)} of={of} isFailed={done >= of} label="Used" />
    </span>
  );
}

/** What is set, in words. */
function settings(config: Config): [string, string][] {
  const flat = (members: Record<string, unknown>, outer = ""): [string, string][] =>
    Object.entries(members).flatMap(([name, value]) => {
      const setting = `${outer}${name}`;
      if (value === null || value === undefined) return [];
      const isRate = setting === "rate_limit" || setting === "throttle";
      return typeof value === "object" && !Array.isArray(value) && !isRate
        ? flat(value as Record<string, unknown>, `${setting}.`)
        : [[label(setting), said(setting, value)] as [string, string]];
    });
  return flat(config as Record<string, unknown>);
}

function Foreseen({ name, changes, close, apply }: { name: string; changes: Change[]; close: () => void; apply: () => void }) {
  const effects = [...new Set(changes.flatMap((change) => change.effect ?? []))];
  return (
    <Dialog label={`Change ${name}?`} close={close} className="broad">
      <div class="inside">
        <h2>Change {name}?</h2>
        <p>{many(changes.length, "setting")} would change, at once and for all workers.</p>
        <Table<Change>
          label="Changes"
          rows={changes}
          keyOf={(change) => change.setting}
          columns={[
            { label: "Setting", className: "grow", cell: (change) => <b>{label(change.setting)}</b> },
            { label: "Now", cell: (change) => said(change.setting, change.before) },
            { label: "Then", cell: (change) => said(change.setting, change.after) },
          ]}
        />
        {effects.length > 0 && (
          <ul class="effects">
            {effects.map((effect) => (
              <li key={effect}>{effect}</li>
            ))}
          </ul>
        )}
        <div class="buttons">
          <Button onClick={close}>Keep it as it is</Button>
          <Button kind="main" onClick={apply}>
            Change settings
          </Button>
        </div>
      </div>
    </Dialog>
  );
}
