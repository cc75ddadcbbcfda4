import { Link } from "wouter-preact";
import { accepted, client, type Schemas } from "../api/client";
import { useIsGlobal, useMay } from "../api/session";
import { useData } from "../api/use";
import { type Dialogs, useDialogs } from "../ui/dialogs";
import { compact, duration, many, number } from "../ui/format";
import { Button, Card, Empty, Page, Shown, Table } from "../ui/parts";
import { State } from "../ui/states";

/** Pauses a queue, or lets it go on; either can be undone. */
export async function switchQueue({ act }: Dialogs, name: string, isPaused: boolean, reload: () => void): Promise<void> {
  const path = { params: { path: { name } } };
  const set = async (paused: boolean): Promise<void> => {
    await accepted(paused ? client.POST("/ojs/v1/queues/{name}/pause", path) : client.POST("/ojs/v1/queues/{name}/resume", path));
    reload();
  };
  await act(
    async () => {
      await set(!isPaused);
      return isPaused ? `The queue ${name} goes on.` : `The queue ${name} is paused. Jobs that run, end.`;
    },
    undefined,
    () => set(isPaused),
  );
}

export function QueuesPage() {
  return useIsGlobal() ? <AllQueues /> : <OwnQueues />;
}

function AllQueues() {
  const dialogs = useDialogs();
  const may = useMay();
  const queues = useData(
    "queues",
    () => accepted(client.GET("/ojs/v1/admin/queues", { params: { query: { per_page: "100" } } })),
    { kinds: ["job", "queue"] },
  );
  type Row = Schemas["AdminQueueBody"];
  return (
    <Page title="Queues">
      <Card isBare>
        <Shown of={queues} rows={8}>
          {({ items, pagination }) => (
            <>
              <Table<Row>
                label="Queues"
                rows={items}
                keyOf={(queue) => queue.name}
                empty={<Empty icon="queues" title="No queues yet">A queue begins with its first job.</Empty>}
                columns={[
                  {
                    label: "Queue",
                    className: "grow",
                    cell: (queue) => (
                      <Link href={`/queues/${encodeURIComponent(queue.name)}`}>
                        <b>{queue.name}</b>
                      </Link>
                    ),
                  },
                  { label: "State", cell: (queue) => <State state={queue.paused ? "paused" : "open"} /> },
                  { label: "Waiting", className: "num", cell: (queue) => compact(queue.counts.available ?? 0) },
                  { label: "Running", className: "num", cell: (queue) => compact(queue.counts.active ?? 0) },
                  { label: "Retrying", className: "num wide", cell: (queue) => compact(queue.counts.retryable ?? 0) },
                  { label: "Scheduled", className: "num wide", cell: (queue) => compact(queue.counts.scheduled ?? 0) },
                  { label: "Per minute", className: "num wide", cell: (queue) => compact(queue.throughput.processed_per_minute) },
                  { label: "Failed", className: "num wider", cell: (queue) => compact(queue.throughput.failed_per_minute) },
                  { label: "Wait, 95 %", className: "num wider", cell: (queue) => duration(queue.latency_ms.p95) },
                  {
                    label: "",
                    className: "num",
                    cell: (queue) =>
                      may("admin") && (
                        <Button
                          isSmall
                          icon={queue.paused ? "play" : "pause"}
                          aria-label={`${queue.paused ? "Resume" : "Pause"} the queue ${queue.name}`}
                          onClick={() => void switchQueue(dialogs, queue.name, queue.paused, queues.reload)}
                        >
                          {queue.paused ? "Resume" : "Pause"}
                        </Button>
                      ),
                  },
                ]}
              />
              {pagination.total > items.length && <div class="more">The first {number(items.length)} of {many(pagination.total, "queue")}</div>}
            </>
          )}
        </Shown>
      </Card>
      {may("admin") && <Pools />}
      <Limits />
    </Page>
  );
}

function Pools() {
  const pools = useData("pools", () => accepted(client.GET("/ojs/v1/admin/pools")), { kinds: ["worker"] });
  if (!pools.data?.items.length) return null;
  return (
    <Card title="Pools" isBare>
      <Table
        label="Pools"
        rows={pools.data.items}
        keyOf={(pool) => pool.name}
        columns={[
          { label: "Pool", className: "grow", cell: (pool) => <b>{pool.name}</b> },
          { label: "Queues", cell: (pool) => pool.queues.join(", ") },
          { label: "Strategy", cell: (pool) => pool.strategy },
          { label: "Workers", className: "num", cell: (pool) => pool.active_workers },
          { label: "Running", className: "num", cell: (pool) => `${compact(pool.active_jobs)}${pool.concurrency ? ` of ${compact(pool.concurrency)}` : ""}` },
        ]}
      />
    </Card>
  );
}

function Limits() {
  const limits = useData("limits", () => accepted(client.GET("/ojs/v1/rate-limits", { params: { query: { per_page: "100" } } })), {
    kinds: ["job"],
  });
  if (!limits.data?.items.length) return null;
  return (
    <Card title="Rate limits" isBare>
      <Table
        label="Rate limits"
        rows={limits.data.items}
        keyOf={(limit) => limit.key}
        columns={[
          { label: "Key", className: "grow", cell: (limit) => <code>{limit.key}</code> },
          { label: "Waiting", className: "num", cell: (limit) => compact(limit.waiting_count) },
          { label: "When reached", cell: (limit) => limit.on_limit },
        ]}
      />
    </Card>
  );
}

function OwnQueues() {
  const queues = useData(
    "own queues",
    () => accepted(client.GET("/ojs/v1/queues", { params: { query: { limit: "200" } } })),
    { kinds: ["job", "queue"] },
  );
  return (
    <Page title="Queues">
      <Card isBare>
        <Shown of={queues} rows={8}>
          {(data) => (
            <Table
              label="Queues"
              rows={data.queues}
              keyOf={(queue) => queue.name}
              empty={<Empty icon="queues" title="No queues yet" />}
              columns={[
                {
                  label: "Queue",
                  className: "grow",
                  cell: (queue) => (
                    <Link href={`/jobs?queue=${encodeURIComponent(queue.name)}`}>
                      <b>{queue.name}</b>
                    </Link>
                  ),
                },
                { label: "State", cell: (queue) => <State state={queue.status === "paused" ? "paused" : "open"} /> },
              ]}
            />
          )}
        </Shown>
      </Card>
    </Page>
  );
}
