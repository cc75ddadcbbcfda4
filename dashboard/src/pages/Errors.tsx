import { useLocation, useSearch } from "wouter-preact";
import { accepted, client, query, type Schemas } from "../api/client";
import { useMay, useOwnQueues } from "../api/session";
import { useData } from "../api/use";
import { useDialogs } from "../ui/dialogs";
import { compact, many, number, Time } from "../ui/format";
import { Icon } from "../ui/icons";
import { Button, Card, Empty, JobLink, Page, Shown, Spark, Table } from "../ui/parts";
import { Line } from "../ui/plain";
import { foresee, named, noneOf, others, steerAll } from "./Jobs";

type Group = Schemas["FailureGroup"];

/** Whether the error has a name that selects it alone: jobs without one, and patterns, cannot be selected. */
const isNamed = (group: Group): boolean => group.error_type !== "Unknown" && !group.error_type.endsWith("*");

const sumOf = (groups: Group[], what: "discarded" | "retrying"): number => groups.reduce((sum, group) => sum + (group[what] ?? 0), 0);

export function ErrorsPage() {
  const [, go] = useLocation();
  const parameters = new URLSearchParams(useSearch());
  const chosen = { queue: parameters.get("queue"), type: parameters.get("type") };
  const failures = useData(
    `failures ${JSON.stringify(chosen)}`,
    () => accepted(client.GET("/ojs/v1/failures", { params: { query: query(chosen) } })),
    { kinds: ["job"] },
  );
  const may = useMay();
  const own = useOwnQueues();
  const dialogs = useDialogs();
  const { act } = dialogs;
  const change = async (group: Group, action: "retry" | "delete"): Promise<void> => {
    const { type, error_type, pattern } = group;
    // As arrays: a comma in a text would be between two values.
    const queue = chosen.queue ? [chosen.queue] : own;
    const filter = { state: ["discarded"], type: [type], error_type: [error_type], ...(queue.length ? { queue } : {}), error_pattern: pattern };
    const isRetry = action === "retry";
    await act(async () => {
      const foreseen = await foresee(action, filter);
      if (!foreseen.done) return noneOf(action);
      const size = many(foreseen.done, "job");
      const isDone = await act(() => steerAll(dialogs, action, { ...filter, discarded_before: foreseen.as_of }, foreseen.done), {
        title: `${isRetry ? "Retry" : "Delete"} ${type} after ${error_type}?`,
        text: (
          <>
            <p class="clip"><Line text={pattern} /></p>
            <p>
              {isRetry
                ? `${size} of this type gave up with this message, and run again with all their attempts. Fix the cause before.`
                : `${size} of this type gave up with this message, and are deleted with their arguments. This cannot be undone.`}
              {others(action, foreseen)}
            </p>
          </>
        ),
        action: named(action, foreseen.done),
        isDangerous: !isRetry,
        word: isRetry ? undefined : "delete",
      });
      if (isDone) failures.reload();
    });
  };
  return (
    <Page title="Errors" sub="Jobs that gave up, dead letters among them, and jobs that wait for another attempt, by what went wrong.">
      {(chosen.queue ?? chosen.type) && (
        <div class="filters">
          {(["queue", "type"] as const).map(
            (name) =>
              chosen[name] && (
                <button
                  type="button"
                  class="chip"
                  key={name}
                  onClick={() => go(`/errors?${new URLSearchParams(query({ ...chosen, [name]: null }))}`)}
                >
                  {name}: {chosen[name]} <Icon name="cross" />
                  <span class="hidden">Remove</span>
                </button>
              ),
          )}
        </div>
      )}
      <Card isBare>
        <Shown of={failures} rows={8}>
          {(data) => (
            <>
              <Table<Group>
                label="Errors"
                rows={data.groups}
                keyOf={(group) => `${group.type} ${group.error_type} ${group.pattern}`}
                empty={
                  <Empty icon="check" title="Nothing has failed">
                    Dead letters and failed attempts would be here, in groups.
                  </Empty>
                }
                columns={[
                  {
                    label: "Error",
                    className: "grow",
                    cell: (group) => (
                      <>
                        <b><Line text={group.error_type} /></b> <span class="quiet">in</span> {group.type}
                        <span class="sub clip" title={group.message}>
                          <Line text={group.pattern || (group.message ?? "")} />
                        </span>
                      </>
                    ),
                  },
                  { label: "Gave up", className: "num", cell: (group) => compact(group.discarded ?? 0) },
                  { label: "Retrying", className: "num wide", cell: (group) => compact(group.retrying ?? 0) },
                  {
                    label: "Last 24 h",
                    className: "wider",
                    cell: (group) => <Spark values={group.trend ?? []} label={`${number((group.trend ?? []).reduce((sum, one) => sum + one, 0))} in the last 24 hours`} />,
                  },
                  { label: "First", className: "num wider", cell: (group) => <Time at={group.first_at} /> },
                  { label: "Last", className: "num wide", cell: (group) => <Time at={group.last_at} /> },
                  { label: "Example", className: "num wide", cell: (group) => <JobLink id={group.job_id ?? ""} /> },
                  {
                    label: "",
                    className: "num nowrap",
                    cell: (group) =>
                      (group.discarded ?? 0) > 0 && isNamed(group) && (
                        <>
                          {may("cancel") && (
                            <Button isSmall icon="retry" onClick={() => void change(group, "retry")}>
                              {named("retry", group.discarded ?? 0)}
                            </Button>
                          )}{" "}
                          {may("admin") && (
                            <Button isSmall icon="trash" kind="danger" aria-label={`Delete jobs of ${group.type} after ${group.error_type}`} onClick={() => void change(group, "delete")} />
                          )}
                        </>
                      ),
                  },
                ]}
              />
              {data.groups.length > 0 && (
                <div class="more">
                  {many(sumOf(data.groups, "discarded"), "job")} gave up, {number(sumOf(data.groups, "retrying"))} wait for another attempt
                  {data.is_complete ? "" : `, counted among the newest ${number(data.examined)} failures`}.
                </div>
              )}
            </>
          )}
        </Shown>
      </Card>
    </Page>
  );
}
