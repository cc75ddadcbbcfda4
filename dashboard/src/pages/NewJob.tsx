/** A new job of a known type, or one that runs again with other arguments: a form from its schema, or JSON. */
import { useState } from "preact/hooks";
import { useLocation } from "wouter-preact";
import { accepted, client, query, type Schemas } from "../api/client";
import { useData } from "../api/use";
import { Dialog, useDialogs } from "../ui/dialogs";
import { valueIn } from "../ui/json-text";
import { Button, Shown } from "../ui/parts";
import { type JsonSchema, SchemaForm } from "../ui/schema-form";
import { useSending } from "../ui/sending";
import type { Job } from "./Jobs";

type ArrayOf = JsonSchema & { items?: JsonSchema | JsonSchema[]; prefixItems?: JsonSchema[]; minItems?: number };

/** The arguments of a type as members of an object, by their place; `null`: its schema does not tell them one by one. */
function membersOf(schema: ArrayOf | null): JsonSchema | null {
  const items = schema?.prefixItems ?? (Array.isArray(schema?.items) ? schema.items : []);
  if (!items.length) return null;
  return {
    type: "object",
    title: schema?.title ?? "Arguments",
    description: schema?.description,
    properties: Object.fromEntries(items.map((item, place) => [String(place), { ...item, title: item.title ?? `Argument ${place + 1}` }])),
    required: items.map((_, place) => String(place)).slice(0, schema?.minItems ?? items.length),
  };
}

/** Members of metadata that say how codecs have encoded the arguments: typed ones are plain. */
const ENCODED = new Set(["ojs.codec.encodings", "ojs.codec.key_id", "ojs.encryption.encrypted"]);

/** The metadata of a job for other arguments. */
function metaFor(from: Job, args: unknown[]): unknown {
  const isEncoded = args.length === 1 && (args[0] as { ojs_encoded?: boolean } | null)?.ojs_encoded === true;
  return isEncoded ? from.meta : Object.fromEntries(Object.entries(from.meta ?? {}).filter(([name]) => !ENCODED.has(name)));
}

/** The registered schema of the arguments of a type, or else those of its last job, as an example. */
async function readKnown(type: string): Promise<{ schema: ArrayOf | null; args: unknown[]; queue: string | null }> {
  const [registered, last] = await Promise.all([
    accepted(client.GET("/ojs/v1/schemas", { params: { query: query({ limit: 200 }) } })),
    accepted(client.GET("/ojs/v1/jobs", { params: { query: { type, limit: "1" } } })),
  ]);
  const job = last.jobs[0];
  const schema = (registered.schemas.find((one) => one.type === type)?.schema ?? null) as ArrayOf | null;
  return { schema, args: (job?.args as unknown[] | undefined) ?? [], queue: job?.queue ?? null };
}

export function NewJobDialog({ from, types, close }: { from?: Job; types?: string[]; close: () => void }) {
  const [type, setType] = useState(from?.type ?? "");
  const [isChosen, setChosen] = useState(from !== undefined);
  const known = useData(isChosen ? `known ${type}` : null, () => readKnown(type));
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
            <small>One that has run before, or that has a schema, comes with its arguments.</small>
          </label>
          <datalist id="known-types">
            {(types ?? []).map((one) => (
              <option key={one} value={one} />
            ))}
          </datalist>
          <div class="buttons">
            <Button onClick={close}>Leave</Button>
            <Button type="submit" kind="main">
              Go on
            </Button>
          </div>
        </form>
      )}
      {isChosen && (
        <Shown of={known} rows={4}>
          {({ schema, args, queue }) => (
            <Arguments type={type} schema={schema} args={from ? (from.args as unknown[]) : args} queue={from?.queue ?? queue} from={from} close={close} />
          )}
        </Shown>
      )}
    </Dialog>
  );
}

function Arguments(props: { type: string; schema: ArrayOf | null; args: unknown[]; queue: string | null; from?: Job; close: () => void }) {
  const { from, type, close } = props;
  const [, go] = useLocation();
  const { tell } = useDialogs();
  const [queue, setQueue] = useState(props.queue ?? "");
  const [text, setText] = useState(JSON.stringify(props.args, null, 2));
  const [problem, setProblem] = useState("");
  const { isSending, once, isOpen } = useSending();
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
    if (isShown) go(`/jobs/${made.job.id}`);
    tell("The job was enqueued.");
  };
  const title = from ? `Run ${type} again` : `New ${type}`;
  const queueField = (
    <label class="field">
      <span>Queue</span>
      <input class="input" value={queue} placeholder="That of its type, or default" onInput={(event) => setQueue(event.currentTarget.value.trim())} />
    </label>
  );
  const members = membersOf(props.schema);
  if (members) {
    return (
      <>
        <div class="inside">{queueField}</div>
        <SchemaForm
          schema={{ ...members, title }}
          action="Enqueue it"
          initial={Object.fromEntries(props.args.map((value, place) => [String(place), value]))}
          send={(value) => {
            const byPlace = value as Record<string, unknown>;
            const length = Math.max(-1, ...Object.keys(byPlace).map(Number)) + 1;
            return enqueue(Array.from({ length }, (_, place) => byPlace[place] ?? null));
          }}
          close={close}
        />
      </>
    );
  }
  const submit = async (): Promise<void> => {
    setProblem("");
    try {
      const args = valueIn(text);
      if (!Array.isArray(args)) throw new Error("The arguments are no JSON list. Write them between [ and ].");
      await enqueue(args as unknown[]);
    } catch (error) {
      setProblem((error as Error).message);
    }
  };
  return (
    <form
      onSubmit={(event) => {
        event.preventDefault();
        void once(submit);
      }}
    >
      <h2>{title}</h2>
      {queueField}
      <label class="field">
        <span>Arguments, as a JSON list</span>
        <textarea
          class="input mono"
          rows={Math.min(14, text.split("\n").length + 1)}
          value={text}
          aria-invalid={problem ? true : undefined}
          onInput={(event) => setText(event.currentTarget.value)}
        />
      </label>
      {problem && (
        <p role="alert" class="wrong">
          {problem}
        </p>
      )}
      <div class="buttons">
        <Button onClick={close}>Leave</Button>
        <Button type="submit" kind="main" disabled={isSending}>
          Enqueue it
        </Button>
      </div>
    </form>
  );
}
