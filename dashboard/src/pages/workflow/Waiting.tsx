/** Approvals and answers that a workflow waits for. */
import { useState } from "preact/hooks";
import { accepted, client, type Schemas } from "../../api/client";
import { useMay } from "../../api/session";
import { useData } from "../../api/use";
import { titleOf } from "../../graph/model";
import { Dialog, useDialogs } from "../../ui/dialogs";
import { Button, Card, Shown } from "../../ui/parts";
import { type JsonSchema, SchemaForm } from "../../ui/schema-form";
import { type Info, readSteps, type Row } from "./read";

/** The steps that wait for a person, with what the person can do. */
export function Waiting({ workflow, reload }: { workflow: Info; reload: () => void }) {
  const waits = workflow.waiting_for ?? [];
  const gates = useData(waits.includes("gate") ? `gates ${workflow.id}` : null, () => readSteps(workflow.id, { state: "blocked" }), {
    kinds: ["workflow"],
    id: workflow.id,
  });
  const held = useData(
    waits.includes("form") || waits.includes("suspension") ? `forms ${workflow.id}` : null,
    async () => (await readSteps(workflow.id, { held: "true" })).steps,
    { kinds: ["workflow", "job"], id: workflow.id },
  );
  if (!gates.data?.steps.length && !held.data?.length) return null;
  return (
    <Card title="Waits for somebody" isBare>
      <ul class="findings">
        {gates.data?.steps.map((step) => <Gate key={step.path} id={workflow.id} step={step} reload={reload} />)}
        {held.data?.map((step) => <Suspended key={step.path} id={workflow.id} step={step} reload={reload} />)}
      </ul>
    </Card>
  );
}

function Gate({ id, step, reload }: { id: string; step: Row; reload: () => void }) {
  const may = useMay();
  const { act } = useDialogs();
  const review = async (action: "approve" | "reject"): Promise<void> => {
    await act(
      async (notes) => {
        await accepted(
          client.POST("/ojs/v1/workflows/{id}/steps/{step}/review", {
            params: { path: { id, step: step.path } },
            body: { action, notes: notes || null },
          }),
        );
        return action === "approve" ? `${step.path} was approved.` : `${step.path} was rejected.`;
      },
      {
        title: action === "approve" ? `Approve ${step.path}?` : `Reject ${step.path}?`,
        text: action === "approve" ? "The steps behind it start." : "The step fails, and what depends on it does not run.",
        action: action === "approve" ? "Approve step" : "Reject step",
        isDangerous: action === "reject",
        field: { label: "Notes, for others" },
      },
    );
    reload();
  };
  return (
    <li>
      <span>
        <b>{titleOf(step)}</b> waits for an approval.
      </span>
      {may("admin") && (
        <span class="filters" style={{ marginLeft: "auto" }}>
          <Button isSmall kind="main" icon="check" onClick={() => void review("approve")}>
            Approve step
          </Button>
          <Button isSmall kind="danger" icon="cross" onClick={() => void review("reject")}>
            Reject step
          </Button>
        </span>
      )}
    </li>
  );
}

function Suspended({ id, step, reload }: { id: string; step: Row; reload: () => void }) {
  const may = useMay();
  const { tell } = useDialogs();
  const [isOpen, setOpen] = useState(false);
  const jobId = step.job_id ?? "";
  const job = useData(isOpen && jobId ? `waiting job ${jobId}` : null, () =>
    accepted(client.GET("/ojs/v1/jobs/{id}", { params: { path: { id: jobId } } })),
  );
  const wait = (job.data?.job as { ojster_wait?: { form?: JsonSchema } } | undefined)?.ojster_wait;
  const send = async (result: unknown): Promise<void> => {
    const body = { result, step: step.path } as unknown as Schemas["ResumeBody"];
    await accepted(client.POST("/ojs/v1/workflows/{id}/resume", { params: { path: { id } }, body }));
    setOpen(false);
    tell(`${step.path} got the answer.`);
    reload();
  };
  return (
    <li>
      <span>
        <b>{titleOf(step)}</b> waits for an answer.
      </span>
      {may("cancel") && (
        <span style={{ marginLeft: "auto" }}>
          <Button isSmall kind="main" onClick={() => setOpen(true)}>
            Answer step
          </Button>
        </span>
      )}
      {isOpen && (
        <Dialog label={`Answer ${step.path}`} close={() => setOpen(false)}>
          <Shown of={job}>
            {() => <SchemaForm schema={wait?.form ?? { title: "Result", description: "Handed to the workflow, as JSON." }} action="Send answer" send={send} close={() => setOpen(false)} />}
          </Shown>
          {!job.data && (
            <div class="inside buttons">
              <Button onClick={() => setOpen(false)}>Close form</Button>
            </div>
          )}
        </Dialog>
      )}
    </li>
  );
}
