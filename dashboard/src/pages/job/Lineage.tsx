/** The relatives of a job. */
import { Link } from "wouter-preact";
import { accepted, client } from "../../api/client";
import { useData } from "../../api/use";
import { Facts, JobLink, Shown } from "../../ui/parts";

export function Lineage({ id }: { id: string }) {
  const lineage = useData(`lineage of ${id}`, () => accepted(client.GET("/ojs/v1/jobs/{id}/lineage", { params: { path: { id } } })));
  return (
    <Shown of={lineage}>
      {(data) => (
        <Facts
          facts={[
            ["Workflow", data.workflow_id && <Link href={`/workflows/${data.workflow_id}`}>{data.workflow_id}</Link>],
            ["Root", data.root_id && data.root_id !== id && <JobLink id={data.root_id} />],
            ["Parents", data.parents.length ? data.parents.map((one) => <div key={one}><JobLink id={one} /></div>) : "none"],
            ["Children", data.children.length ? data.children.map((one) => <div key={one.job_id}><JobLink id={one.job_id} /></div>) : "none"],
            ["Repeats", data.parent_id && !data.parents.includes(data.parent_id) && <JobLink id={data.parent_id} />],
            ["Superseded by", data.superseded_by && <JobLink id={data.superseded_by} />],
          ]}
        />
      )}
    </Shown>
  );
}
