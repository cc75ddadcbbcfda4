/** The list of a workflow's steps, and its filter. */
import { useState } from "preact/hooks";
import { runTime, stateOf, waitTime } from "../../graph/model";
import { Button, Empty, Table, Turn } from "../../ui/parts";
import { State } from "../../ui/states";
import { type Row, shownTook } from "./read";

const STEP_STATES = ["failed", "active", "blocked", "held", "waiting", "completed", "skipped", "cancelled", "compensated"];

/** What to show of the steps, in the list and in the timeline, and the way to the next page. */
export function StepFilter(props: {
  only: { state: string; search: string };
  choose: (change: { state?: string; search?: string }) => void;
  turn?: { newer?: () => void; older?: () => void };
}) {
  const [text, setText] = useState(props.only.search);
  const submit = (event: Event): void => {
    event.preventDefault();
    props.choose({ search: text.trim() });
  };
  return (
    <form class="more" style={{ borderTop: 0 }} onSubmit={submit} role="search" aria-label="Steps to show">
      <label>
        <span class="hidden">Name, path or type of steps</span>
        <input class="input" placeholder="Name, path or type" value={text} onInput={(event) => setText(event.currentTarget.value)} />
      </label>
      <label>
        <span class="hidden">State of steps</span>
        <select class="input" value={props.only.state} onChange={(event) => props.choose({ state: event.currentTarget.value })}>
          <option value="">Any state</option>
          {STEP_STATES.map((state) => (
            <option key={state}>{state}</option>
          ))}
        </select>
      </label>
      <Button type="submit" isSmall icon="search">
        Find steps
      </Button>
      {(props.turn?.newer ?? props.turn?.older) && <Turn {...props.turn} labels={["Steps before", "Steps after"]} />}
    </form>
  );
}

export function Steps({ rows, choose }: { rows: Row[]; choose: (row: Row) => void }) {
  return (
    <>
      <Table<Row>
        label="Steps"
        rows={rows}
        keyOf={(row) => row.path}
        empty={<Empty icon="search" title="No step matches" />}
        columns={[
          {
            label: "Step",
            className: "grow",
            cell: (row) => (
              <Button kind="plain" isSmall onClick={() => choose(row)}>
                {row.path || row.kind}
              </Button>
            ),
          },
          { label: "Type", className: "wide", cell: (row) => row.type },
          {
            label: "State",
            cell: (row) => (
              <span title={row.because ? `${row.because.message} ${(row.because.steps ?? []).join(", ")}` : undefined}>
                <State state={stateOf(row)} />
              </span>
            ),
          },
          { label: "Done", className: "num wide", cell: (row) => (row.total ? `${row.completed ?? 0} of ${row.total}` : row.attempt ? `attempt ${row.attempt}` : "") },
          { label: "Waited", className: "num wide", cell: (row) => shownTook(waitTime(row)) },
          { label: "Ran", className: "num", cell: (row) => shownTook(runTime(row)) },
        ]}
      />
    </>
  );
}
