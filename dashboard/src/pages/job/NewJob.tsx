/** A new job of a known type, or one that runs again with other arguments: a form from its schema or signature, or JSON. */
import { useState } from "preact/hooks";
import { useLocation } from "wouter-preact";
import { accepted, client, query, type Schemas } from "../../api/client";
import { useMay } from "../../api/session";
import { useData } from "../../api/use";
import { ArgumentsForm, isEncoded } from "../../ui/arguments-form";
import { Dialog, useDialogs } from "../../ui/dialogs";
import { exactly } from "../../ui/json-text";
import { FormEnd, Shown } from "../../ui/parts";
import type { JsonSchema } from "../../ui/schema-form";
import { useSending } from "../../ui/sending";
import type { Job } from "../Jobs";

/** Members of metadata that say how codecs have encoded the arguments: typed ones are plain. */
const ENCODED = new Set(["ojs.codec.encodings", "ojs.codec.key_id", "ojs.encryption.encrypted"]);

/** The metadata of a job for other arguments. */
const metaFor = (from: Job, args: unknown[]): unknown =>
  isEncoded(args) ? from.meta : Object.fromEntries(Object.entries(from.meta ?? {}).filter(([name]) => !ENCODED.has(name)));

interface Known {
  schema: JsonSchema | null;
  args: unknown[];
  queue: string | null;
}

/** What is known of the arguments of a type: its registered schema, or what its workers announce; and those of a job, by default the last one. */
async function readKnown(type: string, from?: string): Promise<Known> {
  const [registered, announced, last, shown] = await Promise.all([
    accepted(client.GET("/ojs/v1/schemas", { params: { query: query({ limit: 200 }) } })),
    accepted(client.GET("/ojs/v1/signatures", { params: { query: { type } } })),
    from ? null : exactly<Schemas["JobsAnswer"]>(client.GET("/ojs/v1/jobs", { params: { query: { type, limit: "1" } }, parseAs: "text" })),
    from ? exactly<Schemas["JobAnswer"]>(client.GET("/ojs/v1/jobs/{id}", { params: { path: { id: from } }, parseAs: "text" })) : null,
  ]);
  const job = (shown?.job ?? last?.jobs[0]) as Job | undefined;
  const schema = registered.schemas.find((one) => one.type === type)?.schema ?? announced.signatures[0]?.schema ?? null;
  return { schema: schema as JsonSchema | null, args: (job?.args as unknown[] | undefined) ?? [], queue: job?.queue ?? null };
}

export function NewJobDialog({ from, types, close }: { from?: Job; types?: string[]; close: () => void }) {
  const [type, setType] = useState(from?.type ?? "");
  const [isChosen, setChosen] = useState(from !== undefined);
  const mayRead = useMay()("inspect");
  const announced = useData(from || !mayRead ? null : "signatures", () => accepted(client.GET("/ojs/v1/signatures")));
  const known = useData(isChosen ? `known ${type} ${from?.id ?? ""}` : null, () =>
    mayRead ? readKnown(type, from?.id) : Promise.resolve({ schema: null, args: [], queue: null }),
  );
  const handled = (announced.data?.signatures ?? []).filter((one) => !one.is_flow).map((one) => one.type);
  return (
    <Dialog label={from ? "Run again with other arguments" : "New job"} close={close}>
      {!isChosen && (
        <form
          onSubmit={(event) => {
            event.preventDefault();
            if (type) setChosen(true);
          }}
        >
          <h2>New job</h2>
          <label class="field">
            <span>Type</span>
            <input class="input" list="known-types" required value={type} onInput={(event) => setType(event.currentTarget.value.trim())} />
            {mayRead && <small>The form has the arguments of types that workers handle, that have a schema, or that have run before.</small>}
          </label>
          <datalist id="known-types">
            {[...new Set([...(types ?? []), ...handled])].sort().map((one) => (
              <option key={one} value={one} />
            ))}
          </datalist>
          <FormEnd action="Choose type" isSending={false} close={close} />
        </form>
      )}
      {isChosen && (
        <Shown of={known} rows={4}>
          {({ schema, args, queue }) => (
            <Arguments type={type} schema={schema} args={args} queue={queue} from={from} close={close} />
          )}
        </Shown>
      )}
    </Dialog>
  );
}

function Arguments(props: Known & { type: string; from?: Job; close: () => void }) {
  const { from, type, close } = props;
  const [, go] = useLocation();
  const { tell } = useDialogs();
  const mayRead = useMay()("inspect");
  const [queue, setQueue] = useState(props.queue ?? "");
  const { isOpen } = useSending();
  const enqueue = async (args: unknown[]): Promise<void> => {
    // A copy is linked to the job that it repeats, which its relatives show.
    const copied = from ? { meta: metaFor(from, args), parent_id: from.id } : {};
    const options = { ...(queue ? { queue } : {}), ...(from ? { priority: from.priority } : {}) };
    const made = await accepted(client.POST("/ojs/v1/jobs", { body: { type, args, ...copied, options } as unknown as Schemas["EnqueueBody"] }));
    const isShown = isOpen();
    if (isShown) close();
    if (!made.job) return tell("The job was dropped before it was enqueued.");
    if (from) {
      const note = { note: `It runs again with other arguments, as the job ${made.job.id}.` } as unknown as Schemas["NoteBody"];
      // Who may not add notes may run it again all the same.
      await accepted(client.POST("/ojs/v1/jobs/{id}/info", { params: { path: { id: from.id } }, body: note })).catch(() => undefined);
    }
    if (!mayRead) return tell(`The job ${made.job.id} was enqueued.`);
    if (isShown) go(`/jobs/${made.job.id}`);
    tell("The job was enqueued.");
  };
  return (
    <ArgumentsForm schema={props.schema} title={from ? `Run ${type} again` : `New ${type}`} action="Enqueue job" args={props.args} send={enqueue} close={close}>
      <label class="field">
        <span>Queue</span>
        <input class="input" value={queue} placeholder="That of its type, or default" onInput={(event) => setQueue(event.currentTarget.value.trim())} />
      </label>
    </ArgumentsForm>
  );
}
