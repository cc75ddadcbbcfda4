import { useRef, useState } from "preact/hooks";
import { useLocation, useSearch } from "wouter-preact";
import { accepted, client, query, type Schemas } from "../api/client";
import { useMay, useOwnQueues } from "../api/session";
import { useData } from "../api/use";
import { ExportButtons } from "../ui/export";
import { between, compact, many, number, tail, Time } from "../ui/format";
import { type Dialogs, useDialogs } from "../ui/dialogs";
import { Button, Card, type Column, Empty, Folded, JobLink, Page, Shown, Table, Turn, usePagesInAddress } from "../ui/parts";
import { Line } from "../ui/plain";
import { State } from "../ui/states";
import { asked, type Chosen, chosenIn, FilterBar, LABELS, toggled, valuesOf, Views } from "./job-filters";
import { NewJobDialog } from "./job/NewJob";

export type Job = Schemas["JobBody"] & { worker_id?: string; losses?: number; progress?: number | { progress?: number; message?: string } };

export function JobsPage() {
  const [, go] = useLocation();
  const parameters = new URLSearchParams(useSearch());
  const chosen = chosenIn(parameters, useOwnQueues());
  const key = JSON.stringify(chosen);
  const choose = (change: Chosen): void => {
    go(`/jobs?${new URLSearchParams(query({ ...chosen, ...change }))}`); // without the page: it begins anew
  };
  const pages = usePagesInAddress();
  const isPointed = useRef(false);
  const [isHeld, setHeld] = useState(false);
  const [isMaking, setMaking] = useState(false);
  const may = useMay();
  const { cursor } = pages;
  const jobs = useData(
    `jobs ${key} ${cursor ?? ""}`,
    () => accepted(client.GET("/ojs/v1/jobs", { params: { query: query({ ...asked(chosen), sort: chosen.sort, cursor, limit: 50 }) } })),
    { kinds: ["job"], isHeld: () => isPointed.current },
  );
  const facets = useData(
    `facets ${key}`,
    () => accepted(client.GET("/ojs/v1/job-facets", { params: { query: asked(chosen) } })),
    { kinds: ["job"] },
  );
  const point = (isInside: boolean): void => {
    isPointed.current = isInside;
    setHeld(isInside);
  };
  return (
    <Page
      title="Jobs"
      actions={
        may("enqueue") && (
          <Button icon="plus" kind="main" onClick={() => setMaking(true)}>
            New job
          </Button>
        )
      }
    >
      {isMaking && <NewJobDialog types={(facets.data?.facets.type ?? []).map((one) => one.value)} close={() => setMaking(false)} />}
      <FilterBar chosen={chosen} choose={choose} types={facets.data?.facets.type ?? []} />
      <Views chosen={chosen} />
      <div class="with-facets">
        <Folded label="Filters with counts">
          <aside class="facets" aria-label="Facets">
            <Shown of={facets} rows={6}>
              {(data) => (
                <>
                  {(["state", "queue", "type", "error_type"] as const).map((name) => {
                    const values = data.facets[name] ?? [];
                    if (!values.length) return null;
                    return (
                      <section key={name} aria-label={LABELS[name]}>
                        <h3>{LABELS[name]}</h3>
                        <ul>
                          {values.slice(0, 12).map((one) => (
                            <li key={one.value}>
                              <button
                                type="button"
                                aria-pressed={valuesOf(chosen[name]).includes(one.value)}
                                onClick={() => choose({ [name]: toggled(chosen[name], one.value) })}
                                title={one.value}
                              >
                                {name === "state" ? <State state={one.value} /> : <span class="name"><Line text={one.value} /></span>}
                                <span class="n">{countOf(data, name, one, chosen, jobs.data)}</span>
                              </button>
                            </li>
                          ))}
                        </ul>
                      </section>
                    );
                  })}
                  {!data.is_complete && (
                    <p class="quiet">≥: counted among the newest {number(data.examined)} jobs.</p>
                  )}
                </>
              )}
            </Shown>
          </aside>
        </Folded>
        <div
          class="stack"
          onPointerEnter={(event) => event.pointerType === "mouse" && point(true)}
          onPointerLeave={(event) => event.pointerType === "mouse" && point(false)}
          onFocusIn={() => point(true)}
          onFocusOut={() => point(false)}
        >
          <Card isBare>
            <Shown of={jobs} rows={12}>
              {(page) => (
                <JobList
                  key={`${key} ${cursor ?? ""}`}
                  jobs={page.jobs as Job[]}
                  total={page.pagination.total}
                  isComplete={page.pagination.is_complete !== false}
                  examined={page.pagination.examined}
                  chosen={chosen}
                  reload={jobs.reload}
                  isHeld={isHeld}
                  older={pages.older(page.pagination.next_cursor)}
                  newer={pages.newer}
                />
              )}
            </Shown>
          </Card>
        </div>
      </div>
    </Page>
  );
}

/** The number of a value of a facet: that of the list if it is chosen, so that both agree, else what was counted. */
function countOf(
  facets: Schemas["FacetsAnswer"],
  name: Schemas["FacetsAnswer"]["exact"][number],
  one: Schemas["FacetValueBody"],
  chosen: Chosen,
  page: Schemas["JobPageAnswer"] | undefined,
): string {
  const values = valuesOf(chosen[name]);
  const listed = values.length === 1 && values[0] === one.value && page?.pagination.is_complete !== false ? page?.pagination.total : undefined;
  return listed === undefined ? `${facets.exact.includes(name) ? "" : "≥ "}${compact(one.jobs)}` : compact(listed);
}

type Act = "retry" | "cancel" | "delete";

const WORDS: Record<Act, { done: string; text: string; isFinal: boolean }> = {
  retry: { done: "retried", text: "They run again from the beginning, with all their attempts.", isFinal: false },
  cancel: { done: "cancelled", text: "Those that run are asked to stop; work that they have done stays done.", isFinal: true },
  delete: { done: "deleted", text: "Their arguments, results and errors are lost. This cannot be undone.", isFinal: true },
};

type Selection = Record<string, unknown>;

/** How many jobs an action changes, how many it cannot change, when they were counted, and where the next part begins. */
interface Foreseen {
  done: number;
  refused: number;
  as_of: string | undefined;
  next?: string | null;
  /** Why the first one is not changed, in the server's words; of jobs that are named alone. */
  reason?: string;
}

async function call(action: Act, body: { job_ids?: string[]; filter?: Selection; dry_run?: boolean; cursor?: string }): Promise<Foreseen> {
  const { data, error, response } = await (
    action === "retry"
      ? client.POST("/ojs/v1/jobs/bulk/retry", { body })
      : action === "cancel"
        ? client.POST("/ojs/v1/jobs/bulk/cancel", { body })
        : client.POST("/ojs/v1/jobs/bulk/delete", { body })
  );
  // A refusal of each job is an answer, too: it says how many were meant.
  const answer = data ?? (error as Schemas["BulkChangedAnswer"] | undefined);
  if (answer?.total_matched === undefined) return accepted<never>(Promise.resolve({ error, response }));
  const done = answer.retried ?? answer.cancelled ?? answer.deleted ?? 0;
  return { done, refused: answer.total_matched - done, as_of: answer.as_of, next: answer.next_cursor, reason: answer.items?.find((one) => one.reason)?.reason ?? undefined };
}

/** What an action on all jobs that match would do: a question names this number, and the action has the same filter. */
export const foresee = (action: Act, filter: Selection): Promise<Foreseen> => call(action, { filter, dry_run: true });

/** What an action is called on its button: a verb, and how many jobs it changes. */
export const named = (action: Act, size: number): string => `${verbOf(action)} ${many(size, "job")}`;

const verbOf = (action: Act): string => `${action[0]?.toUpperCase()}${action.slice(1)}`;

const REFUSED = "could not be, in their state";

const said = (action: Act, done: number, refused: number, why = REFUSED): string =>
  `${many(done, "job")} ${WORDS[action].done}.${refused > 0 ? ` ${number(refused)} ${why}.` : ""}`;

/** Changes jobs that are named; throws the server's reason if it does not change the only one. */
export async function steer(action: Act, ids: string[]): Promise<string> {
  const { done, refused, reason } = await call(action, { job_ids: ids });
  if (ids.length === 1 && reason) throw new Error(reason);
  return said(action, done, refused);
}

/** Changes all jobs that match, in parts, shows how far it is, and can be stopped; `total`: how many were counted. */
export async function steerAll({ inParts }: Dialogs, action: Act, filter: Selection, total: number): Promise<string> {
  let [done, refused, cursor] = [0, 0, "0"];
  const why = action === "cancel" ? "that run are asked to stop" : REFUSED;
  const isStopped = await inParts({
    title: named(action, total),
    total,
    part: async () => {
      const part = await call(action, { filter, cursor }).catch((error: Error) => {
        throw done + refused ? new Error(`${said(action, done, refused, why)} Then: ${error.message}`) : error;
      });
      done += part.done;
      refused += part.refused;
      cursor = part.next ?? "";
      return { size: done ? part.done : concerned(action, part), isLast: !cursor };
    },
  });
  return said(action, done, refused, why) + (isStopped ? " Stopped: the others stay as they are." : "");
}

/** How many jobs an action concerns: those that run are not cancelled at once, but asked to stop. */
export const concerned = (action: Act, { done, refused }: Foreseen): number => done || (action === "cancel" ? refused : 0);

/** What is said in place of a question about no job. */
export const noneOf = (action: Act): string => `No job that matches can be ${WORDS[action].done}, in its state.`;

/** What a question says of jobs that match, and that the action does not change. */
export function others(action: Act, { done, refused }: Foreseen): string {
  if (!refused) return "";
  if (action === "cancel") return ` ${number(refused)}${done ? " more" : ""} match and run: their workers are asked to stop them.`;
  return ` ${number(refused)} more match and cannot be ${WORDS[action].done}: they are steps of workflows.`;
}

function JobList(props: {
  jobs: Job[];
  total: number;
  /** Whether all jobs were examined; else there may be more that match. */
  isComplete: boolean;
  /** How many jobs were examined, if not all were. */
  examined?: number;
  chosen: Chosen;
  reload: () => void;
  isHeld: boolean;
  older?: () => void;
  newer?: () => void;
}) {
  const { jobs, total, isComplete } = props;
  const some = isComplete ? "" : "at least ";
  const [picked, setPicked] = useState<ReadonlySet<string>>(new Set());
  const [isAll, setAll] = useState(false);
  const may = useMay();
  const dialogs = useDialogs();
  const { act } = dialogs;
  const here = jobs.filter((job) => picked.has(job.id));
  // Deliveries are more jobs, not fewer: alone, they are no condition for the server either.
  const isNarrow = Object.keys(asked(props.chosen)).some((name) => name !== "internal");
  // Of those that match, an action may concern fewer: the question has their number.
  const labelOf = (action: Act): string => (isAll ? `${verbOf(action)} matching jobs` : named(action, here.length));
  // Whoever picks jobs of the page, or none, means no more all that match.
  const pickOnly = (ids: ReadonlySet<string>): void => {
    setAll(false);
    setPicked(ids);
  };
  const pick = (id: string): void => {
    const next = new Set(picked);
    if (!next.delete(id)) next.add(id);
    pickOnly(next);
  };
  const apply = async (action: Act): Promise<void> => {
    await act(async () => {
      const words = WORDS[action];
      const filter = asked(props.chosen);
      const foreseen = isAll ? await foresee(action, filter) : { done: here.length, refused: 0, as_of: undefined };
      const size = concerned(action, foreseen);
      if (!size) return noneOf(action);
      const ids = here.map((job) => job.id);
      const change = (): Promise<string> =>
        isAll ? steerAll(dialogs, action, { ...filter, until: foreseen.as_of }, size) : steer(action, ids);
      const isDone = await act(change, {
        title: `${named(action, size)}?`,
        text: words.text + others(action, foreseen),
        action: named(action, size),
        isDangerous: words.isFinal,
        word: action === "delete" && foreseen.done > 100 ? "delete" : undefined,
      });
      if (isDone) {
        pickOnly(new Set());
        props.reload();
      }
    });
  };
  const columns: Column<Job>[] = [
    {
      label: "Pick",
      className: "pick",
      cell: (job) => (
        <input type="checkbox" aria-label={`Pick the job ${tail(job.id)}`} checked={picked.has(job.id)} onChange={() => pick(job.id)} />
      ),
    },
    {
      label: "Job",
      className: "grow",
      cell: (job) => (
        <>
          <JobLink id={job.id}>
            <b class="clip">{job.type}</b>
          </JobLink>
          <span class="sub mono">…{tail(job.id)}</span>
          {job.error && job.state !== "completed" && <span class="sub clip"><Line text={errorLine(job.error)} /></span>}
        </>
      ),
    },
    { label: "State", cell: (job) => <State state={job.state} /> },
    { label: "Queue", className: "wide", cell: (job) => <span class="clip">{job.queue}</span> },
    { label: "Attempt", className: "wider num", cell: attemptOf },
    { label: "Waited", className: "wider num", cell: waitedOf },
    { label: "Ran", className: "wider num", cell: ranOf },
    { label: "Created", className: "wide num", cell: (job) => <Time at={job.created_at} /> },
  ];
  return (
    <>
      {here.length > 0 && (
        <div class="more" role="group" aria-label="What to do with the picked jobs">
          <b>{isAll ? `All ${some}${many(total, "job")} that match` : `${many(here.length, "job")} picked`}</b>
          {!isAll && isNarrow && (total > here.length || !isComplete) && (
            <Button isSmall onClick={() => setAll(true)}>
              Pick all {some}
              {number(total)} that match
            </Button>
          )}
          {may("cancel") && (
            <>
              <Button isSmall icon="retry" onClick={() => void apply("retry")}>
                {labelOf("retry")}
              </Button>
              <Button isSmall icon="stop" onClick={() => void apply("cancel")}>
                {labelOf("cancel")}
              </Button>
            </>
          )}
          {may("admin") && (
            <Button isSmall icon="trash" kind="danger" onClick={() => void apply("delete")}>
              {labelOf("delete")}
            </Button>
          )}
          <Button isSmall kind="plain" onClick={() => pickOnly(new Set())}>
            Pick none
          </Button>
        </div>
      )}
      <Table
        label="Jobs"
        columns={columns}
        rows={jobs}
        keyOf={(job) => job.id}
        empty={
          <Empty icon="jobs" title={!isComplete ? "None of the newer jobs matches" : isNarrow ? "No job matches" : "No jobs yet"}>
            {!isComplete
              ? "Older jobs were not examined: go on with them, or remove a condition above."
              : isNarrow
                ? "Remove a condition above."
                : "Push one with `ojster push`, or from your application."}
          </Empty>
        }
      />
      <div class="more">
        <Button isSmall kind="plain" onClick={() => pickOnly(new Set(jobs.map((job) => job.id)))} disabled={!jobs.length}>
          Pick these {jobs.length}
        </Button>
        <span>
          {many(total, "job")} match{total === 1 ? "es" : ""}
          {!isComplete && `: searched the newest ${props.examined === undefined ? "ones" : number(props.examined)} of this list; go on for others`}
        </span>
        {props.isHeld && <span>The list waits while you are in it.</span>}
        <ExportButtons path="job-export" query={asked(props.chosen)} name="jobs" what="these jobs" />
        <Turn newer={props.newer} older={props.older} />
      </div>
    </>
  );
}

/** When the last attempt of a job began; a job that waits for another attempt keeps the start of the one before. */
function startOf(job: Job): string | undefined {
  const isWaiting = job.started_at && job.enqueued_at && Date.parse(job.enqueued_at) > Date.parse(job.started_at);
  return isWaiting ? undefined : job.started_at;
}

/** How long a job waited in its queue for its last attempt, or waits. */
export function waitedOf(job: Job): string {
  const end = startOf(job) ?? endOf(job);
  return job.enqueued_at && (end || job.state === "available") ? between(job.enqueued_at, end) : "–";
}

/** How long the last attempt of a job has run. */
export function ranOf(job: Job): string {
  const start = startOf(job);
  return start && (job.state === "active" || endOf(job)) ? between(start, endOf(job)) : "–";
}

/** Number of the last attempt of a job, and how many it may have: those whose workers died do not count. */
export function attemptOf(job: Job): string {
  return `${job.attempt} of ${Math.max(job.max_attempts + (job.losses ?? 0), job.attempt, 1)}`;
}

export const endOf = (job: Job): string | undefined => job.completed_at ?? job.discarded_at ?? job.cancelled_at;

export const errorLine = (error: Record<string, unknown>): string =>
  `${String(error.type ?? "Error")}: ${String(error.message ?? "")}`;
