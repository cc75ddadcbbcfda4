import { useEffect, useRef, useState } from "preact/hooks";
import { Link, useLocation, useSearch } from "wouter-preact";
import { accepted, client, query, type Schemas } from "../api/client";
import { useMay } from "../api/session";
import { useData } from "../api/use";
import { ArgumentsForm } from "../ui/arguments-form";
import { Dialog, useDialogs } from "../ui/dialogs";
import { ExportButtons } from "../ui/export";
import { between, compact, many, Time } from "../ui/format";
import { Bar, Button, Card, Chip, Empty, Page, Segments, Shown, Table, Turn, usePagesInAddress } from "../ui/parts";
import { Line } from "../ui/plain";
import { type JsonSchema, SchemaForm } from "../ui/schema-form";
import { useSending } from "../ui/sending";
import { State } from "../ui/states";
import { PickedWorkflows, readMatching, refreshed } from "./WorkflowBulk";

type Info = Schemas["WorkflowInfo"];

const STATES: [string, string][] = [
  ["", "All"],
  ["running", "Running"],
  ["failed", "Failed"],
  ["completed", "Completed"],
  ["cancelled", "Cancelled"],
  ["cancelling", "Cancelling"],
];

export const WAITS: Record<string, string> = {
  gate: "an approval",
  form: "an answer",
  delay: "a time",
  promise: "an item",
  suspension: "a resumption",
};

export const nameOf = (workflow: Info): string => workflow.name ?? workflow.definition ?? workflow.kind ?? workflow.type;

export function WorkflowsPage() {
  const [, go] = useLocation();
  const parameters = new URLSearchParams(useSearch());
  const chosen = {
    state: parameters.get("state"),
    definition: parameters.get("definition"),
    cron_name: parameters.get("cron_name"),
    waiting_for: parameters.get("waiting_for"),
  };
  const pages = usePagesInAddress();
  const [isStarting, setStarting] = useState(false);
  const [picked, setPicked] = useState<ReadonlyMap<string, Info>>(new Map());
  const { act } = useDialogs();
  const filter = JSON.stringify(chosen);
  const shownFilter = useRef(filter);
  shownFilter.current = filter;
  // Another filter, also one that the browser's history brings back, has nothing picked.
  useEffect(() => setPicked(new Map()), [filter]);
  const pickAll = async (): Promise<void> => {
    const found = await readMatching(chosen, () => shownFilter.current === filter);
    if (found) setPicked(new Map(found.map((one) => [one.id, one])));
  };
  const pick = (one: Info): void => {
    const next = new Map(picked);
    if (!next.delete(one.id)) next.set(one.id, one);
    setPicked(next);
  };
  const may = useMay();
  const { cursor } = pages;
  const choose = (change: Partial<typeof chosen>): void => {
    go(`/workflows?${new URLSearchParams(query({ ...chosen, ...change }))}`);
  };
  const workflows = useData(
    `workflows ${filter} ${cursor ?? ""}`,
    () => accepted(client.GET("/ojs/v1/workflows", { params: { query: query({ ...chosen, cursor, limit: 50 }) } })),
    { kinds: ["workflow", "job"] },
  );
  const listed = workflows.data?.workflows;
  useEffect(() => setPicked((known) => refreshed(known, listed ?? [])), [listed]);
  return (
    <Page
      title="Workflows"
      actions={
        may("enqueue") && (
          <Button icon="plus" kind="main" onClick={() => setStarting(true)}>
            Start a workflow
          </Button>
        )
      }
    >
      <div class="filters">
        <Segments label="State" of={STATES} chosen={chosen.state ?? ""} choose={(state) => choose({ state })} />
        <label>
          <span class="hidden">What they wait for</span>
          <select class="input" value={chosen.waiting_for ?? ""} onChange={(event) => choose({ waiting_for: event.currentTarget.value })}>
            <option value="">Whatever they wait for</option>
            {Object.entries(WAITS).map(([kind, label]) => (
              <option key={kind} value={kind}>
                Waiting for {label}
              </option>
            ))}
          </select>
        </label>
        {chosen.definition && (
          <Chip label={`Definition: ${chosen.definition}`} remove={() => choose({ definition: null })} />
        )}
        {chosen.cron_name && <Chip label={`Schedule: ${chosen.cron_name}`} remove={() => choose({ cron_name: null })} />}
      </div>
      <Card isBare>
        <Shown of={workflows} rows={10}>
          {(data) => (
            <>
              {picked.size > 0 && (
                <PickedWorkflows
                  picked={[...picked.values()]}
                  total={data.pagination.total}
                  pickAll={() => void act(pickAll)}
                  unpick={(ids) => setPicked((known) => new Map([...known].filter(([id]) => !ids.has(id))))}
                  clear={() => setPicked(new Map())}
                  done={workflows.reload}
                />
              )}
              <Table<Info>
                label="Workflows"
                rows={data.workflows}
                keyOf={(one) => one.id}
                empty={
                  <Empty icon="workflows" title="No workflows">
                    Start one from a definition, or from your application.
                  </Empty>
                }
                columns={[
                  ...(may("cancel")
                    ? [
                        {
                          label: "Pick",
                          className: "pick",
                          cell: (one: Info) => (
                            <input type="checkbox" aria-label={`Pick the workflow ${one.id.slice(-12)}`} checked={picked.has(one.id)} onChange={() => pick(one)} />
                          ),
                        },
                      ]
                    : []),
                  {
                    label: "Workflow",
                    className: "grow",
                    cell: (one) => (
                      <>
                        <Link href={`/workflows/${one.id}`}>
                          <b class="clip">
                            <Line text={nameOf(one)} />
                          </b>
                        </Link>
                        <span class="sub clip">
                          {one.target ? `for ${one.target}, ` : ""}
                          <span class="mono">…{one.id.slice(-12)}</span>
                        </span>
                        {one.error && one.state !== "completed" && <span class="sub clip"><Line text={one.error.message ?? ""} /></span>}
                      </>
                    ),
                  },
                  {
                    label: "State",
                    cell: (one) => (
                      <>
                        <State state={one.held ? "held" : one.state} />
                        {(one.waiting_for ?? []).length > 0 && (
                          <span class="sub nowrap"> waits for {(one.waiting_for ?? []).map((kind) => WAITS[kind]).join(", ")}</span>
                        )}
                      </>
                    ),
                  },
                  { label: "Progress", cell: (one) => <Progress workflow={one} /> },
                  { label: "Took", className: "num wide", cell: (one) => between(one.started_at, one.completed_at ?? one.cancelled_at) },
                  { label: "Created", className: "num wide", cell: (one) => <Time at={one.created_at} /> },
                ]}
              />
              <div class="more">
                {may("cancel") && (
                  <Button
                    isSmall
                    kind="plain"
                    onClick={() => setPicked(new Map(data.workflows.map((one) => [one.id, one])))}
                    disabled={!data.workflows.length}
                  >
                    Pick these {data.workflows.length}
                  </Button>
                )}
                <span>{many(data.pagination.total, "workflow")}</span>
                <ExportButtons path="workflow-export" query={query(chosen)} name="workflows" what="these workflows" />
                <Turn newer={pages.newer} older={pages.older(data.pagination.next_cursor)} />
              </div>
            </>
          )}
        </Shown>
      </Card>
      {isStarting && <Start close={() => setStarting(false)} />}
    </Page>
  );
}

/** How many jobs of a workflow have completed, and how many there are. */
export function jobsOf(workflow: Info): { done: number; of: number } {
  const counts = workflow.metadata as { completed_count?: number; job_count?: number } | undefined;
  return { done: counts?.completed_count ?? 0, of: counts?.job_count ?? 0 };
}

export function Progress({ workflow }: { workflow: Info }) {
  const { done, of } = jobsOf(workflow);
  return (
    <span class="progress">
      <Bar done={done} of={of} isFailed={workflow.state === "failed"} label={`Progress of ${nameOf(workflow)}`} />
      <span class="num nowrap quiet">
        {compact(done)}/{compact(of)}
      </span>
    </span>
  );
}

/** The kind and the name of what was picked. */
function split(picked: string): [string, string] {
  const place = picked.indexOf(" ");
  return [picked.slice(0, place), picked.slice(place + 1)];
}

function Start({ close }: { close: () => void }) {
  const definitions = useData("definitions", () => accepted(client.GET("/ojs/v1/definitions", { params: { query: { limit: "200" } } })));
  const signatures = useData("signatures", () => accepted(client.GET("/ojs/v1/signatures")));
  const flows = (signatures.data?.signatures ?? []).filter((one) => one.is_flow);
  const [picked, setPicked] = useState("");
  const [kind, name] = split(picked);
  const [, go] = useLocation();
  const { tell } = useDialogs();
  const { isOpen } = useSending();
  const chosen = kind === "definition" ? definitions.data?.definitions.find((one) => one.name === name) : undefined;
  const flow = kind === "flow" ? flows.find((one) => one.type === name) : undefined;
  const start = async (request: object): Promise<void> => {
    const made = await accepted(client.POST("/ojs/v1/workflows", { body: request as unknown as Schemas["WorkflowBody"] }));
    if (isOpen()) {
      close();
      go(`/workflows/${made.workflow.id}`);
    }
    tell("The workflow was started.");
  };
  const schema = (chosen?.params_schema ?? { title: "Parameters", type: "object" }) as JsonSchema;
  return (
    <Dialog label="Start a workflow" close={close}>
      <div class="inside">
        <Shown of={definitions} rows={2}>
          {(data) =>
            data.definitions.length || flows.length ? (
              <label class="field">
                <span>Definition or flow</span>
                <select class="input" value={picked} onChange={(event) => setPicked(event.currentTarget.value)}>
                  <option value="">Choose one</option>
                  {data.definitions.map((one) => (
                    <option key={one.name} value={`definition ${one.name}`}>
                      {one.name} (version {one.version})
                    </option>
                  ))}
                  {flows.map((one) => (
                    <option key={one.type} value={`flow ${one.type}`}>
                      {one.type} (flow)
                    </option>
                  ))}
                </select>
              </label>
            ) : (
              <Empty icon="workflows" title="No definitions and no flows">
                Save a definition with <code>ojster definitions put</code>, or start a worker that has flows.
                <p>
                  <Button onClick={close}>Close form</Button>
                </p>
              </Empty>
            )
          }
        </Shown>
      </div>
      {chosen && (
        <SchemaForm
          key={picked}
          schema={schema}
          action="Start workflow"
          send={(value) => start({ definition: name, params: value ?? {} })}
          close={close}
        />
      )}
      {flow && (
        <ArgumentsForm
          key={picked}
          schema={flow.schema as JsonSchema}
          title={`Start ${name}`}
          action="Start flow"
          args={[]}
          send={(args) => start({ type: "flow", job: { type: name, args } })}
          close={close}
        />
      )}
    </Dialog>
  );
}
