/** Forks: a workflow runs again from a step on, as a new one. What that would do is shown before. */
import type { ComponentChildren } from "preact";
import { useState } from "preact/hooks";
import { Link, useLocation } from "wouter-preact";
import { accepted, client, query, type Schemas } from "../../api/client";
import { useData } from "../../api/use";
import { Dialog, useDialogs } from "../../ui/dialogs";
import { many, tail } from "../../ui/format";
import { exactly, valueIn } from "../../ui/json-text";
import { Button, FormEnd, Shown } from "../../ui/parts";
import { useSending } from "../../ui/sending";
import { nameOf } from "../Workflows";

type Info = Schemas["WorkflowInfo"];
type Preview = Schemas["ForkPreviewAnswer"];
/** What becomes of the step: it runs as before, with other arguments, or not at all because its result is given. */
type Mode = "same" | "args" | "result";

/** Whether a workflow can be forked: one that has ended, and a flow at any time. */
export const canFork = (workflow: Info): boolean => workflow.kind === "flow" || workflow.finished === true;

export function ForkDialog(props: { workflow: Info; step: string | null; jobId?: string | null; close: () => void }) {
  const { workflow, step, jobId } = props;
  const path = { id: workflow.id };
  const preview = useData(`fork ${workflow.id} ${step ?? ""}`, () =>
    accepted(client.GET("/ojs/v1/workflows/{id}/fork-preview", { params: { path, query: query({ from_step: step }) } })),
  );
  const job = useData(jobId ? `input of ${jobId}` : null, () => {
    const read = client.GET("/ojs/v1/jobs/{id}", { params: { path: { id: jobId ?? "" } }, parseAs: "text" });
    return exactly<Schemas["JobAnswer"]>(read).then((one) => one.job);
  });
  const isReady = !jobId || job.data !== undefined || job.error !== undefined;
  const title = step === null ? `Fork ${nameOf(workflow)} from its start` : `Fork ${nameOf(workflow)} from ${step}`;
  return (
    <Dialog label={title} close={props.close}>
      <div class="inside">
        <h2>{title}</h2>
        <Shown of={preview}>{(data) => (isReady ? <ForkForm {...props} preview={data} args={job.data?.args as unknown[] | undefined} /> : null)}</Shown>
        {preview.data === undefined && (
          <div class="buttons">
            <Button onClick={props.close}>Close</Button>
          </div>
        )}
      </div>
    </Dialog>
  );
}

const isEncoded = (args: unknown[] | undefined): boolean => (args?.[0] as { ojs_encoded?: boolean } | null | undefined)?.ojs_encoded === true;

function parsed(text: string): unknown {
  try {
    return valueIn(text);
  } catch (error) {
    throw error instanceof SyntaxError ? new Error(`It is no JSON: ${error.message}`) : error;
  }
}

/** The members of the request that say what becomes of the step. */
function inputOf(mode: Mode, text: string): { args?: unknown[]; result?: unknown } {
  if (mode === "same") return {};
  const value = parsed(text);
  if (mode === "result") return { result: value };
  if (!Array.isArray(value)) throw new Error("The arguments are no JSON list. Write them between [ and ].");
  return { args: value };
}

function ForkForm(props: { workflow: Info; step: string | null; preview: Preview; args: unknown[] | undefined; close: () => void }) {
  const { workflow, step, preview } = props;
  const [, go] = useLocation();
  const { tell } = useDialogs();
  const [mode, setMode] = useState<Mode>("same");
  const [text, setText] = useState("");
  const [problem, setProblem] = useState("");
  const { isSending, once, isOpen } = useSending();
  const what = step === null ? "the flow" : "the step";
  const known = props.args && !isEncoded(props.args) ? JSON.stringify(props.args, null, 2) : "";
  const choose = (next: Mode): void => {
    setMode(next);
    setText(next === "args" ? known : "");
    setProblem("");
  };
  const fork = async (): Promise<void> => {
    try {
      // Arguments that nobody has changed are not sent: the server has them.
      const input = mode === "args" && known && text === known ? {} : inputOf(mode, text);
      const body = { ...(step === null ? {} : { from_step: step }), ...input } as unknown as Schemas["ForkBody"];
      const made = await accepted(client.POST("/ojs/v1/workflows/{id}/fork", { params: { path: { id: workflow.id } }, body }));
      if (isOpen()) {
        props.close();
        go(`/workflows/${made.workflow.id}`);
      }
      tell("The workflow runs again as a new one.");
    } catch (error) {
      setProblem((error as Error).message);
    }
  };
  // A step of a branch or a compensation is not among those that are counted.
  const isCounted = step !== null && preview.again.includes(step);
  const again = preview.again_count - (mode === "result" && isCounted ? 1 : 0);
  return (
    <form
      style={{ padding: 0 }}
      onSubmit={(event) => {
        event.preventDefault();
        void once(fork);
      }}
    >
      <p>
        {many(again, "step")} {workflow.kind === "flow" ? "were asked for since, and run again if its function asks for them" : "run again"}, with their effects.{" "}
        {many(preview.kept_count, "step")} keep their results. This workflow stays as it is.
      </p>
      {preview.again.length > 0 && (
        <details open={preview.again.length <= 12}>
          <summary>Steps that run again</summary>
          <ul class="steps-again" tabIndex={0} aria-label="Steps that run again">
            {preview.again.map((one) => (
              <li key={one} class="mono">
                {one}
                {mode === "result" && one === step && <span class="quiet"> (not: its result is given)</span>}
              </li>
            ))}
          </ul>
          {preview.again_count > preview.again.length && <p class="quiet">and {many(preview.again_count - preview.again.length, "more step")}</p>}
        </details>
      )}
      {(preview.takes_args || preview.takes_result) && (
        <label class="field">
          <span>Input of {what}</span>
          <select class="input" value={mode} onChange={(event) => choose(event.currentTarget.value as Mode)}>
            <option value="same">As before</option>
            {preview.takes_args && <option value="args">Other arguments</option>}
            {preview.takes_result && <option value="result">It does not run, and has this result</option>}
          </select>
        </label>
      )}
      {mode !== "same" && (
        <label class="field">
          <span>{mode === "args" ? "Arguments, as a JSON list" : "Result, as JSON"}</span>
          <textarea
            class="input mono"
            rows={Math.min(12, text.split("\n").length + 1)}
            value={text}
            aria-invalid={problem ? true : undefined}
            onInput={(event) => setText(event.currentTarget.value)}
          />
          {mode === "args" && isEncoded(props.args) && <small>The ones that it had are encoded. These are stored as they are typed.</small>}
        </label>
      )}
      <FormEnd problem={problem} action="Fork workflow" isSending={isSending} close={props.close} />
    </form>
  );
}

const RunLink = ({ id, children }: { id: string; children?: ComponentChildren }) => (
  <Link href={`/workflows/${id}`} class="mono">
    {children ?? `…${tail(id)}`}
  </Link>
);

/** The workflow from which one was forked, and those that were forked from it. */
export function Forks({ workflow }: { workflow: Info }) {
  const forks = workflow.forks ?? [];
  if (!workflow.forked_from && !forks.length) return null;
  return (
    <ul class="forks quiet" aria-label="Forks">
      {workflow.forked_from && (
        <li>
          Forked from <RunLink id={workflow.forked_from} /> {workflow.forked_step ? `at ${workflow.forked_step}` : "at its start"}
        </li>
      )}
      {forks.length > 0 && (
        <li>
          Forked as{" "}
          {forks.map((id, place) => (
            <span key={id}>
              {place > 0 && ", "}
              <RunLink id={id} />
            </span>
          ))}
        </li>
      )}
    </ul>
  );
}
