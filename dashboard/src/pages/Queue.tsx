import { useState } from "preact/hooks";
import { Link } from "wouter-preact";
import { accepted, client, type Schemas } from "../api/client";
import { useIsGlobal, useMay } from "../api/session";
import { useData } from "../api/use";
import { useDialogs } from "../ui/dialogs";
import { compact, duration, Time } from "../ui/format";
import { History } from "../ui/history";
import { Json } from "../ui/json";
import { Button, Card, Empty, Facts, Page, Shown } from "../ui/parts";
import { JOB_STATES, State } from "../ui/states";
import { steer } from "./Jobs";
import { switchQueue } from "./Queues";

export function QueuePage({ name }: { name: string }) {
  const isGlobal = useIsGlobal();
  const dialogs = useDialogs();
  const may = useMay();
  const queue = useData(
    isGlobal ? `queue ${name}` : null,
    () => accepted(client.GET("/ojs/v1/admin/queues/{name}", { params: { path: { name } } })),
    { kinds: ["job", "queue"] },
  );
  const purge = async (): Promise<void> => {
    await dialogs.act(
      () => steer("cancel", { filter: { queue: name, states: WAITING } }),
      {
        title: `Empty the queue ${name}?`,
        text: `All jobs that wait in it, about ${compact(waiting(queue.data))}, are cancelled: they never run. Jobs that run are left alone.`,
        action: "Cancel them",
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
              {queue.data.paused ? "Resume" : "Pause"}
            </Button>
            <Button icon="trash" kind="danger" onClick={() => void purge()}>
              Empty
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
                      ["Wait, half", duration(data.latency_ms.p50)],
                      ["Wait, 99 %", duration(data.latency_ms.p99)],
                      ["Paused", data.paused_at && <Time at={data.paused_at} />],
                      ["Created", <Time at={data.created_at} />],
                    ]}
                  />
                </Card>
                <Settings name={name} configuration={data.configuration} reload={queue.reload} />
              </div>
            </div>
          </>
        )}
      </Shown>}
    </Page>
  );
}

const WAITING = ["available", "scheduled", "retryable", "pending"] as const;

const waiting = (queue: Schemas["QueueDetailAnswer"] | undefined): number =>
  WAITING.reduce((sum, state) => sum + (queue?.counts[state] ?? 0), 0);

function Settings(props: { name: string; configuration: Schemas["QueueConfigurationBody"]; reload: () => void }) {
  const [text, setText] = useState<string | null>(null);
  const may = useMay();
  const { act } = useDialogs();
  const save = async (): Promise<void> => {
    const isDone = await act(async () => {
      let body: Schemas["QueueConfigBody"];
      try {
        body = JSON.parse(text ?? "{}") as Schemas["QueueConfigBody"];
      } catch (error) {
        throw new Error(`This is no JSON: ${(error as Error).message}`);
      }
      await accepted(client.PUT("/ojs/v1/admin/queues/{name}/config", { params: { path: { name: props.name } }, body }));
      return "The settings were changed.";
    });
    if (isDone) {
      setText(null);
      props.reload();
    }
  };
  return (
    <Card
      title="Limits and settings"
      end={
        may("admin") && (
          <Button isSmall onClick={() => setText(text === null ? JSON.stringify(props.configuration, null, 2) : null)}>
            {text === null ? "Change" : "Leave"}
          </Button>
        )
      }
    >
      {text === null ? (
        Object.keys(props.configuration).length ? (
          <Json value={props.configuration} label="the settings" />
        ) : (
          <p class="quiet">None: jobs are handed out as fast as workers take them.</p>
        )
      ) : (
        <div class="stack">
          <label class="field">
            <span>JSON</span>
            <textarea class="input" rows={10} value={text} onInput={(event) => setText(event.currentTarget.value)} />
            <small>
              <code>concurrency</code>, <code>rate_limit</code>, <code>throttle</code>, <code>retention</code>,{" "}
              <code>dead_letter</code>, <code>backpressure</code>, <code>allowed_job_types</code>
            </small>
          </label>
          <div>
            <Button kind="main" onClick={() => void save()}>
              Save
            </Button>
          </div>
        </div>
      )}
    </Card>
  );
}
