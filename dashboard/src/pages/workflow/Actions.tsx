/** What can be done with a workflow. */
import { accepted, client } from "../../api/client";
import { useMay } from "../../api/session";
import { type Question, useDialogs } from "../../ui/dialogs";
import { many } from "../../ui/format";
import { Button } from "../../ui/parts";
import { jobsOf, nameOf } from "../Workflows";
import type { Info } from "./read";

const FINAL = new Set(["completed", "failed", "cancelled", "compensated", "retried"]);

export function Actions({ workflow, reload }: { workflow: Info; reload: () => void }) {
  const may = useMay();
  const { act } = useDialogs();
  const path = { params: { path: { id: workflow.id } } };
  const hold = async (isHeld: boolean): Promise<void> => {
    const set = (held: boolean): Promise<unknown> =>
      accepted(held ? client.POST("/ojs/v1/workflows/{id}/hold", path) : client.POST("/ojs/v1/workflows/{id}/release", path)).then(reload);
    await act(
      async () => {
        await set(!isHeld);
        return isHeld ? "Its steps start again." : "No step starts until you release it. Those that run, end.";
      },
      undefined,
      () => set(isHeld),
    );
  };
  const run = async (call: () => Promise<{ data?: unknown; error?: unknown; response: Response }>, done: string, question: Question): Promise<void> => {
    await act(async () => {
      await accepted(call());
      return done;
    }, question);
    reload();
  };
  const cancel = (): Promise<void> =>
    run(() => client.POST("/ojs/v1/workflows/{id}/cancel", path), "The workflow was cancelled.", {
      title: `Cancel ${nameOf(workflow)}?`,
      text: `${many(jobsOf(workflow).of - jobsOf(workflow).done, "job")} of it did not complete yet. Those that wait never start; those that run are asked to stop.`,
      action: "Cancel this workflow",
      isDangerous: true,
    });
  const terminate = (): Promise<void> =>
    run(() => client.POST("/ojs/v1/workflows/{id}/terminate", path), "The workflow was terminated.", {
      title: `Terminate ${nameOf(workflow)}?`,
      text: "It ends without cleaning up: what runs is stopped, and nothing is compensated or undone.",
      action: "Terminate this workflow",
      isDangerous: true,
    });
  const retry = (): Promise<void> =>
    run(() => client.POST("/ojs/v1/workflows/{id}/retry", path), "What had failed runs again.", {
      title: "Retry failed steps?",
      text: "Steps that failed or were cancelled run again. Those that completed keep their results.",
      action: "Retry failed steps",
    });
  if (!may("cancel")) return null;
  const isCancelled = workflow.state === "cancelled" || workflow.state === "cancelling";
  const end = (
    <Button icon="cross" kind="danger" onClick={() => void terminate()}>
      Terminate workflow
    </Button>
  );
  if (isCancelled && !workflow.finished) return end;
  return FINAL.has(workflow.state) ? (
    workflow.state === "completed" ? null : (
      <Button icon="retry" kind="main" onClick={() => void retry()}>
        Retry failed steps
      </Button>
    )
  ) : (
    <>
      <Button icon={workflow.held ? "play" : "pause"} onClick={() => void hold(workflow.held ?? false)}>
        {workflow.held ? "Release workflow" : "Hold workflow"}
      </Button>
      <Button icon="stop" kind="danger" onClick={() => void cancel()}>
        Cancel workflow
      </Button>
      {end}
    </>
  );
}
