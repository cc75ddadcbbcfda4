import type { ComponentChildren } from "preact";
import { useState } from "preact/hooks";
import { Link, useLocation } from "wouter-preact";
import { accepted, client, query, type Schemas } from "../api/client";
import { useMay } from "../api/session";
import { useData } from "../api/use";
import { Gantt } from "../graph/Gantt";
import { Graph } from "../graph/Graph";
import { ASKED, readLevel, runTime, spansOf, stateOf, titleOf, waitTime } from "../graph/model";
import { Dialog, useDialogs } from "../ui/dialogs";
import { between, duration, exact, many, number, Time } from "../ui/format";
import { Icon } from "../ui/icons";
import { Json, Long } from "../ui/json";
import { ExportButtons } from "../ui/export";
import { Button, Card, Copy, Empty, Facts, JobLink, Page, Shown, Table, Tabs, Turn, usePages } from "../ui/parts";
import { Line } from "../ui/plain";
import { type JsonSchema, SchemaForm } from "../ui/schema-form";
import { State } from "../ui/states";
import { FlowTab, FlowWaits, useFlow } from "./Flow";
import { canFork, ForkDialog, Forks } from "./Fork";
import { NoteList } from "./Job";
import { jobsOf, nameOf, Progress } from "./Workflows";

type Info = Schemas["WorkflowInfo"];
type Row = Schemas["StepRow"];
type Tab = "flow" | "graph" | "timeline" | "steps" | "data" | "notes" | "runs";

const FINAL = new Set(["completed", "failed", "cancelled", "compensated", "retried"]);
const ROWS = 1_000;

interface Only {
  state?: string;
  held?: "true";
  search?: string;
  cursor?: string | null;
  limit?: number;
}

const readSteps = (id: string, only: Only = {}): Promise<Schemas["StepsAnswer"]> =>
  accepted(client.GET("/ojs/v1/workflows/{id}/steps", { params: { path: { id }, query: query({ limit: ROWS, ...only }) } }));

/** Steps in a page of the list and of the timeline. */
const PAGE = 200;
/** Calls for one page: a search, or a state that few steps have, examines many steps for few. */
const CALLS = 50;

/** A page of the steps that match, however far they are apart. */
async function readPage(id: string, only: Only): Promise<Schemas["StepsAnswer"]> {
  const steps: Row[] = [];
  let cursor = only.cursor ?? null;
  for (let call = 0; call < CALLS; call++) {
    const answer: Schemas["StepsAnswer"] = await readSteps(id, { ...only, cursor, limit: PAGE - steps.length });
    steps.push(...answer.steps);
    cursor = answer.next_cursor;
    if (cursor === null || steps.length >= PAGE) break;
  }
  return { steps, next_cursor: cursor };
}

/** The steps of a flow, in the order in which its function has asked for them. */
async function readFlowSteps(id: string): Promise<Schemas["StepsAnswer"]> {
  const level = await readLevel(id, 0, ROWS);
  return { steps: level.steps, next_cursor: level.cursor };
}

export function WorkflowPage({ id }: { id: string }) {
  const [tab, setTab] = useState<Tab>("graph");
  const may = useMay();
  const [chosen, setChosen] = useState<Row | null>(null);
  const [forked, setForked] = useState<{ step: string | null; jobId?: string | null } | null>(null);
  const live = { kinds: ["workflow" as const, "job" as const], id };
  const workflow = useData(
    `workflow ${id}`,
    () => accepted(client.GET("/ojs/v1/workflows/{id}", { params: { path: { id }, query: query({ steps: "false" }) } })).then((one) => one.workflow),
    live,
  );
  const [only, setOnly] = useState<{ state: string; search: string }>({ state: "", search: "" });
  const pages = usePages();
  const needsSteps = tab === "timeline" || tab === "steps";
  const isFlow = workflow.data?.kind === "flow";
  const flow = useFlow(id, isFlow);
  const wanted = { ...only, cursor: pages.cursor };
  const isWhole = isFlow && !only.state && !only.search;
  const steps = useData(
    needsSteps ? `steps ${id} ${isFlow} ${JSON.stringify(wanted)}` : null,
    () => (isWhole ? readFlowSteps(id) : readPage(id, wanted)),
    { ...live, id: [id, flow.data?.job_id ?? undefined] },
  );
  const choose = (change: Partial<typeof only>): void => {
    pages.begin();
    setOnly({ ...only, ...change });
  };
  const turn = isWhole ? undefined : { newer: pages.newer, older: pages.older(steps.data?.next_cursor) };
  return (
    <Shown of={workflow} rows={10}>
      {(shown) => (
        <Page
          title={nameOf(shown)}
          badge={<State state={shown.held ? "held" : shown.state} />}
          sub={
            <>
              <span class="mono">{id}</span>
              <Copy text={id} label="Copy the id" />
              {shown.target && <>for {shown.target}</>}
            </>
          }
          actions={
            <>
              {may("cancel") && canFork(shown) && (
                <Button icon="branch" onClick={() => setForked({ step: null, jobId: flow.data?.job_id })}>
                  Fork workflow
                </Button>
              )}
              <Actions workflow={shown} reload={workflow.reload} />
            </>
          }
        >
          <Progress workflow={shown} />
          <Forks workflow={shown} />
          <Waiting workflow={shown} reload={workflow.reload} />
          {flow.data && !shown.finished && <FlowWaits id={id} flow={flow.data} reload={flow.reload} />}
          {shown.error && (
            <Why workflow={shown}>
              <Button
                isSmall
                onClick={() => {
                  choose({ state: "failed", search: "" });
                  setTab("steps");
                }}
              >
                Open failed steps
              </Button>
            </Why>
          )}
          <section class="card">
            <Tabs
              label="About this workflow"
              tabs={[
                ["graph", "Graph"],
                ["timeline", "Timeline"],
                ["steps", "Steps"],
                ...(isFlow ? ([["flow", "Messages and state"]] as [Tab, string][]) : []),
                ["data", "Inputs and outputs"],
                ["notes", "Notes"],
                ["runs", "Other runs"],
              ]}
              chosen={tab}
              choose={setTab}
            />
            {tab === "graph" && <Graph id={id} job={flow.data?.job_id ?? undefined} name={nameOf(shown)} first={failuresOf(shown)[0]?.path ?? null} chosen={chosen?.path ?? null} choose={setChosen} />}
            {needsSteps && <StepFilter only={only} choose={choose} turn={turn} />}
            {tab === "timeline" && <Shown of={steps}>{(data) => <Gantt rows={data.steps} name={nameOf(shown)} />}</Shown>}
            {needsSteps && (
              <div class="more">
                <span>The whole history</span>
                <ExportButtons path={`workflows/${encodeURIComponent(id)}/export`} name={`workflow-${id}`} what="the history" />
              </div>
            )}
            {tab === "steps" && <Shown of={steps}>{(data) => <Steps rows={data.steps} choose={setChosen} />}</Shown>}
            {tab === "flow" && <Shown of={flow}>{(data) => <FlowTab id={id} flow={data} />}</Shown>}
            {tab === "data" && <Data workflow={shown} />}
            {tab === "notes" && <Notes id={id} />}
            {tab === "runs" && <Runs workflow={shown} />}
          </section>
          {chosen && (
            <StepDialog
              id={id}
              step={chosen}
              close={() => setChosen(null)}
              reload={workflow.reload}
              fork={canFork(shown) ? () => (setForked({ step: chosen.path, jobId: chosen.job_id }), setChosen(null)) : undefined}
            />
          )}
          {forked && <ForkDialog workflow={shown} {...forked} close={() => setForked(null)} />}
        </Page>
      )}
    </Shown>
  );
}

interface Failure {
  job_id?: string | null;
  path?: string;
  step: string;
  type?: string | null;
  message: string;
}

const failuresOf = (workflow: Info): Failure[] => (workflow.error?.errors ?? []) as unknown as Failure[];

/** Why a workflow failed: the steps that did, the first one first, with the way to their jobs and backtraces. */
function Why({ workflow, children }: { workflow: Info; children: ComponentChildren }) {
  const failures = failuresOf(workflow);
  if (!failures.length) {
    return (
      <div class="problem" role="status">
        <Long text={workflow.error?.message ?? ""} />
        {children}
      </div>
    );
  }
  const others = Math.max(0, ((workflow.metadata as { failed_count?: number } | undefined)?.failed_count ?? 0) - failures.length);
  return (
    <Card title={workflow.error?.code === "step_failed" ? "Why it failed" : `Why it failed: ${workflow.error?.message ?? ""}`} end={children} isBare>
      <ul class="findings">
        {failures.map((failure) => (
          <li key={failure.path ?? failure.step}>
            <span class="level error">
              <Icon name="cross" />
            </span>
            <span>
              <b>{failure.path ?? failure.step}</b> {failure.type && <span class="quiet">{failure.type}</span>}
              <span class="place">
                <Line text={failure.message ?? ""} />
              </span>
            </span>
            {failure.job_id && <JobLink id={failure.job_id}>Job and backtrace</JobLink>}
          </li>
        ))}
      </ul>
      {others > 0 && <div class="more">{many(others, "more job")} failed.</div>}
    </Card>
  );
}

function Actions({ workflow, reload }: { workflow: Info; reload: () => void }) {
  const may = useMay();
  const { act } = useDialogs();
  const path = { params: { path: { id: workflow.id } } };
  const hold = async (isHeld: boolean): Promise<void> => {
    const set = (held: boolean): Promise<unknown> =>
      accepted(held ? client.POST("/ojs/v1/workflows/{id}/hold", path) : client.POST("/ojs/v1/workflows/{id}/release", path)).then(reload);
    await act(
      async () => {
        await set(!isHeld);
        return isHeld ? "Its steps start again." : "No step starts until you release it. Those that run, end.";
      },
      undefined,
      () => set(isHeld),
    );
  };
  const cancel = async (): Promise<void> => {
    await act(
      async () => {
        await accepted(client.POST("/ojs/v1/workflows/{id}/cancel", path));
        return "The workflow was cancelled.";
      },
      {
        title: `Cancel ${nameOf(workflow)}?`,
        text: `${many(jobsOf(workflow).of - jobsOf(workflow).done, "job")} of it did not complete yet. Those that wait never start; those that run are asked to stop.`,
        action: "Cancel this workflow",
        isDangerous: true,
      },
    );
    reload();
  };
  const terminate = async (): Promise<void> => {
    await act(
      async () => {
        await accepted(client.POST("/ojs/v1/workflows/{id}/terminate", path));
        return "The workflow was terminated.";
      },
      {
        title: `Terminate ${nameOf(workflow)}?`,
        text: "It ends without cleaning up: what runs is stopped, and nothing is compensated or undone.",
        action: "Terminate this workflow",
        isDangerous: true,
      },
    );
    reload();
  };
  const retry = async (): Promise<void> => {
    await act(
      async () => {
        await accepted(client.POST("/ojs/v1/workflows/{id}/retry", path));
        return "What had failed runs again.";
      },
      { title: "Retry failed steps?", text: "Steps that failed or were cancelled run again. Those that completed keep their results.", action: "Retry failed steps" },
    );
    reload();
  };
  if (!may("cancel")) return null;
  const isCancelled = workflow.state === "cancelled" || workflow.state === "cancelling";
  const end = (
    <Button icon="cross" kind="danger" onClick={() => void terminate()}>
      Terminate workflow
    </Button>
  );
  if (isCancelled && !workflow.finished) return end;
  return FINAL.has(workflow.state) ? (
    workflow.state === "completed" ? null : (
      <Button icon="retry" kind="main" onClick={() => void retry()}>
        Retry failed steps
      </Button>
    )
  ) : (
    <>
      <Button icon={workflow.held ? "play" : "pause"} onClick={() => void hold(workflow.held ?? false)}>
        {workflow.held ? "Release workflow" : "Hold workflow"}
      </Button>
      <Button icon="stop" kind="danger" onClick={() => void cancel()}>
        Cancel workflow
      </Button>
      {end}
    </>
  );
}

/** The steps that wait for a person, with what the person can do. */
function Waiting({ workflow, reload }: { workflow: Info; reload: () => void }) {
  const waits = workflow.waiting_for ?? [];
  const gates = useData(waits.includes("gate") ? `gates ${workflow.id}` : null, () => readSteps(workflow.id, { state: "blocked" }), {
    kinds: ["workflow"],
    id: workflow.id,
  });
  const held = useData(
    waits.includes("form") || waits.includes("suspension") ? `forms ${workflow.id}` : null,
    async () => (await readSteps(workflow.id, { held: "true" })).steps,
    { kinds: ["workflow", "job"], id: workflow.id },
  );
  if (!gates.data?.steps.length && !held.data?.length) return null;
  return (
    <Card title="Waits for somebody" isBare>
      <ul class="findings">
        {gates.data?.steps.map((step) => <Gate key={step.path} id={workflow.id} step={step} reload={reload} />)}
        {held.data?.map((step) => <Suspended key={step.path} id={workflow.id} step={step} reload={reload} />)}
      </ul>
    </Card>
  );
}

function Gate({ id, step, reload }: { id: string; step: Row; reload: () => void }) {
  const may = useMay();
  const { act } = useDialogs();
  const review = async (action: "approve" | "reject"): Promise<void> => {
    await act(
      async (notes) => {
        await accepted(
          client.POST("/ojs/v1/workflows/{id}/steps/{step}/review", {
            params: { path: { id, step: step.path } },
            body: { action, notes: notes || null },
          }),
        );
        return action === "approve" ? `${step.path} was approved.` : `${step.path} was rejected.`;
      },
      {
        title: action === "approve" ? `Approve ${step.path}?` : `Reject ${step.path}?`,
        text: action === "approve" ? "The steps behind it start." : "The step fails, and what depends on it does not run.",
        action: action === "approve" ? "Approve step" : "Reject step",
        isDangerous: action === "reject",
        field: { label: "Notes, for others" },
      },
    );
    reload();
  };
  return (
    <li>
      <span>
        <b>{titleOf(step)}</b> waits for an approval.
      </span>
      {may("admin") && (
        <span class="filters" style={{ marginLeft: "auto" }}>
          <Button isSmall kind="main" icon="check" onClick={() => void review("approve")}>
            Approve step
          </Button>
          <Button isSmall kind="danger" icon="cross" onClick={() => void review("reject")}>
            Reject step
          </Button>
        </span>
      )}
    </li>
  );
}

function Suspended({ id, step, reload }: { id: string; step: Row; reload: () => void }) {
  const may = useMay();
  const { tell } = useDialogs();
  const [isOpen, setOpen] = useState(false);
  const jobId = step.job_id ?? "";
  const job = useData(isOpen && jobId ? `waiting job ${jobId}` : null, () =>
    accepted(client.GET("/ojs/v1/jobs/{id}", { params: { path: { id: jobId } } })),
  );
  const wait = (job.data?.job as { ojster_wait?: { form?: JsonSchema } } | undefined)?.ojster_wait;
  const send = async (result: unknown): Promise<void> => {
    const body = { result, step: step.path } as unknown as Schemas["ResumeBody"];
    await accepted(client.POST("/ojs/v1/workflows/{id}/resume", { params: { path: { id } }, body }));
    setOpen(false);
    tell(`${step.path} got the answer.`);
    reload();
  };
  return (
    <li>
      <span>
        <b>{titleOf(step)}</b> waits for an answer.
      </span>
      {may("cancel") && (
        <span style={{ marginLeft: "auto" }}>
          <Button isSmall kind="main" onClick={() => setOpen(true)}>
            Answer step
          </Button>
        </span>
      )}
      {isOpen && job.data && (
        <Dialog label={`Answer ${step.path}`} close={() => setOpen(false)}>
          <SchemaForm schema={wait?.form ?? { title: "Result", description: "Handed to the workflow, as JSON." }} action="Send answer" send={send} close={() => setOpen(false)} />
        </Dialog>
      )}
    </li>
  );
}

const STEP_STATES = ["failed", "active", "blocked", "held", "waiting", "completed", "skipped", "cancelled", "compensated"];

/** What to show of the steps, in the list and in the timeline, and the way to the next page. */
function StepFilter(props: {
  only: { state: string; search: string };
  choose: (change: { state?: string; search?: string }) => void;
  turn?: { newer?: () => void; older?: () => void };
}) {
  const [text, setText] = useState(props.only.search);
  const submit = (event: Event): void => {
    event.preventDefault();
    props.choose({ search: text.trim() });
  };
  return (
    <form class="more" style={{ borderTop: 0 }} onSubmit={submit} role="search" aria-label="Steps to show">
      <label>
        <span class="hidden">Name, path or type of steps</span>
        <input class="input" placeholder="Name, path or type" value={text} onInput={(event) => setText(event.currentTarget.value)} />
      </label>
      <label>
        <span class="hidden">State of steps</span>
        <select class="input" value={props.only.state} onChange={(event) => props.choose({ state: event.currentTarget.value })}>
          <option value="">Any state</option>
          {STEP_STATES.map((state) => (
            <option key={state}>{state}</option>
          ))}
        </select>
      </label>
      <Button type="submit" isSmall icon="search">
        Find steps
      </Button>
      {(props.turn?.newer ?? props.turn?.older) && <Turn {...props.turn} labels={["Steps before", "Steps after"]} />}
    </form>
  );
}

function Steps({ rows, choose }: { rows: Row[]; choose: (row: Row) => void }) {
  return (
    <>
      <Table<Row>
        label="Steps"
        rows={rows}
        keyOf={(row) => row.path}
        empty={<Empty icon="search" title="No step matches" />}
        columns={[
          {
            label: "Step",
            className: "grow",
            cell: (row) => (
              <Button kind="plain" isSmall onClick={() => choose(row)}>
                {row.path || row.kind}
              </Button>
            ),
          },
          { label: "Type", className: "wide", cell: (row) => row.type },
          {
            label: "State",
            cell: (row) => (
              <span title={row.because ? `${row.because.message} ${(row.because.steps ?? []).join(", ")}` : undefined}>
                <State state={stateOf(row)} />
              </span>
            ),
          },
          { label: "Done", className: "num wide", cell: (row) => (row.total ? `${row.completed ?? 0} of ${row.total}` : row.attempt ? `attempt ${row.attempt}` : "") },
          { label: "Waited", className: "num wide", cell: (row) => shownTook(waitTime(row)) },
          { label: "Ran", className: "num", cell: (row) => shownTook(runTime(row)) },
        ]}
      />
    </>
  );
}

/** A step; `fork`: begins a fork from it, if its workflow can be forked. */
function StepDialog(props: { id: string; step: Row; close: () => void; reload: () => void; fork?: () => void }) {
  const { id, step } = props;
  const may = useMay();
  const { act } = useDialogs();
  const jobId = step.job_id;
  const { stopped } = spansOf(step);
  const isAsked = step.kind in ASKED; // it has no job, and only its flow can give it up
  const job = useData(jobId ? `job ${jobId}` : null, () =>
    accepted(client.GET("/ojs/v1/jobs/{id}", { params: { path: { id: jobId ?? "" } } })).then((found) => found.job),
  );
  const change = async (action: "retry" | "cancel"): Promise<void> => {
    const path = { params: { path: { id, step: step.path } } };
    const question = action === "cancel" && {
      title: `Cancel ${titleOf(step)}?`,
      text: "If it runs, its worker is asked to stop it. Steps that need it do not run.",
      action: "Cancel step",
      isDangerous: true,
    };
    const isDone = await act(async () => {
      await accepted(
        action === "retry"
          ? client.POST("/ojs/v1/workflows/{id}/steps/{step}/retry", path)
          : client.POST("/ojs/v1/workflows/{id}/steps/{step}/cancel", path),
      );
      return action === "retry" ? `${step.path} runs again.` : `${step.path} was cancelled.`;
    }, question || undefined);
    if (!isDone) return;
    props.reload();
    props.close();
  };
  return (
    <Dialog label={`The step ${step.path}`} close={props.close}>
      <div class="inside">
        <div class="head">
          <h2>{step.path}</h2>
          <State state={step.state} />
        </div>
        <Facts
          facts={[
            ["Type", step.type],
            ["Queue", step.queue],
            ["Attempt", step.attempt ? String(step.attempt) : null],
            ["Started", step.started_at && <Time at={step.started_at} />],
            ["Waited", waitTime(step) === null ? null : shownTook(waitTime(step))],
            ["Ran", runTime(step) === null ? null : shownTook(runTime(step))],
            ["Stopped for", stopped && duration(stopped[1] - stopped[0])],
            ["Job", jobId && <JobLink id={jobId} />],
          ]}
        />
        {step.because && (
          <p class="note">
            <Line text={step.because.message} /> {step.because.steps?.length ? <b>{step.because.steps.join(", ")}</b> : null}
          </p>
        )}
        <Reviews reviews={step.reviews ?? []} />
        {step.error !== undefined && !step.because && <StepError error={step.error as StepFailure} />}
        {job.data && <Json value={job.data.args} label="its inputs" />}
        {job.data?.result !== undefined && <Json value={job.data.result} label="its output" />}
        <div class="buttons">
          {may("cancel") && props.fork && step.kind !== "sleep" && step.kind !== "update" && (
            <Button icon="branch" onClick={props.fork}>
              Fork from this step
            </Button>
          )}
          {may("cancel") && !isAsked && (step.state === "failed" || step.state === "cancelled") && (
            <Button icon="retry" onClick={() => void change("retry")}>
              Run step again
            </Button>
          )}
          {may("cancel") && !isAsked && ["waiting", "pending", "active", "blocked"].includes(step.state) && (
            <Button icon="stop" kind="danger" onClick={() => void change("cancel")}>
              Cancel step
            </Button>
          )}
          <Button kind="main" onClick={props.close}>
            Close
          </Button>
        </div>
      </div>
    </Dialog>
  );
}

const REVIEWED: Record<string, string> = { approve: "approved it", reject: "rejected it", answer: "answered", decline: "declined to answer" };

/** Who has approved, rejected or answered a step, when, and with which words. */
function Reviews({ reviews }: { reviews: Schemas["ReviewInfo"][] }) {
  if (!reviews.length) return null;
  return (
    <ol class="log" aria-label="Reviews and answers">
      {reviews.map((review) => (
        <li key={review.at}>
          <span class="quiet">{exact(review.at)}</span>
          <span>
            <b>{review.author ?? "Somebody without a token"}</b> {REVIEWED[review.action ?? ""] ?? "made a note"}
            {review.notes && (
              <>
                : <Long text={review.notes} />
              </>
            )}
            {review.answer !== undefined && <Json value={review.answer} label="the answer" />}
          </span>
        </li>
      ))}
    </ol>
  );
}

interface StepFailure {
  type?: string;
  message?: string;
  backtrace?: string[];
}

function StepError({ error }: { error: StepFailure }) {
  return (
    <div class="failure">
      <b>{error.type ?? "Error"}</b>
      <Long text={error.message ?? ""} className="told" />
      {error.backtrace && (
        <pre class="trace" tabIndex={0}>
          <Long text={error.backtrace.join("\n")} />
        </pre>
      )}
      <details>
        <summary>All of it, as JSON</summary>
        <Json value={error} label="the error" />
      </details>
    </div>
  );
}

function Data({ workflow }: { workflow: Info }) {
  const items = useData(`items of ${workflow.id}`, () => accepted(client.GET("/ojs/v1/workflows/{id}/items", { params: { path: { id: workflow.id } } })));
  return (
    <div class="body stack">
      <Facts
        facts={[
          ["Definition", workflow.definition && `${workflow.definition}, version ${workflow.definition_version}`],
          ["Created", <Time at={workflow.created_at} />],
          ["Started", workflow.started_at && <Time at={workflow.started_at} />],
          ["Ended", workflow.completed_at && <Time at={workflow.completed_at} />],
          ["By", workflow.created_by],
          ["Locks", workflow.locks],
          ["Attempt", workflow.attempt ? String(workflow.attempt) : null],
          ["Earlier attempt", workflow.previous_attempt && <Link href={`/workflows/${workflow.previous_attempt}`}>{workflow.previous_attempt}</Link>],
          ["Next attempt", workflow.next_attempt && <Link href={`/workflows/${workflow.next_attempt}`}>{workflow.next_attempt}</Link>],
        ]}
      />
      <div>
        <h3>Parameters</h3>
        <Json value={workflow.params ?? {}} label="the parameters" />
      </div>
      {workflow.result !== undefined && (
        <div>
          <h3>Result</h3>
          <Json value={workflow.result} label="the result" />
        </div>
      )}
      {Boolean(items.data?.items.length) && (
        <Table
          label="Items"
          rows={items.data?.items ?? []}
          keyOf={(item) => String(item.id)}
          columns={[
            { label: "Item", cell: (item) => <b>{item.name}</b> },
            { label: "Content", className: "grow", cell: (item) => <Json value={item.data ?? item.file} label={item.name} /> },
          ]}
        />
      )}
    </div>
  );
}

function Notes({ id }: { id: string }) {
  const notes = useData(`notes of ${id}`, () => accepted(client.GET("/ojs/v1/workflows/{id}/info", { params: { path: { id } } })), {
    kinds: ["workflow"],
    id,
  });
  return (
    <div class="body">
      <Shown of={notes}>
        {(data) => <NoteList notes={data.notes} />}
      </Shown>
    </div>
  );
}

function Runs({ workflow }: { workflow: Info }) {
  const [, go] = useLocation();
  const filter = workflow.definition ? { definition: workflow.definition } : { name: workflow.name };
  const hasOthers = Boolean(workflow.definition ?? workflow.name);
  const runs = useData(hasOthers ? `runs ${JSON.stringify(filter)}` : null, () =>
    accepted(client.GET("/ojs/v1/workflows", { params: { query: query({ ...filter, limit: 50 }) } })),
  );
  if (!hasOthers) return <Empty title="It has no name and no definition, so that no run is like it" />;
  return (
    <Shown of={runs}>
      {(data) => (
        <Table<Info>
          label="Other runs"
          rows={data.workflows.filter((one) => one.id !== workflow.id)}
          keyOf={(one) => one.id}
          empty={<Empty title="There is no other run" />}
          columns={[
            { label: "Run", className: "grow", cell: (one) => <Link href={`/workflows/${one.id}`} class="mono">…{one.id.slice(-12)}</Link> },
            { label: "State", cell: (one) => <State state={one.state} /> },
            { label: "Took", className: "num", cell: (one) => between(one.started_at, one.completed_at) },
            { label: "Created", className: "num", cell: (one) => <Time at={one.created_at} /> },
            {
              label: "",
              className: "num",
              cell: (one) => (
                <Button isSmall onClick={() => go(`/workflows/${workflow.id}/compare/${one.id}`)}>
                  Compare runs
                </Button>
              ),
            },
          ]}
        />
      )}
    </Shown>
  );
}

/** All steps of a run, page by page; `tell` gets the number of those that have just come. */
async function readAll(id: string, tell: (number: number) => void): Promise<Row[]> {
  const rows: Row[] = [];
  let cursor: string | null = null;
  do {
    const page: Schemas["StepsAnswer"] = await readSteps(id, { cursor });
    rows.push(...page.steps);
    tell(page.steps.length);
    cursor = page.next_cursor;
  } while (cursor !== null);
  return rows;
}

interface Pair {
  path: string;
  one?: Row;
  other?: Row;
}

const took = (row: Row | undefined): number | null => (row?.completed_at ? runTime(row) : null);
const waited = (row: Row | undefined): number | null => (row?.completed_at ? waitTime(row) : null);

export function ComparePage({ id, other }: { id: string; other: string }) {
  const [done, setDone] = useState(0);
  const [shownPage, setShownPage] = useState(0);
  const both = useData(`compare ${id} ${other}`, () => {
    setDone(0);
    const tell = (number_: number): void => setDone((known) => known + number_);
    return Promise.all([readAll(id, tell), readAll(other, tell)]);
  });
  return (
    <Page
      title="Two runs"
      sub={
        <>
          <Link href={`/workflows/${id}`} class="mono">…{id.slice(-12)}</Link> and{" "}
          <Link href={`/workflows/${other}`} class="mono">…{other.slice(-12)}</Link>, step by step. What differs most comes first.
        </>
      }
    >
      <Card isBare>
        {both.isLoading && done > ROWS && <div class="more">{number(done)} steps were read.</div>}
        <Shown of={both} rows={8}>
          {([first, second]) => {
            const pairs = new Map<string, Pair>();
            for (const row of first) pairs.set(row.path, { path: row.path, one: row });
            for (const row of second) pairs.set(row.path, { ...(pairs.get(row.path) ?? { path: row.path }), other: row });
            const weight = (pair: Pair): number =>
              (pair.one?.state !== pair.other?.state ? 1e12 : 0) + Math.abs((took(pair.one) ?? 0) - (took(pair.other) ?? 0));
            const all = [...pairs.values()].sort((a, b) => weight(b) - weight(a));
            const rows = all.slice(shownPage * PAGE, (shownPage + 1) * PAGE);
            return (
              <>
              <Table<Pair>
                label="Steps of both runs"
                rows={rows}
                keyOf={(pair) => pair.path}
                columns={[
                  { label: "Step", className: "grow", cell: (pair) => <b>{pair.path}</b> },
                  { label: "First", cell: (pair) => (pair.one ? <State state={pair.one.state} /> : <span class="quiet">none</span>) },
                  { label: "Second", cell: (pair) => (pair.other ? <State state={pair.other.state} /> : <span class="quiet">none</span>) },
                  { label: "First waited", className: "num wide", cell: (pair) => shownTook(waited(pair.one)) },
                  { label: "Second waited", className: "num wide", cell: (pair) => shownTook(waited(pair.other)) },
                  { label: "First ran", className: "num", cell: (pair) => shownTook(took(pair.one)) },
                  { label: "Second ran", className: "num", cell: (pair) => shownTook(took(pair.other)) },
                  {
                    label: "Difference",
                    className: "num",
                    cell: (pair) => {
                      const [a, b] = [took(pair.one), took(pair.other)];
                      return a === null || b === null ? "–" : `${b >= a ? "+" : "−"}${duration(Math.abs(b - a))}`;
                    },
                  },
                ]}
              />
              {all.length > PAGE && (
                <div class="more">
                  <span>
                    {number(shownPage * PAGE + 1)} to {number(shownPage * PAGE + rows.length)} of {many(all.length, "step")}
                  </span>
                  <Turn
                    newer={shownPage ? () => setShownPage(shownPage - 1) : undefined}
                    older={(shownPage + 1) * PAGE < all.length ? () => setShownPage(shownPage + 1) : undefined}
                    labels={["Greater differences", "Smaller differences"]}
                  />
                </div>
              )}
              </>
            );
          }}
        </Shown>
      </Card>
    </Page>
  );
}

const shownTook = (milliseconds: number | null): string => (milliseconds === null ? "–" : duration(milliseconds));
