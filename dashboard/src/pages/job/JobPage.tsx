/** One job: why it is as it is, and its parts in tabs. */
import { Link } from "wouter-preact";
import { accepted, client } from "../../api/client";
import { useData } from "../../api/use";
import { Json } from "../../ui/json";
import { Card, Copy, Page, Shown, Tabs, useInAddress } from "../../ui/parts";
import { FINAL, State } from "../../ui/states";
import type { Job } from "../Jobs";
import { Actions } from "./Actions";
import { Attempts, Errors, Progress } from "./Attempts";
import { Details, Waiting } from "./Details";
import { Log } from "./History";
import { Checkpoint, Items } from "./Left";
import { Lineage } from "./Lineage";
import { Lines } from "./Lines";
import { Notes } from "./Notes";

type Tab = "errors" | "log" | "history" | "items" | "checkpoint" | "notes" | "lineage" | "raw";

export function JobPage({ id }: { id: string }) {
  const [tab, setTab] = useInAddress<Tab | "">("tab", "");
  const live = { kinds: ["job" as const], id };
  const path = { params: { path: { id } } };
  const job = useData(`job ${id}`, () => accepted(client.GET("/ojs/v1/jobs/{id}", path)).then((found) => found.job as Job), live);
  const history = useData(
    `history of ${id}`,
    () => accepted(client.GET("/ojs/v1/jobs/{id}/history", { params: { path: { id }, query: { limit: "200" } } })),
    live,
  );
  const reasons = useData(`why ${id}`, () => accepted(client.GET("/ojs/v1/jobs/{id}/explanation", path)), {
    kinds: ["job", "queue", "worker", "system"],
  });
  return (
    <Shown of={job} rows={10} page="Job">
      {(shown) => {
        const chosen = tab || (shown.errors?.length ? "errors" : "history");
        return (
          <Page
            title={shown.type}
            badge={<State state={shown.state} />}
            sub={
              <>
                <span class="mono">{id}</span>
                <Copy text={id} label="Copy the id" />
                in the queue <Link href={`/queues/${encodeURIComponent(shown.queue)}`}>{shown.queue}</Link>
              </>
            }
            actions={<Actions job={shown} reload={job.reload} />}
          >
            {!FINAL.has(shown.state) && (
              <Shown of={reasons} rows={1}>
                {(data) => (
                  <div class="note" role="status">
                    {data.reasons.map((reason) => (
                      <p key={reason.code + reason.message}>{reason.message}</p>
                    ))}
                  </div>
                )}
              </Shown>
            )}
            <Progress job={shown} />
            <div class="columns">
              <div class="stack">
                <Card title="Attempts">
                  <Shown of={history}>{(data) => <Attempts job={shown} events={data.events} />}</Shown>
                </Card>
                <section class="card">
                  <Tabs
                    label="About this job"
                    tabs={[
                      ["errors", `Errors (${shown.errors?.length ?? 0})`],
                      ["log", "Log"],
                      ["history", "History"],
                      ["items", "Items and files"],
                      ["checkpoint", "Checkpoint"],
                      ["notes", "Notes"],
                      ["lineage", "Relatives"],
                      ["raw", "JSON"],
                    ]}
                    chosen={chosen}
                    choose={setTab}
                  />
                  <div class="body">
                    {chosen === "errors" && <Errors job={shown} />}
                    {chosen === "log" && <Lines key={id} id={id} isOver={FINAL.has(shown.state)} />}
                    {chosen === "history" && <Shown of={history}>{(data) => <Log events={data.events} />}</Shown>}
                    {chosen === "items" && <Items id={id} />}
                    {chosen === "checkpoint" && <Checkpoint id={id} />}
                    {chosen === "notes" && <Notes id={id} />}
                    {chosen === "lineage" && <Lineage id={id} />}
                    {chosen === "raw" && <Json value={shown} label="the job" />}
                  </div>
                </section>
              </div>
              <div class="stack">
                <Card title="Arguments">
                  <Json value={shown.args} label="the arguments" />
                </Card>
                {shown.result !== undefined && (
                  <Card title="Result">
                    <Json value={shown.result} label="the result" />
                  </Card>
                )}
                <Card title="Details">
                  <Details job={shown} />
                </Card>
                {!FINAL.has(shown.state) && reasons.data && <Waiting of={reasons.data} />}
              </div>
            </div>
          </Page>
        );
      }}
    </Shown>
  );
}
