/** What a job belongs to, where it stands, and what limits it. */
import type { ComponentChildren } from "preact";
import { Link } from "wouter-preact";
import type { Schemas } from "../../api/client";
import { number, period, tail, Time } from "../../ui/format";
import { Json } from "../../ui/json";
import { Bar, Card, Facts, JobLink } from "../../ui/parts";
import { Line } from "../../ui/plain";
import { attemptOf, endOf, type Job, ranOf, waitedOf } from "../Jobs";

/** Attributes that the page shows elsewhere, or that are of no use to people; the others are listed as they are. */
const SHOWN = new Set([
  ...["specversion", "id", "type", "queue", "args", "meta", "state", "priority", "attempt", "max_attempts", "created_at", "enqueued_at"],
  ...["started_at", "completed_at", "cancelled_at", "discarded_at", "next_attempt_at", "error", "errors", "result", "worker_id", "progress"],
  ...["tags", "workflow_id", "cron_name", "requires", "result_stored_at", "result_size_bytes", "retry_delay_ms", "created_by", "superseded_by"],
  ...["parent_id", "root_id", "checkpoint", "parent_results", "tenant_id"],
]);

interface Attributes {
  tags?: string[];
  workflow_id?: string;
  cron_name?: string;
  requires?: unknown;
  created_by?: string;
  parent_id?: string;
}

const KINDS = {
  concurrency: "at a time",
  rate: "starts",
  throttle: "starts, evenly spaced",
  pushes: "pushes",
  depth: "that wait",
  scheduled: "for later",
};

const ownerOf = (use: Schemas["LimitUse"]): string =>
  use.tenant ? `Quota of the tenant ${use.tenant}` : use.key ? `Limit ${use.key}` : "Limit of the queue";

/** Where a job stands in its queue, and what limits it. */
export function Waiting({ of }: { of: Schemas["Explanation"] }) {
  const limits = of.limits ?? [];
  if (!limits.length && !of.position) return null;
  return (
    <Card title="Queue and limits">
      <Facts
        facts={[
          ["Place in its queue", of.position ? (of.position > 10_000 ? "after more than 10,000 others" : `number ${number(of.position)}`) : null],
          ...limits.map(
            (use): [string, ComponentChildren] => [
              ownerOf(use),
              <span class="progress">
                <Bar done={use.used} of={Math.max(1, use.limit)} label={`Use of: ${ownerOf(use)}, ${KINDS[use.kind]}`} />
                <span class="nowrap">
                  {number(use.used)} of {number(use.limit)} {KINDS[use.kind]}
                  {use.period ? ` in ${period(use.period)}` : ""}
                </span>
              </span>,
            ],
          ),
        ]}
      />
    </Card>
  );
}

export function Details({ job }: { job: Job }) {
  const meta = job.meta as Record<string, unknown>;
  const known = job as unknown as Attributes;
  const others = Object.fromEntries(Object.entries(job).filter(([name]) => !SHOWN.has(name)));
  return (
    <Facts
      facts={[
        ["Workflow", known.workflow_id && <Link href={`/workflows/${known.workflow_id}`} class="mono">…{tail(known.workflow_id)}</Link>],
        ["Schedule", known.cron_name && <Link href={`/jobs?cron_name=${encodeURIComponent(known.cron_name)}`}>{known.cron_name}</Link>],
        ["Runs again", known.parent_id && <JobLink id={known.parent_id} />],
        ["Tenant", typeof meta.tenant_id === "string" ? meta.tenant_id : null],
        [
          "Tags",
          known.tags?.length
            ? known.tags.map((tag) => (
                <span class="tag" key={tag}>
                  <Line text={tag} />
                </span>
              ))
            : null,
        ],
        ["Requires", known.requires !== undefined && <Json value={known.requires} label="what it requires" />],
        ["Created by", known.created_by],
        ["Attempt", attemptOf(job)],
        ["Priority", String(job.priority)],
        ["Created", <Time at={job.created_at} />],
        ["Available", job.enqueued_at && <Time at={job.enqueued_at} />],
        ["Started", job.started_at && <Time at={job.started_at} />],
        ["Ended", endOf(job) && <Time at={endOf(job)} />],
        ["Waited", job.enqueued_at && waitedOf(job)],
        ["Ran", job.started_at && ranOf(job)],
        ["Next attempt", job.next_attempt_at && <Time at={job.next_attempt_at} />],
        ["Worker", job.worker_id && <span class="mono">{job.worker_id}</span>],
        ["Meta", Object.keys(meta).length ? <Json value={meta} label="meta" /> : null],
        ["Options", Object.keys(others).length ? <Json value={others} label="its options" /> : null],
      ]}
    />
  );
}
