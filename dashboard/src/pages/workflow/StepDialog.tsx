/** One step: its job, its error, its reviews, and what can be done with it. */
import { accepted, client, type Schemas } from "../../api/client";
import { useMay } from "../../api/session";
import { useData } from "../../api/use";
import { ASKED, runTime, spansOf, titleOf, waitTime } from "../../graph/model";
import { Dialog, useDialogs } from "../../ui/dialogs";
import { duration, exact, Time } from "../../ui/format";
import { Failure } from "../../ui/failure";
import { Json, Long } from "../../ui/json";
import { Button, Facts, JobLink } from "../../ui/parts";
import { Line } from "../../ui/plain";
import { State } from "../../ui/states";
import { type Row, shownTook } from "./read";

/** A step; `fork`: begins a fork from it, if its workflow can be forked. */
export function StepDialog(props: { id: string; step: Row; close: () => void; reload: () => void; fork?: () => void }) {
  const { id, step } = props;
  const may = useMay();
  const { act } = useDialogs();
  const jobId = step.job_id;
  const { stopped } = spansOf(step);
  const isAsked = step.kind in ASKED; // it has no job, and only its flow can give it up
  const job = useData(jobId ? `job ${jobId}` : null, () =>
    accepted(client.GET("/ojs/v1/jobs/{id}", { params: { path: { id: jobId ?? "" } } })).then((found) => found.job),
  );
  const change = async (action: "retry" | "cancel"): Promise<void> => {
    const path = { params: { path: { id, step: step.path } } };
    const question = action === "cancel" && {
      title: `Cancel ${titleOf(step)}?`,
      text: "If it runs, its worker is asked to stop it. Steps that need it do not run.",
      action: "Cancel step",
      isDangerous: true,
    };
    const isDone = await act(async () => {
      await accepted(
        action === "retry"
          ? client.POST("/ojs/v1/workflows/{id}/steps/{step}/retry", path)
          : client.POST("/ojs/v1/workflows/{id}/steps/{step}/cancel", path),
      );
      return action === "retry" ? `${step.path} runs again.` : `${step.path} was cancelled.`;
    }, question || undefined);
    if (!isDone) return;
    props.reload();
    props.close();
  };
  return (
    <Dialog label={`The step ${step.path}`} close={props.close}>
      <div class="inside">
        <div class="head">
          <h2>{step.path}</h2>
          <State state={step.state} />
        </div>
        <Facts
          facts={[
            ["Type", step.type],
            ["Queue", step.queue],
            ["Attempt", step.attempt ? String(step.attempt) : null],
            ["Started", step.started_at && <Time at={step.started_at} />],
            ["Waited", waitTime(step) === null ? null : shownTook(waitTime(step))],
            ["Ran", runTime(step) === null ? null : shownTook(runTime(step))],
            ["Stopped for", stopped && duration(stopped[1] - stopped[0])],
            ["Job", jobId && <JobLink id={jobId} />],
          ]}
        />
        {step.because && (
          <p class="note">
            <Line text={step.because.message} /> {step.because.steps?.length ? <b>{step.because.steps.join(", ")}</b> : null}
          </p>
        )}
        <Reviews reviews={step.reviews ?? []} />
        {step.error !== undefined && !step.because && (
          <Failure error={step.error as object}>
            <details>
              <summary>All of it, as JSON</summary>
              <Json value={step.error} label="the error" />
            </details>
          </Failure>
        )}
        {job.data && <Json value={job.data.args} label="its inputs" />}
        {job.data?.result !== undefined && <Json value={job.data.result} label="its output" />}
        <div class="buttons">
          {may("cancel") && props.fork && step.kind !== "sleep" && step.kind !== "update" && (
            <Button icon="branch" onClick={props.fork}>
              Fork from this step
            </Button>
          )}
          {may("cancel") && !isAsked && (step.state === "failed" || step.state === "cancelled") && (
            <Button icon="retry" onClick={() => void change("retry")}>
              Run step again
            </Button>
          )}
          {may("cancel") && !isAsked && ["waiting", "pending", "active", "blocked"].includes(step.state) && (
            <Button icon="stop" kind="danger" onClick={() => void change("cancel")}>
              Cancel step
            </Button>
          )}
          <Button kind="main" onClick={props.close}>
            Close
          </Button>
        </div>
      </div>
    </Dialog>
  );
}

const REVIEWED: Record<string, string> = { approve: "approved it", reject: "rejected it", answer: "answered", decline: "declined to answer" };

/** Who has approved, rejected or answered a step, when, and with which words. */
function Reviews({ reviews }: { reviews: Schemas["ReviewInfo"][] }) {
  if (!reviews.length) return null;
  return (
    <ol class="log" aria-label="Reviews and answers">
      {reviews.map((review) => (
        <li key={review.at}>
          <span class="quiet">{exact(review.at)}</span>
          <span>
            <b>{review.author ?? "Somebody without a token"}</b> {REVIEWED[review.action ?? ""] ?? "made a note"}
            {review.notes && (
              <>
                : <Long text={review.notes} />
              </>
            )}
            {review.answer !== undefined && <Json value={review.answer} label="the answer" />}
          </span>
        </li>
      ))}
    </ol>
  );
}
