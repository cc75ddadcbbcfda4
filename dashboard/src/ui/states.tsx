/** One colour and one icon for each state of jobs, steps, workflows, queues and workers, everywhere. */
import { Icon, type IconName } from "./icons";

export type Colour = "blue" | "indigo" | "violet" | "amber" | "orange" | "green" | "red" | "grey";

export const STATES: Record<string, { colour: Colour; icon: IconName }> = {
  scheduled: { colour: "indigo", icon: "clock" },
  available: { colour: "blue", icon: "dot" },
  pending: { colour: "violet", icon: "hand" },
  active: { colour: "amber", icon: "play" },
  completed: { colour: "green", icon: "check" },
  retryable: { colour: "orange", icon: "retry" },
  cancelled: { colour: "grey", icon: "stop" },
  discarded: { colour: "red", icon: "cross" },
  running: { colour: "amber", icon: "play" },
  failed: { colour: "red", icon: "cross" },
  waiting: { colour: "grey", icon: "clock" },
  blocked: { colour: "violet", icon: "hand" },
  held: { colour: "violet", icon: "pause" },
  skipped: { colour: "grey", icon: "skip" },
  cancelling: { colour: "orange", icon: "undo" },
  compensating: { colour: "orange", icon: "undo" },
  compensated: { colour: "orange", icon: "undo" },
  retried: { colour: "grey", icon: "retry" },
  paused: { colour: "violet", icon: "pause" },
  suspended: { colour: "orange", icon: "clock" },
  quiet: { colour: "violet", icon: "pause" },
  open: { colour: "green", icon: "check" },
  on: { colour: "green", icon: "check" },
  off: { colour: "grey", icon: "pause" },
  disabled: { colour: "grey", icon: "stop" },
  stale: { colour: "red", icon: "alert" },
  terminate: { colour: "orange", icon: "stop" },
  delivered: { colour: "green", icon: "check" },
  dead: { colour: "red", icon: "cross" },
  success: { colour: "green", icon: "check" },
  failure: { colour: "red", icon: "cross" },
};

export const JOB_STATES = [
  "available",
  "active",
  "retryable",
  "scheduled",
  "pending",
  "completed",
  "discarded",
  "cancelled",
] as const;

/** States of jobs that have ended. */
export const FINAL = new Set<string>(["completed", "cancelled", "discarded"]);

export const colourOf = (state: string): Colour => STATES[state]?.colour ?? "grey";

export function State({ state, label }: { state: string; label?: string }) {
  const known = STATES[state] ?? { colour: "grey", icon: "dot" as IconName };
  return (
    <span class={`state s-${known.colour}`}>
      <Icon name={known.icon} />
      {label ?? state}
    </span>
  );
}
