/** A form for a JSON Schema: its simple members as fields, and anything else as JSON. */
import { useState } from "preact/hooks";
import { Button } from "./parts";

export interface JsonSchema {
  type?: string | string[];
  title?: string;
  description?: string;
  enum?: unknown[];
  default?: unknown;
  properties?: Record<string, JsonSchema>;
  required?: string[];
  format?: string;
}

const isSimple = (schema: JsonSchema): boolean =>
  schema.enum !== undefined || ["string", "number", "integer", "boolean"].includes(String(schema.type));

export function SchemaForm(props: { schema: JsonSchema; label?: string; action: string; send: (value: unknown) => void; close: () => void }) {
  const { schema, label = "Answer" } = props;
  const members = Object.entries(schema.properties ?? {});
  const isObject = members.length > 0;
  const [values, setValues] = useState<Record<string, unknown>>(() =>
    Object.fromEntries(members.filter(([, one]) => one.default !== undefined).map(([name, one]) => [name, one.default])),
  );
  const [text, setText] = useState(schema.default === undefined ? "" : JSON.stringify(schema.default));
  const [problem, setProblem] = useState("");
  const submit = (event: Event): void => {
    event.preventDefault();
    try {
      props.send(isObject ? values : parsed(text, schema));
    } catch (error) {
      setProblem((error as Error).message);
    }
  };
  return (
    <form onSubmit={submit}>
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
            set={(value) => {
              const { [name]: _, ...others } = values;
              setValues(value === undefined ? others : { ...others, [name]: value });
            }}
          />
        ))
      ) : (
        <label class="field">
          <span>{isSimple(schema) ? label : `${label}, as JSON`}</span>
          <input class="input" value={text} onInput={(event) => setText(event.currentTarget.value)} />
        </label>
      )}
      {problem && <p role="alert">{problem}</p>}
      <div class="buttons">
        <Button onClick={props.close}>Leave</Button>
        <Button type="submit" kind="main">
          {props.action}
        </Button>
      </div>
    </form>
  );
}

function parsed(text: string, schema: JsonSchema): unknown {
  if (schema.type === "string") return text;
  try {
    return JSON.parse(text || "null");
  } catch {
    throw new Error(`${text} is no JSON.`);
  }
}

function Field(props: { name: string; schema: JsonSchema; isRequired: boolean; value: unknown; set: (value: unknown) => void }) {
  const { schema, value, set } = props;
  const label = schema.title ?? props.name;
  const help = schema.description && <small>{schema.description}</small>;
  if (schema.type === "boolean") {
    return (
      <label class="check">
        <input type="checkbox" checked={value === true} onChange={(event) => set(event.currentTarget.checked)} /> {label} {help}
      </label>
    );
  }
  if (schema.enum) {
    return (
      <label class="field">
        <span>{label}</span>
        <select
          class="input"
          required={props.isRequired}
          value={value === undefined ? "" : JSON.stringify(value)}
          onChange={(event) => set(event.currentTarget.value ? JSON.parse(event.currentTarget.value) : undefined)}
        >
          <option value="">–</option>
          {schema.enum.map((one) => (
            <option key={JSON.stringify(one)} value={JSON.stringify(one)}>
              {String(one)}
            </option>
          ))}
        </select>
        {help}
      </label>
    );
  }
  const isNumber = schema.type === "number" || schema.type === "integer";
  if (isNumber || schema.type === "string") {
    return (
      <label class="field">
        <span>{label}</span>
        <input
          class="input"
          type={isNumber ? "number" : schema.format === "date" ? "date" : "text"}
          step={schema.type === "integer" ? 1 : "any"}
          required={props.isRequired}
          value={value === undefined ? "" : String(value)}
          onInput={(event) => {
            const text = event.currentTarget.value;
            set(text === "" ? undefined : isNumber ? Number(text) : text);
          }}
        />
        {help}
      </label>
    );
  }
  return (
    <label class="field">
      <span>{label}, as JSON</span>
      <input
        class="input"
        required={props.isRequired}
        onChange={(event) => {
          try {
            set(event.currentTarget.value ? JSON.parse(event.currentTarget.value) : undefined);
            event.currentTarget.setCustomValidity("");
          } catch {
            event.currentTarget.setCustomValidity("This is no JSON.");
          }
        }}
      />
      {help}
    </label>
  );
}
