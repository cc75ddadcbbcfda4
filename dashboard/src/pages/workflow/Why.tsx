/** Why a workflow failed. */
import type { ComponentChildren } from "preact";
import { many } from "../../ui/format";
import { Icon } from "../../ui/icons";
import { Long } from "../../ui/json";
import { Card, JobLink } from "../../ui/parts";
import { Line } from "../../ui/plain";
import type { Info } from "./read";

interface Failure {
  job_id?: string | null;
  path?: string;
  step: string;
  type?: string | null;
  message: string;
}

export const failuresOf = (workflow: Info): Failure[] => (workflow.error?.errors ?? []) as unknown as Failure[];

/** Why a workflow failed: the steps that did, the first one first, with the way to their jobs and backtraces. */
export function Why({ workflow, children }: { workflow: Info; children: ComponentChildren }) {
  const failures = failuresOf(workflow);
  if (!failures.length) {
    return (
      <div class="problem" role="status">
        <Long text={workflow.error?.message ?? ""} />
        {children}
      </div>
    );
  }
  const others = Math.max(0, ((workflow.metadata as { failed_count?: number } | undefined)?.failed_count ?? 0) - failures.length);
  return (
    <Card title={workflow.error?.code === "step_failed" ? "Why it failed" : `Why it failed: ${workflow.error?.message ?? ""}`} end={children} isBare>
      <ul class="findings">
        {failures.map((failure) => (
          <li key={failure.path ?? failure.step}>
            <span class="level error">
              <Icon name="cross" />
            </span>
            <span>
              <b>{failure.path ?? failure.step}</b> {failure.type && <span class="quiet">{failure.type}</span>}
              <span class="place">
                <Line text={failure.message ?? ""} />
              </span>
            </span>
            {failure.job_id && <JobLink id={failure.job_id}>Job and backtrace</JobLink>}
          </li>
        ))}
      </ul>
      {others > 0 && <div class="more">{many(others, "more job")} failed.</div>}
    </Card>
  );
}
