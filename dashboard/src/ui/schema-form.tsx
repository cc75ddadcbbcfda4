/** A form for a JSON Schema: its simple members as fields, and anything else as JSON. What is wrong is said at its field. */
import type { ComponentChildren } from "preact";
import { useId, useState } from "preact/hooks";
import { ApiError } from "../api/client";
import { unrounded, valueIn } from "./json-text";
import { FormEnd } from "./parts";
import { useSending } from "./sending";

export interface JsonSchema {
  type?: string | string[];
  title?: string;
  description?: string;
  enum?: unknown[];
  default?: unknown;
  properties?: Record<string, JsonSchema>;
  required?: string[];
  format?: string;
  readOnly?: boolean;
  minimum?: number;
  maximum?: number;
  exclusiveMinimum?: number;
  exclusiveMaximum?: number;
  multipleOf?: number;
  minLength?: number;
  maxLength?: number;
  pattern?: string;
  anyOf?: JsonSchema[];
  prefixItems?: JsonSchema[];
  items?: JsonSchema | JsonSchema[] | boolean;
  minItems?: number;
  $ref?: string;
  $defs?: Record<string, JsonSchema>;
}

/** A schema without reference and without `null` as an alternative, with its own title, description and default. */
export function plainSchema(schema: JsonSchema, defs: Record<string, JsonSchema> = {}): JsonSchema {
  const { $ref, anyOf, ...own } = schema;
  const others = anyOf?.filter((one) => one.type !== "null") ?? [];
  const inner = $ref ? defs[$ref.replace("#/$defs/", "")] : others.length === 1 ? others[0] : undefined;
  return inner ? { ...plainSchema(inner, defs), ...own } : schema;
}

/** Objects in objects up to this depth have fields of their own; it ends schemas that contain themselves. */
const MOST_LEVELS = 3;

/** The type of a schema without `null`, which a field that is left empty stands for. */
const typeOf = (schema: JsonSchema): string =>
  Array.isArray(schema.type) ? (schema.type.filter((one) => one !== "null")[0] ?? "null") : String(schema.type);

const isSimple = (schema: JsonSchema): boolean =>
  schema.enum !== undefined || ["string", "number", "integer", "boolean"].includes(typeOf(schema));

/** Choices up to this number are shown side by side, others in a list. */
const MOST_RADIOS = 5;
/** Texts that may be longer than this get several lines. */
const LONG_TEXT = 200;

/** What a server says of an answer that does not match: the message for each member, and the others. */
function problemsOf(error: unknown, members: string[]): [Record<string, string>, string] {
  const said = error instanceof ApiError ? error.details.violations : undefined;
  const violations = Array.isArray(said) ? said.map(String) : [];
  const fields: Record<string, string> = {};
  const rest: string[] = [];
  for (const violation of violations) {
    const [place = "", ...words] = violation.split(": ");
    const text = words.join(": ");
    const member = members.find((name) => place.endsWith(`.${name}`)) ?? members.find((name) => text.startsWith(`"${name}"`));
    if (member === undefined) rest.push(violation);
    else fields[member] = text;
  }
  return [fields, violations.length ? rest.join("; ") : (error as Error).message];
}

export function SchemaForm(props: {
  schema: JsonSchema;
  label?: string;
  action: string;
  /** Values to begin with, by member. */
  initial?: Record<string, unknown>;
  /** Throws what is wrong with the value. */
  send: (value: unknown) => Promise<void>;
  close: () => void;
  /** Fields above those of the schema. */
  children?: ComponentChildren;
}) {
  const { label = "Answer" } = props;
  const defs = props.schema.$defs;
  const schema = plainSchema(props.schema, defs);
  const members = membersOf(schema, defs);
  const isObject = members.length > 0;
  const [values, setValues] = useState<Record<string, unknown>>(() => ({
    ...Object.fromEntries(members.filter(([, one]) => (one.default ?? null) !== null).map(([name, one]) => [name, one.default])),
    ...props.initial,
  }));
  const [text, setText] = useState(schema.default === undefined ? "" : JSON.stringify(schema.default));
  const [problem, setProblem] = useState("");
  const [wrong, setWrong] = useState<Record<string, string>>({});
  const { isSending, once } = useSending();
  const submit = async (): Promise<void> => {
    setProblem("");
    setWrong({});
    try {
      await props.send(isObject ? unrounded(values) : parsed(text, schema));
    } catch (error) {
      const [fields, rest] = problemsOf(error, members.map(([name]) => name));
      setWrong(fields);
      setProblem(rest);
    }
  };
  return (
    <form
      onSubmit={(event) => {
        event.preventDefault();
        void once(submit);
      }}
    >
      <h2>{schema.title ?? "Answer"}</h2>
      {schema.description && <p>{schema.description}</p>}
      {props.children}
      {isObject ? (
        members.map(([name, one]) => (
          <Field
            key={name}
            name={name}
            schema={one}
            defs={defs}
            isRequired={schema.required?.includes(name) ?? false}
            value={values[name]}
            wrong={wrong[name]}
            set={(value) => {
              setValues((known) => withMember(known, name, value));
              setWrong(({ [name]: __, ...left }) => left);
            }}
            mark={(message) => setWrong((known) => ({ ...known, [name]: message }))}
          />
        ))
      ) : (
        <label class="field">
          <span>{isSimple(schema) ? label : `${label}, as JSON`}</span>
          <input class="input" value={text} onInput={(event) => setText(event.currentTarget.value)} />
        </label>
      )}
      <FormEnd problem={problem} action={props.action} isSending={isSending} close={props.close} />
    </form>
  );
}

function parsed(text: string, schema: JsonSchema): unknown {
  if (schema.type === "string") return text;
  try {
    return valueIn(text || "null");
  } catch (error) {
    throw error instanceof SyntaxError ? new Error(`${text} is no JSON.`) : error;
  }
}

/** The members of an object that a form has fields for. */
const membersOf = (schema: JsonSchema, defs?: Record<string, JsonSchema>): [string, JsonSchema][] =>
  Object.entries(schema.properties ?? {})
    .map(([name, one]): [string, JsonSchema] => [name, plainSchema(one, defs)])
    .filter(([, one]) => !one.readOnly);

/** An object with another value of a member; `undefined` takes it away. */
function withMember(object: Record<string, unknown>, name: string, value: unknown): Record<string, unknown> {
  const { [name]: _, ...others } = object;
  return value === undefined ? others : { ...others, [name]: value };
}

interface FieldProps {
  name: string;
  schema: JsonSchema;
  defs?: Record<string, JsonSchema>;
  level?: number;
  isRequired: boolean;
  value: unknown;
  wrong: string | undefined;
  set: (value: unknown) => void;
  /** Says what is wrong with the field. */
  mark: (message: string) => void;
}

/** What a field for a text or a number shows. */
const textOf = (value: unknown): string => (value === undefined ? "" : typeof value === "string" ? value : JSON.stringify(value));

const optional = (label: string, isRequired: boolean): string => (isRequired ? label : `${label}, if you like`);

function Field(props: FieldProps) {
  const { schema, value, set, wrong, isRequired } = props;
  const id = useId();
  const label = schema.title ?? props.name;
  const type = typeOf(schema);
  const after = (
    <>
      {schema.description && <small>{schema.description}</small>}
      {value === undefined && (schema.default ?? null) !== null && <small>Without a value: {JSON.stringify(schema.default)}</small>}
      {wrong && (
        <small id={id} class="wrong" role="alert">
          {wrong}
        </small>
      )}
    </>
  );
  // The browser checks bounds; what it says is shown at the field, not in a bubble that goes away.
  const checked = {
    required: isRequired,
    "aria-invalid": wrong ? true : undefined,
    "aria-describedby": wrong ? id : undefined,
    onInvalid: (event: Event) => {
      event.preventDefault();
      props.mark((event.currentTarget as HTMLInputElement).validationMessage);
    },
  };
  const members = membersOf(schema, props.defs);
  const { level = 1 } = props;
  const isObject = value === undefined || (typeof value === "object" && value !== null && !Array.isArray(value));
  if (members.length && isObject && level < MOST_LEVELS) {
    const known = (value ?? {}) as Record<string, unknown>;
    // An object that may be left out must be complete only if there is something in it.
    const isNeeded = isRequired || Object.keys(known).length > 0;
    return (
      <fieldset class="field group">
        <legend>{optional(label, isRequired)}</legend>
        {members.map(([name, one]) => (
          <Field
            {...{ name, level: level + 1, wrong: undefined, mark: props.mark }}
            key={name}
            schema={one}
            defs={props.defs}
            isRequired={isNeeded && (schema.required?.includes(name) ?? false)}
            value={known[name]}
            set={(inner) => {
              const changed = withMember(known, name, inner);
              set(Object.keys(changed).length || isRequired ? changed : undefined);
            }}
          />
        ))}
        {after}
      </fieldset>
    );
  }
  const choices = type === "boolean" ? [true, false] : schema.enum;
  if (choices && choices.length <= MOST_RADIOS) {
    return (
      <fieldset class="field choices" aria-invalid={wrong ? true : undefined}>
        <legend>{optional(label, isRequired)}</legend>
        {choices.map((one) => (
          <label class="check" key={JSON.stringify(one)}>
            <input
              type="radio"
              name={id}
              checked={value !== undefined && JSON.stringify(value) === JSON.stringify(one)}
              onChange={() => set(one)}
              {...checked}
            />{" "}
            {type === "boolean" ? (one ? "Yes" : "No") : String(one)}
          </label>
        ))}
        {after}
      </fieldset>
    );
  }
  if (choices) {
    return (
      <label class="field">
        <span>{label}</span>
        <select
          class="input"
          value={value === undefined ? "" : JSON.stringify(value)}
          onChange={(event) => set(event.currentTarget.value ? JSON.parse(event.currentTarget.value) : undefined)}
          {...checked}
        >
          <option value="">–</option>
          {choices.map((one) => (
            <option key={JSON.stringify(one)} value={JSON.stringify(one)}>
              {String(one)}
            </option>
          ))}
        </select>
        {after}
      </label>
    );
  }
  const isNumber = type === "number" || type === "integer";
  if (type === "string" && !schema.format && (schema.maxLength ?? 0) > LONG_TEXT) {
    return (
      <label class="field">
        <span>{label}</span>
        <textarea
          class="input"
          rows={4}
          value={textOf(value)}
          minLength={schema.minLength}
          maxLength={schema.maxLength}
          onInput={(event) => set(event.currentTarget.value || undefined)}
          {...checked}
        />
        {after}
      </label>
    );
  }
  if (isNumber || type === "string") {
    return (
      <label class="field">
        <span>{label}</span>
        <input
          class="input"
          type={isNumber ? "number" : schema.format === "date" ? "date" : "text"}
          step={schema.multipleOf ?? (type === "integer" ? 1 : "any")}
          min={schema.minimum ?? (type === "integer" && schema.exclusiveMinimum !== undefined ? schema.exclusiveMinimum + 1 : schema.exclusiveMinimum)}
          max={schema.maximum ?? (type === "integer" && schema.exclusiveMaximum !== undefined ? schema.exclusiveMaximum - 1 : schema.exclusiveMaximum)}
          minLength={schema.minLength}
          maxLength={schema.maxLength}
          pattern={schema.pattern}
          value={textOf(value)}
          onInput={(event) => {
            const text = event.currentTarget.value;
            set(text === "" ? undefined : isNumber ? Number(text) : text);
          }}
          {...checked}
        />
        {after}
      </label>
    );
  }
  return (
    <label class="field">
      <span>{label}, as JSON</span>
      <input
        class="input"
        value={value === undefined ? "" : JSON.stringify(value)}
        onChange={(event) => {
          try {
            set(event.currentTarget.value ? valueIn(event.currentTarget.value) : undefined);
            event.currentTarget.setCustomValidity("");
          } catch (error) {
            const message = error instanceof SyntaxError ? "This is no JSON." : (error as Error).message;
            event.currentTarget.setCustomValidity(message);
            props.mark(message);
          }
        }}
        {...checked}
      />
      {after}
    </label>
  );
}
