/** The lines that a job's handler has logged. */
import { useEffect, useRef } from "preact/hooks";
import { accepted, client, type Schemas } from "../../api/client";
import { useData } from "../../api/use";
import { exact, number } from "../../ui/format";
import { Long } from "../../ui/json";
import { Empty, Shown } from "../../ui/parts";

/** Time between two looks for further lines of a job that is not finished. */
const LINES_MS = 1_000;

/** Lines that a job keeps at most. */
const MAX_LINES = 1_000;

/** What the handler has logged, if its type keeps it; live until the job has finished. */
export function Lines({ id, isOver }: { id: string; isOver: boolean }) {
  const known = useRef<Schemas["LogLine"][]>([]);
  const log = useData(
    `log of ${id}`,
    async () => {
      const query = { after: String(known.current.at(-1)?.number ?? 0) };
      const { lines } = await accepted(client.GET("/ojs/v1/jobs/{id}/logs", { params: { path: { id }, query } }));
      known.current = [...known.current, ...lines].slice(-MAX_LINES);
      return known.current;
    },
    { kinds: ["job"], id },
  );
  const { reload } = log;
  useEffect(() => {
    if (isOver) return;
    const timer = window.setInterval(() => document.hidden || reload(), LINES_MS);
    return () => window.clearInterval(timer);
  }, [id, isOver]);
  return (
    <Shown of={log}>
      {(lines) => {
        const [first] = lines;
        if (!first) return <Empty title="No lines">What a handler logs is kept if its type is declared with keep_logs.</Empty>;
        return (
          <>
            {first.number > 1 && <p class="quiet">{number(first.number - 1)} earlier lines are not kept.</p>}
            <ol class="log lines" aria-label="Lines that the handler has logged">
              {lines.map((line) => (
                <li key={line.number} class={line.level}>
                  <span class="quiet">
                    {exact(line.at)} · attempt {line.attempt}
                  </span>
                  <span>
                    <b>{line.level}</b> <span class="quiet">{line.logger}</span>
                    <Long text={line.message} className="mono" />
                  </span>
                </li>
              ))}
            </ol>
          </>
        );
      }}
    </Shown>
  );
}
