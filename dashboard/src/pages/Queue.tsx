import { Link } from "wouter-preact";
import { accepted, client, type Schemas } from "../api/client";
import { useIsGlobal, useMay } from "../api/session";
import { useData } from "../api/use";
import { useDialogs } from "../ui/dialogs";
import { compact, duration, Time } from "../ui/format";
import { History } from "../ui/history";
import { Button, Card, Empty, Facts, Page, Shown } from "../ui/parts";
import { JOB_STATES, State } from "../ui/states";
import { steerAll } from "./Jobs";
import { switchQueue } from "./Queues";
import { QueueSettings } from "./QueueSettings";

export function QueuePage({ name }: { name: string }) {
  const isGlobal = useIsGlobal();
  const dialogs = useDialogs();
  const may = useMay();
  const queue = useData(
    isGlobal ? `queue ${name}` : null,
    () => accepted(client.GET("/ojs/v1/admin/queues/{name}", { params: { path: { name } } })),
    { kinds: ["job", "queue"], isTimed: true },
  );
  const purge = async (): Promise<void> => {
    if (!waiting(queue.data)) return dialogs.tell(`No job waits in the queue ${name}.`);
    await dialogs.act(
      () => steerAll(dialogs, "cancel", { queue: name, states: WAITING }, waiting(queue.data)),
      {
        title: `Empty the queue ${name}?`,
        text: `All jobs that wait in it, about ${compact(waiting(queue.data))}, are cancelled: they never run. Jobs that run are left alone.`,
        action: "Cancel jobs",
        isDangerous: true,
        word: name,
      },
    );
    queue.reload();
  };
  return (
    <Page
      title={name}
      badge={queue.data && <State state={queue.data.paused ? "paused" : "open"} />}
      sub={
        <>
          A queue. <Link href={`/jobs?queue=${encodeURIComponent(name)}`}>Its jobs</Link>
        </>
      }
      actions={
        may("admin") &&
        queue.data && (
          <>
            <Button
              icon={queue.data.paused ? "play" : "pause"}
              kind={queue.data.paused ? "main" : undefined}
              onClick={() => void switchQueue(dialogs, name, queue.data?.paused ?? false, queue.reload)}
            >
              {queue.data.paused ? "Resume queue" : "Pause queue"}
            </Button>
            <Button icon="trash" kind="danger" onClick={() => void purge()}>
              Empty queue
            </Button>
          </>
        )
      }
    >
      {!isGlobal && (
        <Empty icon="queues" title="You see the jobs of this queue that are yours">
          Its settings and its history are for those who see all queues.
        </Empty>
      )}
      {isGlobal && <Shown of={queue}>
        {(data) => (
          <>
            <div class="tiles states">
              {JOB_STATES.map((state) => (
                <Link class="tile" href={`/jobs?queue=${encodeURIComponent(name)}&state=${state}`} key={state}>
                  <b>{compact(data.counts[state] ?? 0)}</b>
                  <span>
                    <State state={state} />
                  </span>
                </Link>
              ))}
            </div>
            <div class="columns">
              <History subject={{ by: "queue", name }} />
              <div class="stack">
                <Card title="Now">
                  <Facts
                    facts={[
                      ["Oldest job waits since", data.oldest_available_at ? <Time at={data.oldest_available_at} /> : "nothing waits"],
                      ["Per minute", `${compact(data.throughput.processed_per_minute)} done, ${compact(data.throughput.failed_per_minute)} failed`],
                      ["Waiting time", waits(data)],
                      ["Paused", data.paused_at && <Time at={data.paused_at} />],
                      ["Created", <Time at={data.created_at} />],
                    ]}
                  />
                </Card>
                <QueueSettings name={name} data={data} reload={queue.reload} />
              </div>
            </div>
          </>
        )}
      </Shown>}
    </Page>
  );
}

/** Percentiles of the waiting time in the last hour; half of the jobs waited no longer than the first. */
const waits = ({ latency_ms: { p50, p95, p99 } }: Schemas["QueueDetailAnswer"]): string =>
  p99 ? `${duration(p50)} (half), ${duration(p95)} (95 %), ${duration(p99)} (99 %)` : "no job has started in the last hour";

const WAITING = ["available", "scheduled", "retryable", "pending"] as const;

const waiting = (queue: Schemas["QueueDetailAnswer"] | undefined): number =>
  WAITING.reduce((sum, state) => sum + (queue?.counts[state] ?? 0), 0);
