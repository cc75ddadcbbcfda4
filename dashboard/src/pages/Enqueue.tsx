/** What those see who may enqueue jobs and read none, such as the tokens of producers. */
import { useState } from "preact/hooks";
import { useMay } from "../api/session";
import { Button, Empty, Page } from "../ui/parts";
import { NewJobDialog } from "./job/NewJob";

export function EnqueuePage() {
  const may = useMay();
  const [isMaking, setMaking] = useState(false);
  return (
    <Page
      title="Enqueue jobs"
      actions={
        may("enqueue") && (
          <Button icon="plus" kind="main" onClick={() => setMaking(true)}>
            New job
          </Button>
        )
      }
    >
      {isMaking && <NewJobDialog close={() => setMaking(false)} />}
      <Empty title={may("enqueue") ? "Your token enqueues jobs, and reads none" : "Your token reads nothing here"}>
        To see jobs, queues and workflows, ask an owner for a token with the role viewer.
      </Empty>
    </Page>
  );
}
