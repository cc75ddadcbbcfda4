/** Two runs of a workflow, step by step. */
import { useState } from "preact/hooks";
import { Link } from "wouter-preact";
import { useData } from "../../api/use";
import { runTime, waitTime } from "../../graph/model";
import { duration, many, number } from "../../ui/format";
import { Card, Page, Shown, Table, Turn } from "../../ui/parts";
import { State } from "../../ui/states";
import { PAGE, readAll, type Row, ROWS, shownTook } from "./read";

interface Pair {
  path: string;
  one?: Row;
  other?: Row;
}

const took = (row: Row | undefined): number | null => (row?.completed_at ? runTime(row) : null);
const waited = (row: Row | undefined): number | null => (row?.completed_at ? waitTime(row) : null);

export function ComparePage({ id, other }: { id: string; other: string }) {
  const [done, setDone] = useState(0);
  const [shownPage, setShownPage] = useState(0);
  const both = useData(`compare ${id} ${other}`, () => {
    setDone(0);
    const tell = (number_: number): void => setDone((known) => known + number_);
    return Promise.all([readAll(id, tell), readAll(other, tell)]);
  });
  return (
    <Page
      title="Two runs"
      sub={
        <>
          <Link href={`/workflows/${id}`} class="mono">…{id.slice(-12)}</Link> and{" "}
          <Link href={`/workflows/${other}`} class="mono">…{other.slice(-12)}</Link>, step by step. What differs most comes first.
        </>
      }
    >
      <Card isBare>
        {both.isLoading && done > ROWS && <div class="more">{number(done)} steps were read.</div>}
        <Shown of={both} rows={8}>
          {([first, second]) => {
            const pairs = new Map<string, Pair>();
            for (const row of first) pairs.set(row.path, { path: row.path, one: row });
            for (const row of second) pairs.set(row.path, { ...(pairs.get(row.path) ?? { path: row.path }), other: row });
            const weight = (pair: Pair): number =>
              (pair.one?.state !== pair.other?.state ? 1e12 : 0) + Math.abs((took(pair.one) ?? 0) - (took(pair.other) ?? 0));
            const all = [...pairs.values()].sort((a, b) => weight(b) - weight(a));
            const rows = all.slice(shownPage * PAGE, (shownPage + 1) * PAGE);
            return (
              <>
              <Table<Pair>
                label="Steps of both runs"
                rows={rows}
                keyOf={(pair) => pair.path}
                columns={[
                  { label: "Step", className: "grow", cell: (pair) => <b>{pair.path}</b> },
                  { label: "First", cell: (pair) => (pair.one ? <State state={pair.one.state} /> : <span class="quiet">none</span>) },
                  { label: "Second", cell: (pair) => (pair.other ? <State state={pair.other.state} /> : <span class="quiet">none</span>) },
                  { label: "First waited", className: "num wide", cell: (pair) => shownTook(waited(pair.one)) },
                  { label: "Second waited", className: "num wide", cell: (pair) => shownTook(waited(pair.other)) },
                  { label: "First ran", className: "num", cell: (pair) => shownTook(took(pair.one)) },
                  { label: "Second ran", className: "num", cell: (pair) => shownTook(took(pair.other)) },
                  {
                    label: "Difference",
                    className: "num",
                    cell: (pair) => {
                      const [a, b] = [took(pair.one), took(pair.other)];
                      return a === null || b === null ? "–" : `${b >= a ? "+" : "−"}${duration(Math.abs(b - a))}`;
                    },
                  },
                ]}
              />
              {all.length > PAGE && (
                <div class="more">
                  <span>
                    {number(shownPage * PAGE + 1)} to {number(shownPage * PAGE + rows.length)} of {many(all.length, "step")}
                  </span>
                  <Turn
                    newer={shownPage ? () => setShownPage(shownPage - 1) : undefined}
                    older={(shownPage + 1) * PAGE < all.length ? () => setShownPage(shownPage + 1) : undefined}
                    labels={["Greater differences", "Smaller differences"]}
                  />
                </div>
              )}
              </>
            );
          }}
        </Shown>
      </Card>
    </Page>
  );
}
