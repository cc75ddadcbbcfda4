import { Link, useLocation, useSearch } from "wouter-preact";
import { accepted, client, type Schemas } from "../api/client";
import { useIsGlobal } from "../api/session";
import { useData } from "../api/use";
import { coarse, compact, since, tail } from "../ui/format";
import { DIMENSIONS, History, type Subject } from "../ui/history";
import { Icon } from "../ui/icons";
import { Card, Page, Shown } from "../ui/parts";
import { Plain } from "../ui/plain";
import { JOB_STATES, State } from "../ui/states";
import { OwnAttention, OwnWork } from "./OwnOverview";

type Finding = Schemas["Finding"];

const ICONS = { error: "alert", warning: "alert", notice: "info" } as const;
const MOST = 12;

/** Where a finding can be mended, and what the way there is called. */
function placeOf(finding: Finding): [string, string] | null {
  const subject = encodeURIComponent(finding.subject ?? "");
  switch (finding.kind) {
    case "full": // or the database is, which no page can mend
      return finding.queue ? [`/queues/${subject}`, "Open queue"] : null;
    case "paused":
    case "waiting":
    case "failing":
      return [`/queues/${subject}`, "Open queue"];
    case "dead":
      return [`/errors?queue=${subject}`, "Open errors"];
    case "deliveries":
      return subject.startsWith("push_") ? ["/workers", "Open workers"] : ["/events?tab=webhooks", "Open webhooks"];
    case "unrunnable":
      // Without a subject, no worker is there.
      return subject ? [`/jobs/${subject}`, "Open job"] : ["/workers", "Open workers"];
    case "silent":
      return ["/workers", "Open workers"];
    case "flows":
      return [`/workflows/${subject}`, "Open workflow"];
    case "overdue":
      return ["/schedules", "Open schedules"];
    case "people":
      return [`/workflows?waiting_for=${subject}`, "Open workflows"];
    case "maintenance":
      return ["/admin", "Open settings"];
    default:
      return null;
  }
}

export function OverviewPage() {
  const isGlobal = useIsGlobal();
  const [, go] = useLocation();
  const parameters = new URLSearchParams(useSearch());
  const by = DIMENSIONS.find((one) => parameters.get(one));
  const subject = by && { by, name: parameters.get(by) ?? "" };
  const facets = useData("overview-facets", () => accepted(client.GET("/ojs/v1/job-facets")), { kinds: ["job"] });
  return (
    <Page title="Overview">
      {isGlobal ? <Attention /> : <OwnAttention />}
      <Shown of={facets}>
        {(data) => {
          const counts = new Map((data.facets.state ?? []).map((one) => [one.value, one.jobs]));
          return (
            <div class="tiles states">
              {JOB_STATES.map((state) => (
                <Link class="tile" href={`/jobs?state=${state}`} key={state}>
                  <b>{compact(counts.get(state) ?? 0)}</b>
                  <span>
                    <State state={state} />
                  </span>
                </Link>
              ))}
            </div>
          );
        }}
      </Shown>
      {isGlobal ? (
        <div class="columns">
          <Charts
            subject={subject}
            facets={facets.data?.facets ?? {}}
            choose={(chosen) => go(chosen ? `/?${chosen.by}=${encodeURIComponent(chosen.name)}` : "/", { replace: true })}
          />
          <Busy />
        </div>
      ) : (
        <OwnWork facets={facets.data?.facets ?? {}} />
      )}
    </Page>
  );
}

/** Charts of all jobs, or of one queue, type, worker or host, which can be chosen. */
function Charts(props: { subject: Subject | undefined; facets: Schemas["FacetsAnswer"]["facets"]; choose: (subject: Subject | null) => void }) {
  const { subject, facets, choose } = props;
  const workers = useData("workers", () => accepted(client.GET("/ojs/v1/workers")), { kinds: ["worker"] });
  const valuesOf = (name: "queue" | "type"): [string, string][] => (facets[name] ?? []).map(({ value }): [string, string] => [value, value]).sort();
  const known = workers.data?.workers ?? [];
  const hosts = [...new Set(known.flatMap(({ hostname }) => (hostname ? [hostname] : [])))].sort();
  const choices = {
    queue: valuesOf("queue"),
    type: valuesOf("type"),
    worker: known.map((one): [string, string] => [one.worker_id, one.hostname ? `${one.hostname}: ${tail(one.worker_id)}` : one.worker_id]),
    host: hosts.map((one): [string, string] => [one, one]),
  };
  return <History subject={subject} choices={choices} choose={choose} />;
}

function Attention() {
  const attention = useData("attention", () => accepted(client.GET("/ojs/v1/admin/attention")), {
    kinds: ["job", "queue", "worker", "workflow", "cron", "system"],
    isTimed: true,
  });
  return (
    <Shown of={attention} rows={2}>
      {({ findings }) => {
        const serious = findings.filter((one) => one.level !== "notice");
        if (!findings.length) {
          return (
            <div class="verdict good" role="status">
              <Icon name="check" /> All is well: queues move, workers answer, nothing waits for you.
            </div>
          );
        }
        const title = serious.length
          ? `${serious.length === 1 ? "One thing needs" : `${serious.length} things need`} attention`
          : "All is well. Some things wait for somebody";
        return (
          <Card title={title} isBare>
            <ul class="findings">
              {findings.slice(0, MOST).map((finding) => {
                const place = placeOf(finding);
                return (
                  <li key={`${finding.kind} ${finding.subject ?? ""} ${finding.message}`}>
                    <span class={`level ${finding.level}`}>
                      <Icon name={ICONS[finding.level]} />
                      <span class="hidden">{finding.level}</span>
                    </span>
                    <span>
                      <Plain text={finding.message} />
                      {finding.since && (
                        <span class="quiet">
                          {" "}
                          For {since(finding.since)}.
                        </span>
                      )}
                    </span>
                    {place && <Link href={place[0]}>{place[1]}</Link>}
                  </li>
                );
              })}
            </ul>
            {findings.length > MOST && <div class="more">{findings.length - MOST} more</div>}
          </Card>
        );
      }}
    </Shown>
  );
}

function Busy() {
  const queues = useData(
    "overview-queues",
    () => accepted(client.GET("/ojs/v1/admin/queues", { params: { query: { per_page: "100", sort: "trouble" } } })),
    { kinds: ["job", "queue"], isTimed: true },
  );
  const system = useData("overview-system", () => accepted(client.GET("/ojs/v1/admin/stats")), { kinds: ["worker"] });
  return (
    <div class="stack">
      <Shown of={system}>
        {(data) => (
          <div class="tiles">
            <Link class="tile" href="/workers">
              <b>{compact(data.workers)}</b>
              <span>{data.workers === 1 ? "worker" : "workers"}</span>
            </Link>
            <Link class="tile" href="/queues">
              <b>{compact(data.queues)}</b>
              <span>{data.queues === 1 ? "queue" : "queues"}</span>
            </Link>
            <div class="tile">
              <b>{coarse(data.uptime_seconds * 1000)}</b>
              <span>this server's uptime</span>
            </div>
          </div>
        )}
      </Shown>
      <Card title="Busiest queues" isBare>
        <Shown of={queues}>
          {({ items }) => (
            <ul class="findings">
              {[...items]
                .sort((a, b) => (b.counts.available ?? 0) + (b.counts.active ?? 0) - (a.counts.available ?? 0) - (a.counts.active ?? 0))
                .slice(0, 8)
                .map((queue) => (
                  <li key={queue.name}>
                    <span>
                      <b>{queue.name}</b>
                      <br />
                      <span class="quiet">
                        {compact(queue.counts.available ?? 0)} wait, {compact(queue.counts.active ?? 0)} run,{" "}
                        {compact(Math.round(queue.throughput.processed_per_minute))} a minute
                      </span>
                    </span>
                    <Link href={`/queues/${encodeURIComponent(queue.name)}`} aria-label={`Open queue ${queue.name}`}>
                      Open queue
                    </Link>
                  </li>
                ))}
              {!items.length && <li class="quiet">No queue has had a job yet.</li>}
            </ul>
          )}
        </Shown>
      </Card>
    </div>
  );
}
