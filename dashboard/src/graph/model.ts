/** What a picture of a workflow knows: levels of steps, read when they are unfolded. */
import { accepted, client, query, type Schemas } from "../api/client";
import { now } from "../api/heard";

export type Step = Schemas["LevelStep"];

/** The state of a step as people see it: that of its job while it has one, and "blocked" if it waits for somebody. */
export function stateOf(step: { state: string; job_state?: string | null }): string {
  if (step.state !== "active" || !step.job_state) return step.state;
  return step.job_state === "pending" ? "blocked" : step.job_state;
}

/** What a flow asks for beside steps of the graph, in words. */
export const ASKED: Record<string, string> = {
  step: "local step",
  receive: "message",
  receive_many: "messages",
  listen: "message with a key",
  listen_many: "messages with a key",
  sleep: "waits for a time",
  update: "update",
};

/** What a step is called: its name or, if it has none, its type. */
export function titleOf(step: { path: string; type: string; kind?: string }): string {
  if (step.kind && ASKED[step.kind]) return step.type;
  const name = step.path.split(".").at(-1) ?? step.path;
  return /^\d*$/.test(name) ? step.type : name;
}

interface Times {
  type: string;
  job_state?: string | null;
  enqueued_at?: string | null;
  started_at?: string | null;
  completed_at?: string | null;
  stop_requested_at?: string | null;
}

type Span = [number, number] | null;

const momentOf = (at: string | null | undefined): number | null => (at ? Date.parse(at) : null);

/**
 * When a step waited in its queue, when it ran, and when its worker stopped it, in milliseconds since the epoch; `null`: it
 * did not. The times of a job are those of its last attempt. What has not ended ends now.
 */
export function spansOf(step: Times): { waited: Span; ran: Span; stopped: Span } {
  const [enqueued, started, completed] = [momentOf(step.enqueued_at), momentOf(step.started_at), momentOf(step.completed_at)];
  const stop = momentOf(step.stop_requested_at);
  // A job that is suspended, or waits for another attempt, does not run; nor does a wait, which lasts for all that.
  const isIdle = !!step.job_state && step.job_state !== "active" && step.type !== "ojster.wait" && stop === null;
  const until = completed ?? now();
  return {
    waited: enqueued === null ? null : [enqueued, started ?? until],
    ran: started === null || (isIdle && completed === null) ? null : [started, stop ?? until],
    stopped: stop === null ? null : [stop, until],
  };
}

/** How long a step ran, without its wait in the queue, in milliseconds; `null`: it has not run, or waits to run again. */
export const runTime = (step: Times): number | null => lengthOf(spansOf(step).ran);

/** How long a step waited in its queue, in milliseconds; `null`: it was in none. */
export const waitTime = (step: Times): number | null => lengthOf(spansOf(step).waited);

const lengthOf = (span: Span): number | null => span && Math.max(0, span[1] - span[0]);

export interface Level {
  steps: Step[];
  total: number;
  cursor: string | null;
}

/** Levels by the number of their container, 0 for the workflow. */
export type Levels = ReadonlyMap<number, Level>;

const AT_ONCE = 60;
/** Steps that are unfolded by themselves when a picture begins. */
const UNFOLDED = 120;

/** The number of steps of a level without its branches, which come with its first page. */
export const mainSteps = (level: { steps: Step[] }): number => level.steps.filter((step) => !step.is_branch).length;

export async function readLevel(id: string, of: number, most = AT_ONCE): Promise<Level> {
  const steps: Step[] = [];
  let cursor: string | null = null;
  for (;;) {
    const limit = Math.min(500, most - mainSteps({ steps }));
    const answer: Schemas["LevelAnswer"] = await accepted(
      client.GET("/ojs/v1/workflows/{id}/graph", { params: { path: { id }, query: query({ of, limit, cursor }) } }),
    );
    steps.push(...answer.steps);
    cursor = answer.next_cursor;
    if (cursor === null || mainSteps({ steps }) >= most) return { steps, total: answer.total, cursor };
  }
}

/** The first levels of a workflow: small containers are unfolded until there is enough to see. */
export async function readFirst(id: string): Promise<Levels> {
  const levels = new Map<number, Level>();
  let room = UNFOLDED;
  let waiting = [0];
  while (waiting.length) {
    const read = await Promise.all(waiting.map(async (number) => [number, await readLevel(id, number)] as const));
    const next: number[] = [];
    for (const [number, level] of read) {
      levels.set(number, level);
      room -= level.steps.length;
      for (const step of level.steps) {
        const size = step.total ?? 0;
        if (step.is_container && size <= 16 && size <= room) {
          next.push(step.number ?? 0);
          room -= size;
        }
      }
    }
    waiting = next;
  }
  return levels;
}

/** The levels around a step, read until it is among them, at most so many steps of each. */
const MOST_BESIDE = 2_000;

/** The first levels of a workflow, and those around a step, so that it can be shown. */
export async function readAround(id: string, path: string | null): Promise<Levels> {
  const levels = new Map(await readFirst(id));
  if (path === null) return levels;
  for (let of = 0; ; ) {
    let level = levels.get(of) ?? (await readLevel(id, of));
    const isOnWay = (step: Step): boolean => path === step.path || (step.is_container === true && path.startsWith(`${step.path}.`));
    if (!level.steps.some(isOnWay) && level.cursor !== null) level = await readLevel(id, of, MOST_BESIDE);
    levels.set(of, level);
    const next = level.steps.find(isOnWay);
    if (!next?.is_container || next.path === path) return levels;
    of = next.number ?? 0;
  }
}

/** The levels that are shown, read again. */
export async function readAgain(id: string, levels: Levels): Promise<Levels> {
  const read = await Promise.all(
    [...levels].map(async ([number, level]) => [number, await readLevel(id, number, Math.max(AT_ONCE, mainSteps(level)))] as const),
  );
  return new Map(read);
}
