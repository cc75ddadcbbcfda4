import { Link } from "wouter-preact";
import { accepted, client, ofTenant, type Schemas } from "../api/client";
import { useIsGlobal, useMay } from "../api/session";
import { useData } from "../api/use";
import { useDialogs } from "../ui/dialogs";
import { ago, between, compact, exact, many, number, Time } from "../ui/format";
import { Bar, Button, Card, Empty, JobLink, Page, Shown, Table } from "../ui/parts";
import { Line } from "../ui/plain";
import { State } from "../ui/states";
import { PushEndpoints } from "./PushEndpoints";

type Worker = Schemas["WorkerInfo"];

export function WorkersPage() {
  const workers = useData("workers", () => accepted(client.GET("/ojs/v1/workers")), { kinds: ["worker", "job"] });
  const isGlobal = useIsGlobal();
  return (
    <Page title="Workers">
      <Card isBare>
        <Shown of={workers} rows={6}>
          {(data) => <WorkerTable workers={data.workers} reload={workers.reload} />}
        </Shown>
      </Card>
      <PushEndpoints running={new Map(workers.data?.workers.map((one) => [one.worker_id, one.active_jobs]))} />
      {isGlobal && <Unrunnable />}
      <Lost />
    </Page>
  );
}

const MOST_JOBS = 10;

const hostOf = (worker: Worker): string => worker.hostname ?? "";

/** Workers whose heartbeats stopped, with what they held and what became of it. */
function Lost() {
  const lost = useData("lost workers", () => accepted(client.GET("/ojs/v1/lost-workers")), { kinds: ["worker", "job"] });
  if (!lost.data?.workers.length) return null;
  return (
    <Card title="Lost in the last day" isBare>
      <ul class="findings">
        {lost.data.workers.map((worker) => (
          <li key={`${worker.tenant_id ?? ""} ${worker.worker_id}`}>
            <span>
              <b><Line text={worker.hostname ?? worker.worker_id} /></b> was lost {ago(Date.parse(worker.lost_at))}, held {many(worker.held, "job")}
              <span class="place">
                <span class="mono">{worker.worker_id}</span>, last heard {exact(worker.last_heartbeat_at)}
              </span>
              {worker.jobs.slice(0, MOST_JOBS).map((job) => (
                <span class="held" key={job.id}>
                  <JobLink id={job.id}>{job.type}</JobLink> <State state={job.state} />
                </span>
              ))}
              {worker.held > MOST_JOBS && <span class="quiet">and {number(worker.held - Math.min(MOST_JOBS, worker.jobs.length))} more</span>}
            </span>
          </li>
        ))}
      </ul>
    </Card>
  );
}

function WorkerTable({ workers, reload }: { workers: Worker[]; reload: () => void }) {
  const may = useMay();
  const isGlobal = useIsGlobal();
  const { act } = useDialogs();
  const direct = async (worker: Worker, directive: "running" | "quiet" | "terminate"): Promise<void> => {
    const path = { params: { path: { id: worker.worker_id } }, ...ofTenant(worker.tenant_id) };
    const tell = (wanted: string): Promise<unknown> =>
      accepted(client.POST("/ojs/v1/workers/{id}/directive", { ...path, body: { directive: wanted } }));
    await act(
      async () => {
        await tell(directive);
        return {
          running: "The worker takes jobs again.",
          quiet: "The worker finishes its jobs and takes no others.",
          terminate: "The worker stops after its jobs.",
        }[directive];
      },
      directive === "terminate"
        ? {
            title: "Stop this worker?",
            text: `Its process ends after ${many(worker.active_jobs, "job")} that it runs. Only whoever started it can start it again.`,
            action: "Stop worker",
            isDangerous: true,
          }
        : undefined,
      directive === "quiet" ? () => tell("running") : undefined,
    );
    reload();
  };
  const enable = async (worker: Worker, enabled: boolean): Promise<void> => {
    const path = { params: { path: { id: worker.worker_id } } };
    const set = (value: boolean): Promise<unknown> =>
      accepted(client.PATCH("/ojs/v1/admin/worker-rules/{id}", { ...path, body: { enabled: value } as Schemas["WorkerRuleBody"] }));
    await act(
      async () => {
        await set(enabled);
        return enabled ? "The worker gets jobs again." : "The worker gets no more jobs, and gave back those that it had.";
      },
      enabled
        ? undefined
        : { title: "Disable this worker?", text: "It gives back the jobs that it runs, and they begin again elsewhere.", action: "Disable worker", isDangerous: true },
      () => set(!enabled),
    );
    reload();
  };
  const byHost = new Map<string, Worker[]>();
  for (const worker of workers) byHost.set(hostOf(worker), [...(byHost.get(hostOf(worker)) ?? []), worker]);
  const head = (host: string): string | null => {
    const here = byHost.get(host) ?? [];
    if (!host || here.length < 2) return null;
    const places = here.reduce((sum, worker) => sum + (worker.concurrency ?? 0), 0);
    const busy = here.reduce((sum, worker) => sum + worker.active_jobs, 0);
    return `${host}: ${many(here.length, "worker")}, ${number(busy)} of ${many(places, "place")} taken`;
  };
  return (
    <Table<Worker>
      label="Workers"
      rows={[...byHost.values()].flat()}
      group={{ of: hostOf, head }}
      keyOf={(worker) => `${worker.tenant_id ?? ""} ${worker.worker_id}`}
      empty={
        <Empty icon="workers" title="No worker is there">
          Start one: <code>ojster worker myapp:app</code>
        </Empty>
      }
      columns={[
        {
          label: "Worker",
          className: "grow",
          cell: (worker) => (
            <>
              <b class="clip"><Line text={worker.hostname ?? worker.worker_id} /></b>
              {worker.hostname && <span class="sub mono clip"><Line text={worker.worker_id} /></span>}
              {isGlobal && (
                <Link href={`/?worker=${encodeURIComponent(worker.worker_id)}`} aria-label={`The worker ${worker.worker_id} over time`}>
                  Over time
                </Link>
              )}{" "}
              {worker.labels.map((label) => (
                <span class="tag" key={label}>
                  <Line text={label} />
                </span>
              ))}
            </>
          ),
        },
        { label: "State", cell: (worker) => <State state={worker.enabled === false ? "disabled" : worker.state} /> },
        {
          label: "Busy",
          cell: (worker) => (
            <span class="progress">
              <Bar done={worker.active_jobs} of={worker.concurrency ?? Math.max(1, worker.active_jobs)} label="Places taken" />
              <span class="num nowrap">
                {worker.active_jobs}
                {worker.concurrency ? ` of ${worker.concurrency}` : ""}
              </span>
            </span>
          ),
        },
        { label: "Queues", className: "wide", cell: (worker) => <span class="clip">{(worker.queues ?? []).join(", ")}</span> },
        { label: "Runs for", className: "wider num", cell: (worker) => between(worker.started_at, null) },
        { label: "Heard", className: "num wide", cell: (worker) => <Time at={worker.last_heartbeat_at} /> },
        {
          label: "",
          className: "num nowrap",
          cell: (worker) =>
            may("admin") && (
              <>
                <Button
                  isSmall
                  onClick={() => void direct(worker, worker.state === "running" ? "quiet" : "running")}
                  aria-label={`${worker.state === "running" ? "Quiet" : "Wake"} worker ${worker.worker_id}`}
                >
                  {worker.state === "running" ? "Quiet worker" : "Wake worker"}
                </Button>{" "}
                {worker.tenant_id === undefined && (
                  <Button
                    isSmall
                    onClick={() => void enable(worker, worker.enabled === false)}
                    aria-label={`${worker.enabled === false ? "Enable" : "Disable"} worker ${worker.worker_id}`}
                  >
                    {worker.enabled === false ? "Enable worker" : "Disable worker"}
                  </Button>
                )}{" "}
                <Button isSmall kind="danger" onClick={() => void direct(worker, "terminate")} aria-label={`Stop worker ${worker.worker_id}`}>
                  Stop worker
                </Button>
              </>
            ),
        },
      ]}
    />
  );
}

function Unrunnable() {
  const found = useData("unrunnable", () => accepted(client.GET("/ojs/v1/admin/unrunnable")), { kinds: ["worker", "job"] });
  if (!found.data?.unrunnable.length) return null;
  return (
    <Card title="Jobs that no worker can run" isBare>
      <Table
        label="Jobs that no worker can run"
        rows={found.data.unrunnable}
        keyOf={(one) => one.job_id}
        columns={[
          { label: "Queue", className: "mid", cell: (one) => <Link href={`/queues/${encodeURIComponent(one.queue)}`}>{one.queue}</Link> },
          { label: "Type", cell: (one) => one.type ?? "any" },
          { label: "Jobs", className: "num", cell: (one) => `${one.is_complete ? "" : "≥ "}${compact(one.jobs)}` },
          { label: "Why", className: "grow", cell: (one) => one.reasons.join(" ") },
          { label: "Oldest", className: "num", cell: (one) => <JobLink id={one.job_id} /> },
        ]}
      />
    </Card>
  );
}
