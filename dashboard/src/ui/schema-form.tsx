/** A form for a JSON Schema: its simple members as fields, and anything else as JSON. What is wrong is said at its field. */
import { useId, useState } from "preact/hooks";
import { ApiError } from "../api/client";
import { unrounded, valueIn } from "./json-text";
import { Button } from "./parts";
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
}

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
}) {
  const { schema, label = "Answer" } = props;
  const members = Object.entries(schema.properties ?? {}).filter(([, one]) => !one.readOnly);
  const isObject = members.length > 0;
  const [values, setValues] = useState<Record<string, unknown>>(() => ({
    ...Object.fromEntries(members.filter(([, one]) => one.default !== undefined).map(([name, one]) => [name, one.default])),
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
      {isObject ? (
        members.map(([name, one]) => (
          <Field
            key={name}
            name={name}
            schema={one}
            isRequired={schema.required?.includes(name) ?? false}
            value={values[name]}
            wrong={wrong[name]}
            set={(value) => {
              const { [name]: _, ...others } = values;
              setValues(value === undefined ? others : { ...others, [name]: value });
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
      {problem && (
        <p role="alert" class="wrong">
          {problem}
        </p>
      )}
      <div class="buttons">
        <Button onClick={props.close}>Leave</Button>
        <Button type="submit" kind="main" disabled={isSending}>
          {props.action}
        </Button>
      </div>
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

interface FieldProps {
  name: string;
  schema: JsonSchema;
  isRequired: boolean;
  value: unknown;
  wrong: string | undefined;
  set: (value: unknown) => void;
  /** Says what is wrong with the field. */
  mark: (message: string) => void;
}

function Field(props: FieldProps) {
  const { schema, value, set, wrong, isRequired } = props;
  const id = useId();
  const label = schema.title ?? props.name;
  const type = typeOf(schema);
  const after = (
    <>
      {schema.description && <small>{schema.description}</small>}
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
  const choices = type === "boolean" ? [true, false] : schema.enum;
  if (choices && choices.length <= MOST_RADIOS) {
    return (
      <fieldset class="field choices" aria-invalid={wrong ? true : undefined}>
        <legend>
          {label}
          {isRequired ? "" : ", if you like"}
        </legend>
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
          value={value === undefined ? "" : String(value)}
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
          value={value === undefined ? "" : String(value)}
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
