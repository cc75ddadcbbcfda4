import { Link, useLocation, useSearch } from "wouter-preact";
import { accepted, client, type Schemas } from "../api/client";
import { useIsGlobal, useMay, useOwnQueues } from "../api/session";
import { useData } from "../api/use";
import { type Dialogs, useDialogs } from "../ui/dialogs";
import { compact, many, number, since, waited } from "../ui/format";
import { Button, Card, Empty, Page, Segments, Shown, Table, Turn, useInAddress } from "../ui/parts";
import { State } from "../ui/states";
import { RateLimits } from "./RateLimits";

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
      return isPaused ? `The queue ${name} is open again.` : `The queue ${name} is paused. Running jobs finish.`;
    },
    undefined,
    () => set(isPaused),
  );
}

/** Queues of a page: as many as the server gives. */
const PAGE = 100;

type Order = "trouble" | "name";

const ORDERS: [Order, string][] = [
  ["trouble", "By trouble"],
  ["name", "By name"],
];

/** A number, and its maximum if there is one. */
const of = (value: number, most: number | null | undefined): string =>
  most === null || most === undefined ? compact(value) : `${compact(value)} of ${compact(most)}`;

export function QueuesPage() {
  return useIsGlobal() ? <AllQueues /> : <OwnQueues />;
}

function AllQueues() {
  const dialogs = useDialogs();
  const may = useMay();
  const [path, go] = useLocation();
  const order: Order = new URLSearchParams(useSearch()).get("sort") === "name" ? "name" : "trouble";
  const [page, setPage] = useInAddress<string>("page", "1", true);
  const turn = (pages: number) => () => setPage(String(Number(page) + pages));
  const queues = useData(
    `queues ${order} ${page}`,
    () => accepted(client.GET("/ojs/v1/admin/queues", { params: { query: { per_page: String(PAGE), page, sort: order } } })),
    { kinds: ["job", "queue"], isTimed: true },
  );
  type Row = Schemas["AdminQueueBody"];
  return (
    <Page
      title="Queues"
      actions={<Segments label="Order" of={ORDERS} chosen={order} choose={(next) => go(`${path}?sort=${next}`, { replace: true })} />}
    >
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
                  { label: "Oldest waits", className: "num nowrap", cell: (queue) => (queue.oldest_available_at ? since(queue.oldest_available_at) : "–") },
                  { label: "Waiting", className: "num", cell: (queue) => (queue.max_depth ? of(queue.depth, queue.max_depth) : compact(queue.counts.available ?? 0)) },
                  { label: "Running", className: "num", cell: (queue) => of(queue.counts.active ?? 0, queue.limits.concurrency) },
                  { label: "Later", className: "num wider", cell: (queue) => compact((queue.counts.retryable ?? 0) + (queue.counts.scheduled ?? 0)) },
                  { label: "Per minute", className: "num wide", cell: (queue) => compact(queue.throughput.processed_per_minute) },
                  { label: "Failed", className: "num wider", cell: (queue) => compact(queue.throughput.failed_per_minute) },
                  { label: "Wait, half", className: "num wide nowrap", cell: (queue) => waited(queue.latency_ms.p50) },
                  { label: "95 %", className: "num wide nowrap", cell: (queue) => waited(queue.latency_ms.p95) },
                  { label: "99 %", className: "num wider nowrap", cell: (queue) => waited(queue.latency_ms.p99) },
                  {
                    label: "",
                    className: "num",
                    cell: (queue) =>
                      may("admin") && (
                        <Button
                          isSmall
                          icon={queue.paused ? "play" : "pause"}
                          aria-label={`${queue.paused ? "Resume" : "Pause"} queue ${queue.name}`}
                          onClick={() => void switchQueue(dialogs, queue.name, queue.paused, queues.reload)}
                        >
                          {queue.paused ? "Resume queue" : "Pause queue"}
                        </Button>
                      ),
                  },
                ]}
              />
              {pagination.total > items.length && (
                <div class="more">
                  {number((pagination.page - 1) * PAGE + 1)} to {number((pagination.page - 1) * PAGE + items.length)} of {many(pagination.total, "queue")}
                  <Turn
                    newer={pagination.page > 1 ? turn(-1) : undefined}
                    older={pagination.page * PAGE < pagination.total ? turn(1) : undefined}
                    labels={["Previous", "Next"]}
                  />
                </div>
              )}
            </>
          )}
        </Shown>
      </Card>
      {may("admin") && <Pools />}
      <RateLimits />
    </Page>
  );
}

function Pools() {
  const pools = useData("pools", () => accepted(client.GET("/ojs/v1/admin/pools")), { kinds: ["worker"] });
  const { act } = useDialogs();
  if (!pools.data?.items.length) return null;
  const resize = async (name: string, present: number | null): Promise<void> => {
    const isDone = await act(
      async (text) => {
        const concurrency = text.trim() === "" ? null : Number(text);
        if (concurrency !== null && !(Number.isInteger(concurrency) && concurrency > 0)) throw new Error(`${text} is no whole number above 0.`);
        const path = { params: { path: { name } } };
        // As the pool is now: what others have changed meanwhile stays.
        const { queues, strategy, isolated, weights, starvation_prevention } = (await accepted(client.GET("/ojs/v1/admin/pools/{name}", path))).pool;
        const body = { queues, strategy, isolated, weights, starvation_prevention, concurrency } as unknown as Schemas["PoolBody"];
        await accepted(client.PUT("/ojs/v1/admin/pools/{name}", { ...path, body }));
        return concurrency === null ? `The pool ${name} has no limit.` : `The pool ${name} runs at most ${many(concurrency, "job")} at once.`;
      },
      {
        title: `Resize the pool ${name}`,
        text: `So many jobs run at once on all workers of the pool. Now: ${present === null ? "no limit" : number(present)}.`,
        action: "Resize pool",
        field: { label: "Jobs at once; empty: no limit" },
      },
    );
    if (isDone) pools.reload();
  };
  return (
    <Card title="Pools" isBare>
      <Table
        label="Pools"
        rows={pools.data.items}
        keyOf={(pool) => pool.name}
        columns={[
          { label: "Pool", cell: (pool) => <b>{pool.name}</b> },
          { label: "Queues", className: "grow", cell: (pool) => pool.queues.join(", ") },
          { label: "Strategy", cell: (pool) => pool.strategy },
          { label: "Workers", className: "num", cell: (pool) => pool.active_workers },
          { label: "Running", className: "num", cell: (pool) => `${compact(pool.active_jobs)}${pool.concurrency ? ` of ${compact(pool.concurrency)}` : ""}` },
          {
            label: "",
            className: "num nowrap",
            cell: (pool) => (
              <Button isSmall onClick={() => void resize(pool.name, pool.concurrency)} aria-label={`Resize pool ${pool.name}`}>
                Resize pool
              </Button>
            ),
          },
        ]}
      />
    </Card>
  );
}

function OwnQueues() {
  const own = useOwnQueues();
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
              rows={own.length ? data.queues.filter((queue) => own.includes(queue.name)) : data.queues}
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
