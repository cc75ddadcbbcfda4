import { useState } from "preact/hooks";
import { accepted, client, ofTenant, query, type Schemas } from "../api/client";
import { useMay } from "../api/session";
import { useData } from "../api/use";
import { type Dialogs, NewDialog, useDialogs } from "../ui/dialogs";
import { exact, number, Time } from "../ui/format";
import { exactly, unrounded, valueIn } from "../ui/json-text";
import { Button, Card, Empty, Page, Shown, Table, Turn, usePagesInAddress } from "../ui/parts";
import { Line } from "../ui/plain";
import { State } from "../ui/states";
import { Runs, Strip } from "./ScheduleRuns";

type Cron = Schemas["CronInfo"];

const OVERLAPS = ["skip", "allow", "enqueue", "cancel_previous"] as const;

export function SchedulesPage() {
  const may = useMay();
  const [isMaking, setMaking] = useState(false);
  const pages = usePagesInAddress();
  const asked = query({ limit: "100", cursor: pages.cursor });
  const crons = useData(`crons ${pages.cursor ?? ""}`, () => accepted(client.GET("/ojs/v1/crons", { params: { query: asked } })), {
    kinds: ["cron", "job"],
  });
  return (
    <Page
      title="Schedules"
      actions={
        may("enqueue") && (
          <Button icon="plus" kind="main" onClick={() => setMaking(true)}>
            New schedule
          </Button>
        )
      }
    >
      <Card isBare>
        <Shown of={crons} rows={6}>
          {(data) => (
            <>
              <Crons crons={data.crons} reload={crons.reload} />
              {(pages.newer || data.pagination.next_cursor) && (
                <div class="more">
                  <Turn newer={pages.newer} older={pages.older(data.pagination.next_cursor)} labels={["Previous", "Next"]} />
                </div>
              )}
            </>
          )}
        </Shown>
      </Card>
      {isMaking && <CronForm close={() => setMaking(false)} saved={crons.reload} />}
    </Page>
  );
}

const path = (cron: Cron) => ({ params: { path: { name: cron.name } }, ...ofTenant(cron.tenant_id) });

/** Asks, and starts what a schedule starts. */
export async function runSchedule({ act }: Dialogs, cron: Cron): Promise<void> {
  await act(
    async () => {
      const made = await accepted(client.POST("/ojs/v1/crons/{name}/trigger", path(cron)));
      return made.workflow
        ? `The workflow ${made.workflow.id.slice(-12)} was started.`
        : `The job ${(made.job?.id ?? "").slice(-12)} was enqueued.`;
    },
    { title: `Run ${cron.name} now?`, text: "What it starts runs at once. Its next regular run stays as it is.", action: "Run schedule" },
  );
}

function Crons({ crons, reload }: { crons: Cron[]; reload: () => void }) {
  const may = useMay();
  const dialogs = useDialogs();
  const { act } = dialogs;
  const [chosen, setEdited] = useState<Cron | null>(null);
  // What somebody else does meanwhile, such as a pause, stays.
  const current = chosen && crons.find((one) => one.name === chosen.name && one.tenant_id === chosen.tenant_id);
  const edited = chosen && { ...chosen, enabled: (current ?? chosen).enabled };
  const edit = async (cron: Cron): Promise<void> => {
    // Numbers of its template that are not edited stay as they were written.
    await act(async () => setEdited((await exactly<Schemas["CronAnswer"]>(client.GET("/ojs/v1/crons/{name}", { ...path(cron), parseAs: "text" }))).cron));
  };
  const [opened, setOpened] = useState<Cron | null>(null);
  const switchIt = async (cron: Cron): Promise<void> => {
    const set = (enabled: boolean): Promise<unknown> =>
      accepted(client.PATCH("/ojs/v1/crons/{name}", { ...path(cron), body: { enabled } })).then(reload);
    await act(
      async () => {
        await set(!cron.enabled);
        return cron.enabled ? `The schedule ${cron.name} is paused.` : `The schedule ${cron.name} runs again.`;
      },
      undefined,
      () => set(cron.enabled),
    );
  };
  const run = async (cron: Cron): Promise<void> => {
    await runSchedule(dialogs, cron);
    reload();
  };
  const remove = async (cron: Cron): Promise<void> => {
    await act(
      async () => {
        await accepted(client.DELETE("/ojs/v1/crons/{name}", path(cron)));
        return `${cron.name} was deleted.`;
      },
      { title: `Delete ${cron.name}?`, text: "It starts nothing more. Its jobs and workflows stay. This cannot be undone.", action: "Delete schedule", isDangerous: true },
    );
    reload();
  };
  return (
    <>
      {opened && <Runs cron={opened} close={() => setOpened(null)} />}
      {edited && <CronForm known={edited} close={() => setEdited(null)} saved={reload} />}
      <Table<Cron>
        label="Schedules"
        rows={crons}
        keyOf={(cron) => `${cron.tenant_id} ${cron.name}`}
        empty={
          <Empty icon="schedules" title="No schedules yet">
            Declare one in your application with <code>@app.cron(…)</code>, or create one here.
          </Empty>
        }
        columns={[
          {
            label: "Schedule",
            className: "grow",
            cell: (cron) => (
              <>
                <b>{cron.name}</b>
                <span class="sub clip"><Line text={cron.description ?? cron.starts} /></span>
              </>
            ),
          },
          {
            label: "When",
            cell: (cron) => (
              <>
                <code class="nowrap">{cron.expression}</code> <span class="sub nowrap">{cron.timezone}</span>
              </>
            ),
          },
          { label: "State", cell: (cron) => <State state={cron.enabled ? "on" : "off"} /> },
          { label: "Last runs", className: "wider", cell: (cron) => <Strip cron={cron} /> },
          { label: "Runs", className: "num wide", cell: (cron) => number(cron.run_count) },
          { label: "Last", className: "num wide", cell: (cron) => <Time at={cron.last_run_at} /> },
          { label: "Next", className: "num", cell: (cron) => (cron.enabled ? <Time at={cron.next_run_at} /> : <span class="quiet">–</span>) },
          {
            label: "",
            className: "num nowrap",
            cell: (cron) => (
              <>
                <Button isSmall onClick={() => setOpened(cron)} aria-label={`Show runs of ${cron.name}`}>
                  Show runs
                </Button>{" "}
                {may("enqueue") && (
                  <Button isSmall onClick={() => void run(cron)} aria-label={`Run now: schedule ${cron.name}`}>
                    Run now
                  </Button>
                )}{" "}
                {may("enqueue") && (
                  <Button isSmall onClick={() => void edit(cron)} aria-label={`Edit schedule ${cron.name}`}>
                    Edit schedule
                  </Button>
                )}{" "}
                {may("admin") && (
                  <>
                    <Button isSmall icon={cron.enabled ? "pause" : "play"} aria-label={`${cron.enabled ? "Pause" : "Resume"} schedule ${cron.name}`} onClick={() => void switchIt(cron)} />{" "}
                    <Button isSmall icon="trash" kind="danger" aria-label={`Delete schedule ${cron.name}`} onClick={() => void remove(cron)} />
                  </>
                )}
              </>
            ),
          },
        ]}
      />
    </>
  );
}

/** The options of a schedule's jobs: what the form does not show stays as it is. */
const optionsOf = (cron: Cron | undefined): Record<string, unknown> => (cron?.options as Record<string, unknown> | undefined) ?? {};

/** The template of the jobs of a schedule, as the form says. */
function templateOf(known: Cron | undefined, form: { type: string; args: string; queue: string }): Record<string, unknown> {
  let args: unknown;
  try {
    args = valueIn(form.args);
  } catch (error) {
    if (!(error instanceof SyntaxError)) throw error;
    args = null;
  }
  if (!Array.isArray(args)) throw new Error("The arguments are no JSON list, such as [1, \"two\"].");
  const template = known?.job_template as Record<string, unknown> | undefined;
  return { ...template, type: form.type, args, options: { ...optionsOf(known), queue: form.queue } };
}

/** The request for the workflows of a schedule, as the form says. */
function workflowOf(text: string): unknown {
  try {
    return valueIn(text);
  } catch (error) {
    throw error instanceof SyntaxError ? new Error(`The workflow is no JSON: ${error.message}`) : error;
  }
}

/** Makes a schedule, which no other of its name may exist for, or changes a known one. */
function CronForm({ known, close, saved }: { known?: Cron; close: () => void; saved: () => void }) {
  const [form, setForm] = useState({
    name: known?.name ?? "",
    expression: known?.expression ?? "0 6 * * *",
    timezone: known?.timezone ?? "UTC",
    overlap: known?.overlap_policy ?? "skip",
    type: known?.type ?? "",
    args: JSON.stringify(known?.args ?? []),
    starts: known?.workflow ? "workflow" : "job",
    workflow: JSON.stringify(known?.workflow ?? { definition: "" }, null, 2),
    queue: String(optionsOf(known).queue ?? "default"),
  });
  const { act } = useDialogs();
  const set = (name: keyof typeof form) => (event: Event) =>
    setForm({ ...form, [name]: (event.currentTarget as HTMLInputElement | HTMLSelectElement | HTMLTextAreaElement).value });
  const isWorkflow = form.starts === "workflow";
  const preview = useData(`preview ${form.expression} ${form.timezone}`, () =>
    accepted(
      client.GET("/ojs/v1/cron-preview", { params: { query: { expression: form.expression, timezone: form.timezone } } }),
    ),
  );
  const save = async (): Promise<void> => {
    const isDone = await act(async () => {
      const body = {
        name: form.name,
        expression: form.expression,
        timezone: form.timezone,
        overlap_policy: form.overlap,
        enabled: known?.enabled ?? true,
        description: known?.description ?? null,
        ...(isWorkflow ? { workflow: workflowOf(form.workflow) } : { job_template: templateOf(known, form) }),
        on_conflict: known ? "replace" : "reject",
      };
      const request = { body: unrounded(body) as unknown as Schemas["CronBody"], ...ofTenant(known?.tenant_id) };
      await accepted(client.POST("/ojs/v1/crons", request));
      return `The schedule ${form.name} was ${known ? "changed" : "created"}.`;
    });
    if (isDone) {
      saved();
      close();
    }
  };
  return (
    <NewDialog label={known ? `Edit ${known.name}` : "New schedule"} action={known ? "Save schedule" : "Create schedule"} close={close} save={save}>
      {known ? (
        <p>If an application declares this schedule, its workers restore it when they start.</p>
      ) : (
        <label class="field">
          <span>Name</span>
          <input class="input" value={form.name} onInput={set("name")} required />
        </label>
      )}
      <label class="field">
        <span>Cron expression</span>
        <input class="input mono" value={form.expression} onInput={set("expression")} required />
      </label>
      <label class="field">
        <span>Time zone</span>
        <input class="input" value={form.timezone} onInput={set("timezone")} required />
      </label>
      <div class="field" aria-live="polite">
        <span>Next runs</span>
        {preview.error ? (
          <small>{preview.error.message}</small>
        ) : (
          <small>{(preview.data?.runs ?? []).slice(0, 3).map((at) => exact(at)).join(" · ") || "none"}</small>
        )}
      </div>
      {!known && (
        <label class="field">
          <span>It starts</span>
          <select class="input" value={form.starts} onChange={set("starts")}>
            <option value="job">A job</option>
            <option value="workflow">A workflow</option>
          </select>
        </label>
      )}
      {isWorkflow ? (
        <label class="field">
          <span>Workflow, as JSON: a definition with its params, a flow, or steps</span>
          <textarea class="input mono" rows={Math.min(14, form.workflow.split("\n").length + 1)} value={form.workflow} onInput={set("workflow")} required />
        </label>
      ) : (
        <>
          <label class="field">
            <span>Job type</span>
            <input class="input" value={form.type} onInput={set("type")} required />
          </label>
          <label class="field">
            <span>Arguments, as a JSON list</span>
            <input class="input mono" value={form.args} onInput={set("args")} />
          </label>
          <label class="field">
            <span>Queue</span>
            <input class="input" value={form.queue} onInput={set("queue")} />
          </label>
        </>
      )}
      <label class="field">
        <span>If the run before has not finished</span>
        <select class="input" value={form.overlap} onChange={set("overlap")}>
          {OVERLAPS.map((one) => (
            <option key={one} value={one}>
              {one.replace("_", " ")}
            </option>
          ))}
        </select>
      </label>
    </NewDialog>
  );
}
