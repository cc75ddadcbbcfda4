/** The steps of a workflow that have a text in their name or type, also those that the picture does not show. */
import { accepted, client, query, type Schemas } from "../api/client";
import { useData } from "../api/use";
import { Button, Shown } from "../ui/parts";
import { State } from "../ui/states";
import { stateOf } from "./model";

type Row = Schemas["StepRow"];

const MOST = 20;
/** Calls for one search: each examines 10,000 steps. */
const CALLS = 20;

async function find(id: string, search: string): Promise<{ rows: Row[]; isCut: boolean }> {
  const rows: Row[] = [];
  let cursor: string | null = null;
  for (let call = 0; call < CALLS; call++) {
    const answer: Schemas["StepsAnswer"] = await accepted(
      client.GET("/ojs/v1/workflows/{id}/steps", {
        params: { path: { id }, query: query({ search, limit: MOST - rows.length, cursor }) },
      }),
    );
    rows.push(...answer.steps);
    cursor = answer.next_cursor;
    if (cursor === null || rows.length >= MOST) return { rows, isCut: cursor !== null };
  }
  return { rows, isCut: true };
}

export function Found({ id, text, choose }: { id: string; text: string; choose: (row: Row) => void }) {
  const found = useData(`found ${id} ${text}`, () => find(id, text));
  return (
    <Shown of={found} rows={2}>
      {({ rows, isCut }) => (
        <div class="more" role="status" aria-label="Steps that were found">
          {rows.map((row) => (
            <Button key={row.path} isSmall onClick={() => choose(row)}>
              {row.path || row.type} <State state={stateOf(row)} />
            </Button>
          ))}
          {!rows.length && <span>No step has “{text}” in its name, path or type.</span>}
          {isCut && <span>There are more; a longer text finds fewer.</span>}
        </div>
      )}
    </Shown>
  );
}
