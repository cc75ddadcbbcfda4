/** The other runs of a workflow. */
import { Link, useLocation } from "wouter-preact";
import { accepted, client, query } from "../../api/client";
import { useData } from "../../api/use";
import { between, Time } from "../../ui/format";
import { Button, Empty, Shown, Table } from "../../ui/parts";
import { State } from "../../ui/states";
import type { Info } from "./read";

export function Runs({ workflow }: { workflow: Info }) {
  const [, go] = useLocation();
  const filter = workflow.definition ? { definition: workflow.definition } : { name: workflow.name };
  const hasOthers = Boolean(workflow.definition ?? workflow.name);
  const runs = useData(hasOthers ? `runs ${JSON.stringify(filter)}` : null, () =>
    accepted(client.GET("/ojs/v1/workflows", { params: { query: query({ ...filter, limit: 50 }) } })),
  );
  if (!hasOthers) return <Empty title="It has no name and no definition, so that no run is like it" />;
  return (
    <Shown of={runs}>
      {(data) => (
        <Table<Info>
          label="Other runs"
          rows={data.workflows.filter((one) => one.id !== workflow.id)}
          keyOf={(one) => one.id}
          empty={<Empty title="There is no other run" />}
          columns={[
            { label: "Run", className: "grow", cell: (one) => <Link href={`/workflows/${one.id}`} class="mono">…{one.id.slice(-12)}</Link> },
            { label: "State", cell: (one) => <State state={one.state} /> },
            { label: "Took", className: "num", cell: (one) => between(one.started_at, one.completed_at) },
            { label: "Created", className: "num", cell: (one) => <Time at={one.created_at} /> },
            {
              label: "",
              className: "num",
              cell: (one) => (
                <Button isSmall onClick={() => go(`/workflows/${workflow.id}/compare/${one.id}`)}>
                  Compare runs
                </Button>
              ),
            },
          ]}
        />
      )}
    </Shown>
  );
}
