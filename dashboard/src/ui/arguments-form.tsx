/** A form for the arguments of a job or a flow: fields by a schema of the list, or the list as JSON. */
import type { ComponentChildren } from "preact";
import { useState } from "preact/hooks";
import { valueIn } from "./json-text";
import { FormEnd } from "./parts";
import { type JsonSchema, plainSchema, SchemaForm } from "./schema-form";
import { useSending } from "./sending";

interface Props {
  /** A schema of the list; `null`: nothing is known of it. */
  schema: JsonSchema | null;
  title: string;
  action: string;
  /** Arguments to begin with. */
  args: unknown[];
  /** Fields above those of the arguments. */
  children?: ComponentChildren;
  send: (args: unknown[]) => Promise<void>;
  close: () => void;
}

/** The arguments as members of an object, by their place; `null`: the schema does not tell them one by one. */
function membersOf(schema: JsonSchema | null): JsonSchema | null {
  const items = schema?.prefixItems ?? (Array.isArray(schema?.items) ? schema.items : []);
  if (!items.length) return null;
  return {
    type: "object",
    description: schema?.description,
    $defs: schema?.$defs,
    properties: Object.fromEntries(items.map((item, place) => [String(place), { ...item, title: item.title ?? `Argument ${place + 1}` }])),
    minItems: schema?.minItems ?? items.length,
    required: items.flatMap((item, place) => (place < (schema?.minItems ?? items.length) && item.default === undefined ? [String(place)] : [])),
  };
}

/** Whether arguments are of no use to a form: a codec has encoded them. */
export const isEncoded = (args: unknown[]): boolean =>
  args.length === 1 && (args[0] as { ojs_encoded?: boolean } | null)?.ojs_encoded === true;

export function ArgumentsForm(props: Props) {
  const members = membersOf(props.schema);
  if (!members || isEncoded(props.args)) return <ListForm {...props} />;
  const valueAt = (place: number, given: unknown): unknown => {
    const known = plainSchema(members.properties?.[String(place)] ?? {}, members.$defs);
    if (given !== undefined) return given;
    if (known.default !== undefined) return known.default;
    if (known.type === "object" && !known.required?.length) return {};
    throw new Error(`${known.title} has no value here, and it needs one.`);
  };
  return (
    <SchemaForm
      schema={{ ...members, title: props.title }}
      action={props.action}
      initial={Object.fromEntries(props.args.map((value, place) => [String(place), value]))}
      send={(value) => {
        const byPlace = value as Record<string, unknown>;
        const length = Math.max(members.minItems ?? 0, ...Object.keys(byPlace).map((place) => Number(place) + 1));
        return props.send(Array.from({ length }, (_, place) => valueAt(place, byPlace[place])));
      }}
      close={props.close}
    >
      {props.children}
    </SchemaForm>
  );
}

function ListForm(props: Props) {
  const [text, setText] = useState(JSON.stringify(props.args, null, 2));
  const [problem, setProblem] = useState("");
  const { isSending, once } = useSending();
  const submit = async (): Promise<void> => {
    setProblem("");
    try {
      const args = valueIn(text);
      if (!Array.isArray(args)) throw new Error("The arguments are no JSON list. Write them between [ and ].");
      await props.send(args as unknown[]);
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
      <h2>{props.title}</h2>
      {props.children}
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
      <FormEnd problem={problem} action={props.action} isSending={isSending} close={props.close} />
    </form>
  );
}
