/** What a schedule has started, what it starts next, and what it has missed. */
import { Link } from "wouter-preact";
import { accepted, client, ofTenant, type Schemas } from "../api/client";
import { useIsGlobal } from "../api/session";
import { useData } from "../api/use";
import { Dialog } from "../ui/dialogs";
import { duration, exact, exactIn, many, tail } from "../ui/format";
import { Button, Empty, Shown, Table } from "../ui/parts";
import { colourOf, State } from "../ui/states";

type Cron = Schemas["CronInfo"];
type Miss = Schemas["CronMissInfo"];

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

/** The reasons of missed runs, for people; others are codes of refusals, which have a message. */
const REASONS: Record<string, string> = {
  overlap_skip: "The run before it had not finished",
  dst_skip: "The clock skipped it",
  maintenance: "Maintenance mode was on",
  late: "Not started in time",
};

/** The runs that a schedule has missed, and why. */
function Misses({ cron }: { cron: Cron }) {
  const misses = useData(
    `misses ${cron.tenant_id} ${cron.name}`,
    () => accepted(client.GET("/ojs/v1/crons/{name}/misses", { params: { path: { name: cron.name } }, ...ofTenant(cron.tenant_id) })),
    { kinds: ["cron"] },
  );
  const noun = cron.workflow ? "workflows" : "jobs";
  return (
    <Shown of={misses} rows={2}>
      {(data) => (
        <Table<Miss>
          label="Missed runs"
          rows={data.misses}
          keyOf={(miss) => miss.since}
          empty={<Empty icon="check" title="It has missed none in the last 30 days" />}
          columns={[
            {
              label: "Missed",
              cell: (miss) => (
                <>
                  {exact(miss.since)}
                  {miss.until !== miss.since && <span class="sub"> to {exact(miss.until)}</span>}
                </>
              ),
            },
            { label: "How many", className: "num", cell: (miss) => `${miss.is_complete ? "" : "≥ "}${many(miss.occurrences, "run")}` },
            { label: "Why", className: "grow", cell: (miss) => REASONS[miss.reason] ?? miss.message },
            {
              label: "Unfinished run",
              className: "num",
              cell: (miss) => miss.active_id && <Link href={`/${noun}/${miss.active_id}`} class="mono">…{tail(miss.active_id)}</Link>,
            },
          ]}
        />
      )}
    </Shown>
  );
}

/** The next ten runs of a schedule, in its own zone and in the viewer's, the last ones, and those that it has missed. */
export function Runs({ cron, close }: { cron: Cron; close: () => void }) {
  const runs = useRuns(cron);
  const query = { expression: cron.expression, timezone: cron.timezone, count: "10" };
  const next = useData(`next runs ${cron.expression} ${cron.timezone}`, () =>
    accepted(client.GET("/ojs/v1/cron-preview", { params: { query } })),
  );
  const noun = cron.workflow ? "workflow" : "job";
  return (
    <Dialog label={`Runs of ${cron.name}`} className="wide" close={close}>
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
        <h3>Missed</h3>
        <Misses cron={cron} />
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
export function Strip({ cron }: { cron: Cron }) {
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
