/** One workflow: how far it is, what holds it up, and its parts in tabs. */
import { useState } from "preact/hooks";
import { accepted, client, query } from "../../api/client";
import { useMay } from "../../api/session";
import { useData } from "../../api/use";
import { Gantt } from "../../graph/Gantt";
import { Graph } from "../../graph/Graph";
import { ExportButtons } from "../../ui/export";
import { Button, Copy, Page, Shown, Tabs, useInAddress, usePagesInAddress } from "../../ui/parts";
import { State } from "../../ui/states";
import { FlowTab, FlowWaits, useFlow } from "./Flow";
import { canFork, ForkDialog, Forks } from "./Fork";
import { nameOf, Progress } from "../Workflows";
import { Actions } from "./Actions";
import { Data, Notes } from "./Data";
import { readFlowSteps, readPage, type Row } from "./read";
import { Runs } from "./Runs";
import { StepDialog } from "./StepDialog";
import { StepFilter, Steps } from "./Steps";
import { Waiting } from "./Waiting";
import { failuresOf, Why } from "./Why";

type Tab = "flow" | "graph" | "timeline" | "steps" | "data" | "notes" | "runs";

export function WorkflowPage({ id }: { id: string }) {
  const [tab, setTab] = useInAddress<Tab>("tab", "graph");
  const may = useMay();
  const [chosen, setChosen] = useState<Row | null>(null);
  const [forked, setForked] = useState<{ step: string | null; jobId?: string | null } | null>(null);
  const live = { kinds: ["workflow" as const, "job" as const], id };
  const workflow = useData(
    `workflow ${id}`,
    () => accepted(client.GET("/ojs/v1/workflows/{id}", { params: { path: { id }, query: query({ steps: "false" }) } })).then((one) => one.workflow),
    live,
  );
  const [state, setState] = useInAddress<string>("state", "");
  const [search, setSearch] = useInAddress<string>("search", "");
  const only = { state, search };
  const pages = usePagesInAddress();
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
    if (change.state !== undefined) setState(change.state);
    if (change.search !== undefined) setSearch(change.search);
  };
  const turn = isWhole ? undefined : { newer: pages.newer, older: pages.older(steps.data?.next_cursor) };
  return (
    <Shown of={workflow} rows={10} page="Workflow">
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
