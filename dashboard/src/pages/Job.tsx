import type { ComponentChildren } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { Link, useLocation } from "wouter-preact";
import { accepted, ApiError, client, type Schemas } from "../api/client";
import { useMay } from "../api/session";
import { useData } from "../api/use";
import { useDialogs } from "../ui/dialogs";
import { bytes, duration, exact, number, percent, period, tail, Time } from "../ui/format";
import { Json, Long } from "../ui/json";
import { exactly } from "../ui/json-text";
import { Bar, Button, Card, Copy, Empty, Facts, JobLink, Page, Shown, Table, Tabs } from "../ui/parts";
import { Line } from "../ui/plain";
import { State } from "../ui/states";
import { NewJobDialog } from "./NewJob";
import { endOf, type Job, ranOf, steer, waitedOf } from "./Jobs";

type Entry = Schemas["HistoryEntryBody"];
type Tab = "errors" | "log" | "history" | "items" | "checkpoint" | "notes" | "lineage" | "raw";

const FINAL = new Set(["completed", "cancelled", "discarded"]);

export function JobPage({ id }: { id: string }) {
  const [tab, setTab] = useState<Tab | null>(null);
  const live = { kinds: ["job" as const], id };
  const path = { params: { path: { id } } };
  const job = useData(`job ${id}`, () => accepted(client.GET("/ojs/v1/jobs/{id}", path)).then((found) => found.job as Job), live);
  const history = useData(
    `history of ${id}`,
    () => accepted(client.GET("/ojs/v1/jobs/{id}/history", { params: { path: { id }, query: { limit: "200" } } })),
    live,
  );
  const reasons = useData(`why ${id}`, () => accepted(client.GET("/ojs/v1/jobs/{id}/explanation", path)), {
    kinds: ["job", "queue", "worker", "system"],
  });
  return (
    <Shown of={job} rows={10}>
      {(shown) => {
        const chosen = tab ?? (shown.errors?.length ? "errors" : "history");
        return (
          <Page
            title={shown.type}
            badge={<State state={shown.state} />}
            sub={
              <>
                <span class="mono">{id}</span>
                <Copy text={id} label="Copy the id" />
                in the queue <Link href={`/queues/${encodeURIComponent(shown.queue)}`}>{shown.queue}</Link>
              </>
            }
            actions={<Actions job={shown} reload={job.reload} />}
          >
            {!FINAL.has(shown.state) && (
              <Shown of={reasons} rows={1}>
                {(data) => (
                  <div class="note" role="status">
                    {data.reasons.map((reason) => (
                      <p key={reason.code + reason.message}>{reason.message}</p>
                    ))}
                  </div>
                )}
              </Shown>
            )}
            <Progress job={shown} />
            <div class="columns">
              <div class="stack">
                <Card title="Attempts">
                  <Shown of={history}>{(data) => <Attempts job={shown} events={data.events} />}</Shown>
                </Card>
                <section class="card">
                  <Tabs
                    label="About this job"
                    tabs={[
                      ["errors", `Errors (${shown.errors?.length ?? 0})`],
                      ["log", "Log"],
                      ["history", "History"],
                      ["items", "Items and files"],
                      ["checkpoint", "Checkpoint"],
                      ["notes", "Notes"],
                      ["lineage", "Relatives"],
                      ["raw", "JSON"],
                    ]}
                    chosen={chosen}
                    choose={setTab}
                  />
                  <div class="body">
                    {chosen === "errors" && <Errors job={shown} />}
                    {chosen === "log" && <Lines key={id} id={id} isOver={FINAL.has(shown.state)} />}
                    {chosen === "history" && <Shown of={history}>{(data) => <Log events={data.events} />}</Shown>}
                    {chosen === "items" && <Items id={id} />}
                    {chosen === "checkpoint" && <Checkpoint id={id} />}
                    {chosen === "notes" && <Notes id={id} />}
                    {chosen === "lineage" && <Lineage id={id} />}
                    {chosen === "raw" && <Json value={shown} label="the job" />}
                  </div>
                </section>
              </div>
              <div class="stack">
                <Card title="Arguments">
                  <Json value={shown.args} label="the arguments" />
                </Card>
                {shown.result !== undefined && (
                  <Card title="Result">
                    <Json value={shown.result} label="the result" />
                  </Card>
                )}
                <Card title="Details">
                  <Details job={shown} />
                </Card>
                {!FINAL.has(shown.state) && reasons.data && <Waiting of={reasons.data} />}
              </div>
            </div>
          </Page>
        );
      }}
    </Shown>
  );
}

/** Attributes that the page shows elsewhere, or that are of no use to people; the others are listed as they are. */
const SHOWN = new Set([
  ...["specversion", "id", "type", "queue", "args", "meta", "state", "priority", "attempt", "max_attempts", "created_at", "enqueued_at"],
  ...["started_at", "completed_at", "cancelled_at", "discarded_at", "next_attempt_at", "error", "errors", "result", "worker_id", "progress"],
  ...["tags", "workflow_id", "cron_name", "requires", "result_stored_at", "result_size_bytes", "retry_delay_ms", "created_by", "superseded_by"],
  ...["parent_id", "root_id", "checkpoint", "parent_results", "tenant_id"],
]);

interface Attributes {
  tags?: string[];
  workflow_id?: string;
  cron_name?: string;
  requires?: unknown;
  created_by?: string;
  parent_id?: string;
}

const KINDS = {
  concurrency: "at a time",
  rate: "starts",
  throttle: "starts, evenly spaced",
  pushes: "pushes",
  depth: "that wait",
  scheduled: "for later",
};

const ownerOf = (use: Schemas["LimitUse"]): string =>
  use.tenant ? `Quota of the tenant ${use.tenant}` : use.key ? `Limit ${use.key}` : "Limit of the queue";

/** Where a job stands in its queue, and what limits it. */
function Waiting({ of }: { of: Schemas["Explanation"] }) {
  const limits = of.limits ?? [];
  if (!limits.length && !of.position) return null;
  return (
    <Card title="Queue and limits">
      <Facts
        facts={[
          ["Place in its queue", of.position ? (of.position > 10_000 ? "after more than 10,000 others" : `number ${number(of.position)}`) : null],
          ...limits.map(
            (use): [string, ComponentChildren] => [
              ownerOf(use),
              <span class="progress">
                <Bar done={use.used} of={Math.max(1, use.limit)} label={`Use of: ${ownerOf(use)}, ${KINDS[use.kind]}`} />
                <span class="nowrap">
                  {number(use.used)} of {number(use.limit)} {KINDS[use.kind]}
                  {use.period ? ` in ${period(use.period)}` : ""}
                </span>
              </span>,
            ],
          ),
        ]}
      />
    </Card>
  );
}

function Details({ job }: { job: Job }) {
  const meta = job.meta as Record<string, unknown>;
  const known = job as unknown as Attributes;
  const others = Object.fromEntries(Object.entries(job).filter(([name]) => !SHOWN.has(name)));
  return (
    <Facts
      facts={[
        ["Workflow", known.workflow_id && <Link href={`/workflows/${known.workflow_id}`} class="mono">…{tail(known.workflow_id)}</Link>],
        ["Schedule", known.cron_name && <Link href={`/jobs?cron_name=${encodeURIComponent(known.cron_name)}`}>{known.cron_name}</Link>],
        ["Runs again", known.parent_id && <JobLink id={known.parent_id} />],
        ["Tenant", typeof meta.tenant_id === "string" ? meta.tenant_id : null],
        [
          "Tags",
          known.tags?.length
            ? known.tags.map((tag) => (
                <span class="tag" key={tag}>
                  {tag}
                </span>
              ))
            : null,
        ],
        ["Requires", known.requires !== undefined && <Json value={known.requires} label="what it requires" />],
        ["Created by", known.created_by],
        ["Attempt", `${job.attempt} of ${job.max_attempts}`],
        ["Priority", String(job.priority)],
        ["Created", <Time at={job.created_at} />],
        ["Available", job.enqueued_at && <Time at={job.enqueued_at} />],
        ["Started", job.started_at && <Time at={job.started_at} />],
        ["Ended", endOf(job) && <Time at={endOf(job)} />],
        ["Waited", job.enqueued_at && waitedOf(job)],
        ["Ran", job.started_at && ranOf(job)],
        ["Next attempt", job.next_attempt_at && <Time at={job.next_attempt_at} />],
        ["Worker", job.worker_id && <span class="mono">{job.worker_id}</span>],
        ["Meta", Object.keys(meta).length ? <Json value={meta} label="meta" /> : null],
        ["Options", Object.keys(others).length ? <Json value={others} label="its options" /> : null],
      ]}
    />
  );
}

function Actions({ job, reload }: { job: Job; reload: () => void }) {
  const may = useMay();
  const [, go] = useLocation();
  const { act } = useDialogs();
  const run = async (action: "retry" | "cancel" | "delete"): Promise<void> => {
    const questions = {
      retry: undefined,
      cancel: { title: "Cancel this job?", text: "If it runs, its worker is asked to stop it. What it has done stays done.", action: "Cancel this job" },
      delete: { title: "Delete this job?", text: "Its arguments, result and errors are lost. This cannot be undone.", action: "Delete this job" },
    };
    const question = questions[action] && { ...questions[action], isDangerous: true };
    if (await act(() => steer(action, [job.id]), question)) {
      if (action === "delete") go("/jobs");
      else reload();
    }
  };
  const activate = async (): Promise<void> => {
    await act(async () => {
      await accepted(client.POST("/ojs/v1/jobs/{id}/activate", { params: { path: { id: job.id } }, body: {} }));
      return "The job may run now.";
    });
    reload();
  };
  const copy = async (): Promise<void> => {
    await act(
      async () => {
        const read = client.GET("/ojs/v1/jobs/{id}", { params: { path: { id: job.id } }, parseAs: "text" });
        const { args, meta } = (await exactly<Schemas["JobAnswer"]>(read)).job as Job;
        const body = { type: job.type, args, meta, parent_id: job.id, options: { queue: job.queue, priority: job.priority } };
        const made = await accepted(client.POST("/ojs/v1/jobs", { body: body as unknown as Schemas["EnqueueBody"] }));
        if (made.job) go(`/jobs/${made.job.id}`);
        return "A copy was enqueued.";
      },
      { title: "Run a copy?", text: "A new job with the same type, arguments and queue is enqueued.", action: "Enqueue copy" },
    );
  };
  const isFinal = FINAL.has(job.state);
  const [isEditing, setEditing] = useState(false);
  return (
    <>
      {may("cancel") && job.state === "pending" && (
        <Button icon="play" kind="main" onClick={() => void activate()}>
          Let job run
        </Button>
      )}
      {may("cancel") && (job.state === "discarded" || job.state === "retryable") && (
        <Button icon="retry" kind="main" onClick={() => void run("retry")}>
          Retry job
        </Button>
      )}
      {may("enqueue") && (
        <>
          <Button icon="copy" onClick={() => void copy()}>
            Run a copy
          </Button>
          <Button onClick={() => setEditing(true)}>Run with other arguments</Button>
        </>
      )}
      {isEditing && <NewJobDialog from={job} close={() => setEditing(false)} />}
      {may("cancel") && !isFinal && (
        <Button icon="stop" kind="danger" onClick={() => void run("cancel")}>
          Cancel job
        </Button>
      )}
      {may("admin") && isFinal && (
        <Button icon="trash" kind="danger" onClick={() => void run("delete")}>
          Delete job
        </Button>
      )}
    </>
  );
}

function Progress({ job }: { job: Job }) {
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
  if (!FINAL.has(job.state)) spans.push({ label: isRunning ? "runs" : "waits", from: since, to: Math.max(since, Date.now()), kind: isRunning ? "run" : "wait" });
  return spans;
}

function Attempts({ job, events }: { job: Job; events: Entry[] }) {
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

function Errors({ job }: { job: Job }) {
  const errors = [...(job.errors ?? [])].reverse() as Record<string, unknown>[];
  if (!errors.length) return <Empty icon="check" title="No attempt has failed" />;
  return (
    <div class="stack">
      {errors.map((error, place) => (
        <div class="failure" key={place}>
          <b>
            {String(error.type)} <span class="quiet">in attempt {String(error.attempt)}</span>
          </b>
          <Long text={String(error.message ?? "")} className="told" />
          {Array.isArray(error.backtrace) && (
            <pre class="trace" tabIndex={0}>
              <Long text={(error.backtrace as string[]).join("\n")} />
            </pre>
          )}
          {error.details !== undefined && <Json value={error.details} label="the error's details" />}
          <span class="quiet">
            <Time at={String(error.occurred_at ?? "")} />
          </span>
        </div>
      ))}
    </div>
  );
}

function Log({ events }: { events: Entry[] }) {
  return (
    <ol class="log">
      {events.map((event) => {
        const data = event.data as Record<string, unknown>;
        const what = event.event_type === "job.state_changed" ? `${String(data.from)} → ${String(data.to)}` : event.event_type;
        const actor = event.actor as { type?: string; id?: string };
        return (
          <li key={event.id}>
            <span class="quiet nowrap">{exact(event.timestamp)}</span>
            <span>
              <b>{what}</b> <span class="quiet">by {actor.id ?? actor.type}</span>
            </span>
          </li>
        );
      })}
    </ol>
  );
}

function Items({ id }: { id: string }) {
  const items = useData(`items of ${id}`, () => accepted(client.GET("/ojs/v1/jobs/{job}/items", { params: { path: { job: id } } })), {
    kinds: ["job"],
    id,
  });
  return (
    <Shown of={items}>
      {(data) => (
        <Table
          label="Items"
          rows={data.items}
          keyOf={(item) => String(item.id)}
          empty={<Empty icon="collections" title="It has left no items or files" />}
          columns={[
            { label: "Name", className: "grow", cell: (item) => item.name },
            { label: "Kind", cell: (item) => item.kind },
            {
              label: "Content",
              cell: (item) =>
                item.file ? <FileLink id={item.file.id} name={item.file.filename ?? item.name} size={item.file.size} /> : <code class="clip">{JSON.stringify(item.data)}</code>,
            },
            { label: "Made", className: "num", cell: (item) => <Time at={item.created_at} /> },
          ]}
        />
      )}
    </Shown>
  );
}

export function FileLink({ id, name, size }: { id: string; name: string; size: number }) {
  return (
    <a href={new URL(`../ojs/v1/files/${encodeURIComponent(id)}/content`, document.baseURI).href} download={name}>
      {name} <span class="quiet">({bytes(size)})</span>
    </a>
  );
}

export function NoteList({ notes }: { notes: Schemas["Note"][] }) {
  if (!notes.length) return <Empty title="No notes" />;
  return (
    <ol class="log">
      {notes.map((note) => (
        <li key={`${note.at} ${note.step ?? ""}`}>
          <span class="quiet">{exact(note.at)}</span>
          <span>{typeof note.note === "string" ? <Long text={note.note} /> : <Json value={note.note} label="the note" />}</span>
        </li>
      ))}
    </ol>
  );
}

/** Time between two looks for further lines of a job that is not finished. */
const LINES_MS = 1_000;
/** Lines that a job keeps at most. */
const MAX_LINES = 1_000;

/** What the handler has logged, if its type keeps it; live until the job has finished. */
function Lines({ id, isOver }: { id: string; isOver: boolean }) {
  const known = useRef<Schemas["LogLine"][]>([]);
  const log = useData(
    `log of ${id}`,
    async () => {
      const query = { after: String(known.current.at(-1)?.number ?? 0) };
      const { lines } = await accepted(client.GET("/ojs/v1/jobs/{id}/logs", { params: { path: { id }, query } }));
      known.current = [...known.current, ...lines].slice(-MAX_LINES);
      return known.current;
    },
    { kinds: ["job"], id },
  );
  const { reload } = log;
  useEffect(() => {
    if (isOver) return;
    const timer = window.setInterval(() => document.hidden || reload(), LINES_MS);
    return () => window.clearInterval(timer);
  }, [id, isOver]);
  return (
    <Shown of={log}>
      {(lines) => {
        const [first] = lines;
        if (!first) return <Empty title="No lines">What a handler logs is kept if its type is declared with keep_logs.</Empty>;
        return (
          <>
            {first.number > 1 && <p class="quiet">{number(first.number - 1)} earlier lines are not kept.</p>}
            <ol class="log lines" aria-label="Lines that the handler has logged">
              {lines.map((line) => (
                <li key={line.number} class={line.level}>
                  <span class="quiet">
                    {exact(line.at)} · attempt {line.attempt}
                  </span>
                  <span>
                    <b>{line.level}</b> <span class="quiet">{line.logger}</span>
                    <Long text={line.message} className="mono" />
                  </span>
                </li>
              ))}
            </ol>
          </>
        );
      }}
    </Shown>
  );
}

function Notes({ id }: { id: string }) {
  const path = { params: { path: { id } } };
  const notes = useData(`notes of ${id}`, () => accepted(client.GET("/ojs/v1/jobs/{id}/info", path)), { kinds: ["job"], id });
  const may = useMay();
  const { act } = useDialogs();
  const add = async (): Promise<void> => {
    await act(
      async (text) => {
        await accepted(client.POST("/ojs/v1/jobs/{id}/info", { ...path, body: { note: text } as unknown as Schemas["NoteBody"] }));
        return "The note was added.";
      },
      { title: "Add a note", text: "It stays with the job.", action: "Add note", field: { label: "Note", isRequired: true } },
    );
    notes.reload();
  };
  return (
    <Shown of={notes}>
      {(data) => (
        <div class="stack">
          <NoteList notes={data.notes} />
          {may("cancel") && (
            <div>
              <Button icon="plus" isSmall onClick={() => void add()}>
                Add a note
              </Button>
            </div>
          )}
        </div>
      )}
    </Shown>
  );
}

function Lineage({ id }: { id: string }) {
  const lineage = useData(`lineage of ${id}`, () => accepted(client.GET("/ojs/v1/jobs/{id}/lineage", { params: { path: { id } } })));
  return (
    <Shown of={lineage}>
      {(data) => (
        <Facts
          facts={[
            ["Workflow", data.workflow_id && <Link href={`/workflows/${data.workflow_id}`}>{data.workflow_id}</Link>],
            ["Root", data.root_id && data.root_id !== id && <JobLink id={data.root_id} />],
            ["Parents", data.parents.length ? data.parents.map((one) => <div key={one}><JobLink id={one} /></div>) : "none"],
            ["Children", data.children.length ? data.children.map((one) => <div key={one.job_id}><JobLink id={one.job_id} /></div>) : "none"],
            ["Repeats", data.parent_id && !data.parents.includes(data.parent_id) && <JobLink id={data.parent_id} />],
            ["Superseded by", data.superseded_by && <JobLink id={data.superseded_by} />],
          ]}
        />
      )}
    </Shown>
  );
}

function Checkpoint({ id }: { id: string }) {
  const checkpoint = useData(`checkpoint of ${id}`, async () => {
    try {
      return await accepted(client.GET("/ojs/v1/jobs/{id}/checkpoint", { params: { path: { id } } }));
    } catch (error) {
      if (error instanceof ApiError && error.status === 404) return null;
      throw error;
    }
  });
  return (
    <Shown of={checkpoint}>
      {(found) =>
        found ? (
          <div class="stack">
            <span>
              Number {found.sequence}, saved <Time at={found.created_at} />
            </span>
            <Json value={found.state} label="the checkpoint" />
          </div>
        ) : (
          <Empty title="It has saved no checkpoint" />
        )
      }
    </Shown>
  );
}
