/** What whoever is limited to a workspace has to know first: what failed, what waits for a person, and where the jobs are. */
import type { ComponentChildren } from "preact";
import { Link } from "wouter-preact";
import { accepted, client, query, type Schemas } from "../api/client";
import { useOwnQueues } from "../api/session";
import { useData } from "../api/use";
import { compact, many, Time } from "../ui/format";
import { Icon } from "../ui/icons";
import { Bar, Card, Shown } from "../ui/parts";
import { Line } from "../ui/plain";
import { State } from "../ui/states";
import { nameOf, WAITS } from "./Workflows";

const MOST = 5;

/** Kinds of waits that people end. */
const OF_PEOPLE = new Set(["gate", "form", "suspension"]);

/** How many workflows wait for people: for each kind of wait. */
async function readWaits(): Promise<{ kind: string; words: string; count: number }[]> {
  const kinds = Object.entries(WAITS).filter(([kind]) => OF_PEOPLE.has(kind));
  const pages = await Promise.all(
    kinds.map(([kind]) => accepted(client.GET("/ojs/v1/workflows", { params: { query: query({ waiting_for: kind, limit: 1 }) } }))),
  );
  return kinds.map(([kind, words], place) => ({ kind, words, count: pages[place]?.pagination.total ?? 0 })).filter((one) => one.count > 0);
}

function Finding(props: { level: "error" | "notice"; to: string; action: string; children: ComponentChildren }) {
  return (
    <li>
      <span class={`level ${props.level}`}>
        <Icon name={props.level === "error" ? "alert" : "info"} />
        <span class="hidden">{props.level}</span>
      </span>
      <span>{props.children}</span>
      <Link href={props.to}>{props.action}</Link>
    </li>
  );
}

export function OwnAttention() {
  const failures = useData("own failures", () => accepted(client.GET("/ojs/v1/failures")), { kinds: ["job"] });
  const isLimited = useOwnQueues().length > 0; // workflows are those of all queues
  const waits = useData(isLimited ? null : "own waits", readWaits, { kinds: ["workflow"] });
  return (
    <Shown of={failures} rows={2}>
      {({ groups }) => {
        const lost = groups.filter((group) => (group.discarded ?? 0) > 0);
        if (!lost.length && !waits.data?.length) {
          return (
            <div class="verdict good" role="status">
              <Icon name="check" /> All is well: no job gave up{isLimited ? "" : ", and nothing waits for a person"}.
            </div>
          );
        }
        return (
          <Card title={lost.length ? "Jobs gave up" : "All is well. Some things wait for somebody"} isBare>
            <ul class="findings">
              {lost.slice(0, MOST).map((group) => (
                <Finding key={`${group.type} ${group.error_type} ${group.pattern}`} level="error" to={`/errors?type=${encodeURIComponent(group.type)}`} action="Open errors">
                  {many(group.discarded ?? 0, "job")} of <b>{group.type}</b> gave up, the last one <Time at={group.last_at} />.
                  <span class="place">
                    <Line text={`${group.error_type}: ${group.pattern || (group.message ?? "")}`} />
                  </span>
                </Finding>
              ))}
              {waits.data?.map(({ kind, words, count }) => (
                <Finding key={kind} level="notice" to={`/workflows?waiting_for=${kind}`} action="Open workflows">
                  {many(count, "workflow")} {count === 1 ? "waits" : "wait"} for {words}.
                </Finding>
              ))}
            </ul>
            {lost.length > MOST && <div class="more">{many(lost.length - MOST, "more error")}</div>}
          </Card>
        );
      }}
    </Shown>
  );
}

/** The queues of the jobs, and the workflows that began last. */
export function OwnWork({ facets }: { facets: Schemas["FacetsAnswer"]["facets"] }) {
  const isLimited = useOwnQueues().length > 0;
  const workflows = useData(isLimited ? null : "own workflows", () => accepted(client.GET("/ojs/v1/workflows", { params: { query: { limit: String(MOST) } } })), {
    kinds: ["workflow"],
  });
  const queues = [...(facets.queue ?? [])].sort((a, b) => b.jobs - a.jobs).slice(0, 8);
  const most = Math.max(1, ...queues.map((one) => one.jobs));
  return (
    <div class="columns even">
      <Card title="Jobs by queue" isBare>
        <ul class="findings">
          {queues.map((queue) => (
            <li key={queue.value}>
              <span>
                <b>{queue.value}</b>
                <span class="progress">
                  <Bar done={queue.jobs} of={most} label={`Jobs of ${queue.value}`} />
                  <span class="num">{compact(queue.jobs)}</span>
                </span>
              </span>
              <Link href={`/jobs?queue=${encodeURIComponent(queue.value)}`} aria-label={`Open jobs of ${queue.value}`}>
                Open jobs
              </Link>
            </li>
          ))}
          {!queues.length && <li class="quiet">No queue has had a job yet.</li>}
        </ul>
      </Card>
      {!isLimited && (
      <Card title="Newest workflows" isBare>
        <Shown of={workflows}>
          {(data) => (
            <ul class="findings">
              {data.workflows.map((one) => (
                <li key={one.id}>
                  <span>
                    <b>
                      <Line text={nameOf(one)} />
                    </b>{" "}
                    <State state={one.state} />
                    <span class="place">
                      <Time at={one.created_at} />
                    </span>
                  </span>
                  <Link href={`/workflows/${one.id}`} aria-label={`Open workflow ${nameOf(one)}`}>
                    Open workflow
                  </Link>
                </li>
              ))}
              {!data.workflows.length && <li class="quiet">No workflow has started yet.</li>}
            </ul>
          )}
        </Shown>
      </Card>
      )}
    </div>
  );
}
