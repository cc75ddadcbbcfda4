/** Inputs, outputs and notes of a workflow. */
import { Link } from "wouter-preact";
import { accepted, client } from "../../api/client";
import { useData } from "../../api/use";
import { Time } from "../../ui/format";
import { Json } from "../../ui/json";
import { Facts, Shown, Table } from "../../ui/parts";
import { Line } from "../../ui/plain";
import { NoteList } from "../job/Notes";
import type { Info } from "./read";

export function Data({ workflow }: { workflow: Info }) {
  const items = useData(`items of ${workflow.id}`, () => accepted(client.GET("/ojs/v1/workflows/{id}/items", { params: { path: { id: workflow.id } } })));
  return (
    <div class="body stack">
      <Facts
        facts={[
          ["Definition", workflow.definition && `${workflow.definition}, version ${workflow.definition_version}`],
          ["Created", <Time at={workflow.created_at} />],
          ["Started", workflow.started_at && <Time at={workflow.started_at} />],
          ["Ended", workflow.completed_at && <Time at={workflow.completed_at} />],
          ["By", workflow.created_by],
          ["Locks", workflow.locks],
          ["Attempt", workflow.attempt ? String(workflow.attempt) : null],
          ["Earlier attempt", workflow.previous_attempt && <Link href={`/workflows/${workflow.previous_attempt}`}>{workflow.previous_attempt}</Link>],
          ["Next attempt", workflow.next_attempt && <Link href={`/workflows/${workflow.next_attempt}`}>{workflow.next_attempt}</Link>],
        ]}
      />
      <div>
        <h3>Parameters</h3>
        <Json value={workflow.params ?? {}} label="the parameters" />
      </div>
      {workflow.result !== undefined && (
        <div>
          <h3>Result</h3>
          <Json value={workflow.result} label="the result" />
        </div>
      )}
      {Boolean(items.data?.items.length) && (
        <Table
          label="Items"
          rows={items.data?.items ?? []}
          keyOf={(item) => String(item.id)}
          columns={[
            { label: "Item", cell: (item) => <b><Line text={item.name} /></b> },
            { label: "Content", className: "grow", cell: (item) => <Json value={item.data ?? item.file} label={item.name} /> },
          ]}
        />
      )}
    </div>
  );
}

export function Notes({ id }: { id: string }) {
  const notes = useData(`notes of ${id}`, () => accepted(client.GET("/ojs/v1/workflows/{id}/info", { params: { path: { id } } })), {
    kinds: ["workflow"],
    id,
  });
  return (
    <div class="body">
      <Shown of={notes}>
        {(data) => <NoteList notes={data.notes} />}
      </Shown>
    </div>
  );
}
