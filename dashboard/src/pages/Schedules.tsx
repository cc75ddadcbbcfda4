import { useState } from "preact/hooks";
import { Link } from "wouter-preact";
import { accepted, client, ofTenant, type Schemas } from "../api/client";
import { useIsGlobal, useMay } from "../api/session";
import { useData } from "../api/use";
import { Dialog, type Dialogs, NewDialog, useDialogs } from "../ui/dialogs";
import { duration, exact, exactIn, many, number, Time } from "../ui/format";
import { Button, Card, Empty, Page, Shown, Table } from "../ui/parts";
import { colourOf, State } from "../ui/states";

type Cron = Schemas["CronInfo"];

const OVERLAPS = ["skip", "allow", "enqueue", "cancel_previous"] as const;

export function SchedulesPage() {
  const may = useMay();
  const [isMaking, setMaking] = useState(false);
  const crons = useData("crons", () => accepted(client.GET("/ojs/v1/crons", { params: { query: { limit: "200" } } })), {
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
          {(data) => <Crons crons={data.crons} reload={crons.reload} />}
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
    { title: `Run ${cron.name} now?`, text: "What it starts runs at once. Its next regular run stays as it is.", action: "Run it" },
  );
}

function Crons({ crons, reload }: { crons: Cron[]; reload: () => void }) {
  const may = useMay();
  const dialogs = useDialogs();
  const { act } = dialogs;
  const [edited, setEdited] = useState<Cron | null>(null);
  const [opened, setOpened] = useState<Cron | null>(null);
  const switchIt = async (cron: Cron): Promise<void> => {
    const set = (enabled: boolean): Promise<unknown> =>
      accepted(client.PATCH("/ojs/v1/crons/{name}", { ...path(cron), body: { enabled } })).then(reload);
    await act(
      async () => {
        await set(!cron.enabled);
        return cron.enabled ? `${cron.name} fires no more.` : `${cron.name} fires again.`;
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
      { title: `Delete ${cron.name}?`, text: "It fires no more, and must be made anew. Its jobs and workflows stay.", action: "Delete it", isDangerous: true },
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
            Declare one in your application with <code>@app.cron(…)</code>, or make one here.
          </Empty>
        }
        columns={[
          {
            label: "Schedule",
            className: "grow",
            cell: (cron) => (
              <>
                <b>{cron.name}</b>
                <span class="sub clip">{cron.description ?? cron.starts}</span>
              </>
            ),
          },
          {
            label: "When",
            cell: (cron) => (
              <>
                <code class="nowrap">{cron.expression}</code>
                <span class="sub nowrap"> {cron.timezone}</span>
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
                <Button isSmall onClick={() => setOpened(cron)} aria-label={`Show the runs of ${cron.name}`}>
                  Runs
                </Button>{" "}
                {may("enqueue") && (
                  <Button isSmall onClick={() => void run(cron)} aria-label={`Run now: ${cron.name}`}>
                    Run now
                  </Button>
                )}{" "}
                {may("enqueue") && !cron.workflow && (
                  <Button isSmall onClick={() => setEdited(cron)} aria-label={`Edit ${cron.name}`}>
                    Edit
                  </Button>
                )}{" "}
                {may("admin") && (
                  <>
                    <Button isSmall icon={cron.enabled ? "pause" : "play"} aria-label={`${cron.enabled ? "Pause" : "Resume"} ${cron.name}`} onClick={() => void switchIt(cron)} />{" "}
                    <Button isSmall icon="trash" kind="danger" aria-label={`Delete ${cron.name}`} onClick={() => void remove(cron)} />
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

interface Run {
  id: string;
  state: string;
  created_at: string;
  started_at?: string | null;
  completed_at?: string | null;
  discarded_at?: string | null;
  cancelled_at?: string | null;
}

/** The last jobs or workflows of a schedule, the newest first. */
function useRuns(cron: Cron) {
  const query = { params: { query: { cron_name: cron.name, limit: "12" } }, ...ofTenant(cron.tenant_id) };
  const noun = cron.workflow ? "workflow" : "job";
  return useData<Run[]>(
    `runs ${cron.tenant_id} ${cron.name} ${noun}`,
    () =>
      cron.workflow
        ? accepted(client.GET("/ojs/v1/workflows", query)).then((page) => page.workflows as Run[])
        : accepted(client.GET("/ojs/v1/jobs", query)).then((page) => page.jobs as Run[]),
    { kinds: ["cron", noun] },
  );
}

/** The next ten runs of a schedule, in its own zone and in the viewer's, and the last ones. */
function Runs({ cron, close }: { cron: Cron; close: () => void }) {
  const runs = useRuns(cron);
  const query = { expression: cron.expression, timezone: cron.timezone, count: "10" };
  const next = useData(`next runs ${cron.expression} ${cron.timezone}`, () =>
    accepted(client.GET("/ojs/v1/cron-preview", { params: { query } })),
  );
  const noun = cron.workflow ? "workflow" : "job";
  return (
    <Dialog label={`Runs of ${cron.name}`} close={close}>
      <div class="inside">
        <h2>Runs of {cron.name}</h2>
        <h3>Next</h3>
        {!cron.enabled && <p>It is paused. It would run at these times.</p>}
        <Shown of={next} rows={3}>
          {(data) => (
            <Table<string>
              label="Next runs"
              rows={data.runs}
              keyOf={(at) => at}
              empty={<Empty title="It never runs again" />}
              columns={[
                { label: `In ${cron.timezone}`, className: "grow", cell: (at) => exactIn(at, cron.timezone) },
                { label: "For you", className: "num", cell: (at) => exact(at) },
              ]}
            />
          )}
        </Shown>
        <h3>Last</h3>
        <Shown of={runs} rows={3}>
          {(rows) => (
            <Table<Run>
              label="Last runs"
              rows={rows}
              keyOf={(run) => run.id}
              empty={<Empty title="None that are kept">Finished {noun}s are deleted after their retention.</Empty>}
              columns={[
                { label: "Made", className: "grow", cell: (run) => <Link href={`/${noun}s/${run.id}`}>{exact(run.created_at)}</Link> },
                { label: "State", cell: (run) => <State state={run.state} /> },
                { label: "Ran", className: "num", cell: ran },
              ]}
            />
          )}
        </Shown>
        <div class="buttons">
          <Button onClick={close}>Close</Button>
        </div>
      </div>
    </Dialog>
  );
}

function ran(run: Run): string {
  const end = run.completed_at ?? run.discarded_at ?? run.cancelled_at;
  return run.started_at && end ? duration(Date.parse(end) - Date.parse(run.started_at)) : "–";
}

/** The outcomes of the last jobs or workflows of a schedule, the oldest first. */
function Strip({ cron }: { cron: Cron }) {
  const owner = ofTenant(cron.tenant_id);
  const isGlobal = useIsGlobal();
  const noun = cron.workflow ? "workflow" : "job";
  const runs = useRuns(cron);
  const states = (runs.data ?? []).map((run) => [run.id, run.state] as const).reverse();
  if (!states.length) return <span class="quiet">none</span>;
  const label = `The last ${many(states.length, noun)}: ${states.map(([, state]) => state).join(", ")}`;
  const marks = states.map(([id, state]) => <i key={id} class={`s-${colourOf(state)}`} title={state} />);
  // A list of the jobs of all workspaces would mean the schedule of none that has the same name.
  return owner.headers && isGlobal ? (
    <span class="strip" role="img" aria-label={label}>
      {marks}
    </span>
  ) : (
    <Link href={`/${noun}s?cron_name=${encodeURIComponent(cron.name)}`} class="strip" aria-label={label}>
      {marks}
    </Link>
  );
}

/** The options of a schedule's jobs: what the form does not show stays as it is. */
const optionsOf = (cron: Cron | undefined): Record<string, unknown> => (cron?.options as Record<string, unknown> | undefined) ?? {};

/** Makes a schedule, which no other of its name may exist for, or changes a known one. */
function CronForm({ known, close, saved }: { known?: Cron; close: () => void; saved: () => void }) {
  const [form, setForm] = useState({
    name: known?.name ?? "",
    expression: known?.expression ?? "0 6 * * *",
    timezone: known?.timezone ?? "UTC",
    overlap: known?.overlap_policy ?? "skip",
    type: known?.type ?? "",
    args: JSON.stringify(known?.args ?? []),
    queue: String(optionsOf(known).queue ?? "default"),
  });
  const { act } = useDialogs();
  const set = (name: keyof typeof form) => (event: Event) =>
    setForm({ ...form, [name]: (event.currentTarget as HTMLInputElement | HTMLSelectElement).value });
  const preview = useData(`preview ${form.expression} ${form.timezone}`, () =>
    accepted(
      client.GET("/ojs/v1/cron-preview", { params: { query: { expression: form.expression, timezone: form.timezone } } }),
    ),
  );
  const save = async (): Promise<void> => {
    const isDone = await act(async () => {
      let args: unknown[];
      try {
        args = JSON.parse(form.args) as unknown[];
      } catch {
        throw new Error("The arguments are no JSON array, such as [1, \"two\"].");
      }
      const template = known?.job_template as Record<string, unknown> | undefined;
      const body = {
        name: form.name,
        expression: form.expression,
        timezone: form.timezone,
        overlap_policy: form.overlap,
        enabled: known?.enabled ?? true,
        description: known?.description ?? null,
        job_template: { ...template, type: form.type, args, options: { ...optionsOf(known), queue: form.queue } },
        on_conflict: known ? "replace" : "reject",
      };
      const request = { body: body as unknown as Schemas["CronBody"], ...ofTenant(known?.tenant_id) };
      await accepted(client.POST("/ojs/v1/crons", request));
      return `The schedule ${form.name} was ${known ? "changed" : "made"}.`;
    });
    if (isDone) {
      saved();
      close();
    }
  };
  return (
    <NewDialog label={known ? `Edit ${known.name}` : "New schedule"} action={known ? "Save" : "Make it"} close={close} save={save}>
      {known ? (
        <p>A worker whose application declares this schedule sets it back when it starts.</p>
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
      <label class="field">
        <span>Job type</span>
        <input class="input" value={form.type} onInput={set("type")} required />
      </label>
      <label class="field">
        <span>Arguments, a JSON array</span>
        <input class="input mono" value={form.args} onInput={set("args")} />
      </label>
      <label class="field">
        <span>Queue</span>
        <input class="input" value={form.queue} onInput={set("queue")} />
      </label>
      <label class="field">
        <span>If the job before still runs</span>
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
