/** What can be done with a job. */
import { useState } from "preact/hooks";
import { useLocation } from "wouter-preact";
import { accepted, client, type Schemas } from "../../api/client";
import { useMay } from "../../api/session";
import { useDialogs } from "../../ui/dialogs";
import { exactly } from "../../ui/json-text";
import { Button } from "../../ui/parts";
import { FINAL } from "../../ui/states";
import { type Job, steer } from "../Jobs";
import { NewJobDialog } from "./NewJob";

export function Actions({ job, reload }: { job: Job; reload: () => void }) {
  const may = useMay();
  const [, go] = useLocation();
  const { act } = useDialogs();
  const run = async (action: "retry" | "cancel" | "delete"): Promise<void> => {
    const questions = {
      retry: undefined,
      cancel: { title: "Cancel this job?", text: "If it runs, its worker is asked to stop it. What it has done stays done.", action: "Cancel this job" },
      delete: { title: "Delete this job?", text: "Its arguments, result and errors are lost. This cannot be undone.", action: "Delete this job" },
    };
    const question = questions[action] && { ...questions[action], isDangerous: true };
    if (await act(() => steer(action, [job.id]), question)) {
      if (action === "delete") return go("/jobs");
    }
    reload(); // also after a refusal: the job is not as it is shown
  };
  const activate = async (): Promise<void> => {
    await act(async () => {
      await accepted(client.POST("/ojs/v1/jobs/{id}/activate", { params: { path: { id: job.id } }, body: {} }));
      return "The job may run now.";
    });
    reload();
  };
  const copy = async (): Promise<void> => {
    await act(
      async () => {
        const read = client.GET("/ojs/v1/jobs/{id}", { params: { path: { id: job.id } }, parseAs: "text" });
        const { args, meta } = (await exactly<Schemas["JobAnswer"]>(read)).job as Job;
        const body = { type: job.type, args, meta, parent_id: job.id, options: { queue: job.queue, priority: job.priority } };
        const made = await accepted(client.POST("/ojs/v1/jobs", { body: body as unknown as Schemas["EnqueueBody"] }));
        if (made.job) go(`/jobs/${made.job.id}`);
        return "A copy was enqueued.";
      },
      { title: "Run a copy?", text: "A new job with the same type, arguments and queue is enqueued.", action: "Enqueue copy" },
    );
  };
  const isFinal = FINAL.has(job.state);
  const [isEditing, setEditing] = useState(false);
  return (
    <>
      {may("cancel") && job.state === "pending" && (
        <Button icon="play" kind="main" onClick={() => void activate()}>
          Let job run
        </Button>
      )}
      {may("cancel") && (job.state === "discarded" || job.state === "retryable") && (
        <Button icon="retry" kind="main" onClick={() => void run("retry")}>
          Retry job
        </Button>
      )}
      {may("enqueue") && (
        <>
          <Button icon="copy" onClick={() => void copy()}>
            Run a copy
          </Button>
          <Button onClick={() => setEditing(true)}>Run with other arguments</Button>
        </>
      )}
      {isEditing && <NewJobDialog from={job} close={() => setEditing(false)} />}
      {may("cancel") && !isFinal && (
        <Button icon="stop" kind="danger" onClick={() => void run("cancel")}>
          Cancel job
        </Button>
      )}
      {may("admin") && isFinal && (
        <Button icon="trash" kind="danger" onClick={() => void run("delete")}>
          Delete job
        </Button>
      )}
    </>
  );
}
