/** The steps of a workflow, as they are read in pages. */
import { accepted, client, query, type Schemas } from "../../api/client";
import { readLevel } from "../../graph/model";
import { duration } from "../../ui/format";

export type Info = Schemas["WorkflowInfo"];
export type Row = Schemas["StepRow"];
export const ROWS = 1_000;

interface Only {
  state?: string;
  held?: "true";
  search?: string;
  cursor?: string | null;
  limit?: number;
}

export const readSteps = (id: string, only: Only = {}): Promise<Schemas["StepsAnswer"]> =>
  accepted(client.GET("/ojs/v1/workflows/{id}/steps", { params: { path: { id }, query: query({ limit: ROWS, ...only }) } }));

/** Steps in a page of the list and of the timeline. */
export const PAGE = 200;

/** Calls for one page: a search, or a state that few steps have, examines many steps for few. */
const CALLS = 50;

/** A page of the steps that match, however far they are apart. */
export async function readPage(id: string, only: Only): Promise<Schemas["StepsAnswer"]> {
  const steps: Row[] = [];
  let cursor = only.cursor ?? null;
  for (let call = 0; call < CALLS; call++) {
    const answer: Schemas["StepsAnswer"] = await readSteps(id, { ...only, cursor, limit: PAGE - steps.length });
    steps.push(...answer.steps);
    cursor = answer.next_cursor;
    if (cursor === null || steps.length >= PAGE) break;
  }
  return { steps, next_cursor: cursor };
}

/** The steps of a flow, in the order in which its function has asked for them. */
export async function readFlowSteps(id: string): Promise<Schemas["StepsAnswer"]> {
  const level = await readLevel(id, 0, ROWS);
  return { steps: level.steps, next_cursor: level.cursor };
}

/** All steps of a run, page by page; `tell` gets the number of those that have just come. */
export async function readAll(id: string, tell: (number: number) => void): Promise<Row[]> {
  const rows: Row[] = [];
  let cursor: string | null = null;
  do {
    const page: Schemas["StepsAnswer"] = await readSteps(id, { cursor });
    rows.push(...page.steps);
    tell(page.steps.length);
    cursor = page.next_cursor;
  } while (cursor !== null);
  return rows;
}

export const shownTook = (milliseconds: number | null): string => (milliseconds === null ? "–" : duration(milliseconds));
