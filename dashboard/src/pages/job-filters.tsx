/** The conditions and the order of a list of jobs: in the address, as the API takes them, and as parts of the page. */
import { useState } from "preact/hooks";
import { Link, useLocation } from "wouter-preact";
import { query, type Schemas } from "../api/client";
import { useIsGlobal } from "../api/session";
import { useDialogs } from "../ui/dialogs";
import { timestamp } from "../ui/format";
import { Button, Chip } from "../ui/parts";

/** Conditions that take several values, with commas between them. */
const SEVERAL = ["state", "queue", "type", "error_type", "cron_name", "worker", "workflow", "tag", "where"] as const;
export const FILTERS = [...SEVERAL, "error_text", "id", "since", "internal", "sort"] as const;
export type Filter = (typeof FILTERS)[number];
export type Chosen = Partial<Record<Filter, string>>;

export const LABELS: Record<Filter, string> = {
  state: "State",
  queue: "Queue",
  type: "Type",
  error_type: "Error",
  cron_name: "Schedule",
  worker: "Worker",
  workflow: "Workflow",
  tag: "Tag",
  where: "Contains",
  error_text: "Text of the error",
  id: "Id",
  since: "Since",
  internal: "Deliveries",
  sort: "Order",
};

const AGES: [string, string][] = [
  ["", "any time"],
  ["900", "15 minutes"],
  ["3600", "1 hour"],
  ["86400", "24 hours"],
  ["604800", "7 days"],
];

const SORTS: [string, string][] = [
  ["", "Newest first"],
  ["oldest", "Oldest first"],
  ["priority", "Highest priority first"],
  ["changed", "Last changed first"],
  ["attempts", "Most attempts first"],
];

const WAYS: [Filter, string, string][] = [
  ["type", "Type or id", "Type or job id"],
  ["error_text", "Text of the error", "card expired"],
  ["where", "Member of arguments", "args.order_id=42"],
  ["tag", "Tag", "vip"],
  ["worker", "Worker", "the name of a worker"],
  ["workflow", "Workflow", "the id of a workflow"],
  ["queue", "Queue", "mail"],
];

/** The values in a text with commas between them: in a value, `\,` is a comma and `\\` a backslash. */
export function valuesOf(text: string | undefined): string[] {
  if (!text) return [];
  const values = [""];
  let end = 0;
  for (const match of text.matchAll(/\\([\\,])|,/g)) {
    values[values.length - 1] += text.slice(end, match.index) + (match[1] ?? "");
    end = match.index + match[0].length;
    if (match[1] === undefined) values.push("");
  }
  values[values.length - 1] += text.slice(end);
  return values;
}

/** Values as one text; the inverse of `valuesOf`. */
export const joined = (values: string[]): string => values.map((value) => value.replace(/[\\,]/g, "\\$&")).join(",");

/** A condition with a value more, or without it if it has it. */
export function toggled(text: string | undefined, value: string): string {
  const values = valuesOf(text);
  return joined(values.includes(value) ? values.filter((one) => one !== value) : [...values, value]);
}

/** The conditions in an address. Whoever is limited to queues gets those, unless it names some. */
export function chosenIn(parameters: URLSearchParams, ownQueues: string[]): Chosen {
  const own = ownQueues.length ? { queue: joined(ownQueues) } : {};
  const named = Object.fromEntries(
    FILTERS.flatMap((name) => {
      const value = parameters.get(name);
      return value ? [[name, value]] : [];
    }),
  );
  return { ...own, ...named };
}

/** The conditions as the API takes them: an age in seconds becomes a time. */
export function asked(chosen: Chosen): Record<string, string> {
  const { since, sort: _, ...others } = chosen;
  const from = since ? timestamp(Number(since) * 1000) : undefined;
  return query({ ...others, since: from });
}

const ID = /^…?[0-9a-f]{6,}$|^[0-9a-f]{8}-[0-9a-f-]{1,27}$/i;

export function FilterBar(props: { chosen: Chosen; choose: (change: Chosen) => void; types: Schemas["FacetValueBody"][] }) {
  const { chosen, choose } = props;
  const isGlobal = useIsGlobal();
  const [text, setText] = useState("");
  const [way, setWay] = useState<Filter>("type");
  const [, go] = useLocation();
  const submit = (event: Event): void => {
    event.preventDefault();
    const entered = text.trim();
    if (!entered) return;
    setText("");
    const isKnown = props.types.some((one) => one.value === entered); // `facade` could be a part of an id, too
    if (way === "type" && /^[0-9a-f]{8}-[0-9a-f-]{27}$/i.test(entered)) go(`/jobs/${entered}`);
    else if (way === "type" && !isKnown && ID.test(entered)) choose({ id: entered });
    else if (way === "error_text") choose({ error_text: entered });
    else {
      const isBegun = way === "type" && !isKnown && !entered.endsWith("*");
      choose({ [way]: joined([...new Set([...valuesOf(chosen[way]), isBegun ? `${entered}*` : entered])]) });
    }
  };
  const type = valuesOf(chosen.type);
  return (
    <form class="filters" onSubmit={submit} role="search">
      <label>
        <span class="hidden">{way === "type" ? "Type, the beginning of a type, or the id of a job" : "What to find"}</span>
        <input
          class="input"
          list={way === "type" ? "types" : undefined}
          placeholder={WAYS.find(([name]) => name === way)?.[2]}
          value={text}
          onInput={(event) => setText(event.currentTarget.value)}
        />
      </label>
      <label>
        <span class="hidden">Find by</span>
        <select class="input" value={way} onChange={(event) => setWay(event.currentTarget.value as Filter)}>
          {WAYS.map(([name, label]) => (
            <option value={name} key={name}>
              {label}
            </option>
          ))}
        </select>
      </label>
      <datalist id="types">
        {props.types.map((one) => (
          <option key={one.value} value={one.value} />
        ))}
      </datalist>
      <label>
        <span class="hidden">Created within</span>
        <select class="input" value={chosen.since ?? ""} onChange={(event) => choose({ since: event.currentTarget.value })}>
          {AGES.map(([seconds, label]) => (
            <option value={seconds} key={seconds}>
              {seconds ? `Last ${label}` : "Any time"}
            </option>
          ))}
        </select>
      </label>
      <label>
        <span class="hidden">Order</span>
        <select class="input" value={chosen.sort ?? ""} onChange={(event) => choose({ sort: event.currentTarget.value })}>
          {SORTS.map(([order, label]) => (
            <option value={order} key={order}>
              {label}
            </option>
          ))}
        </select>
      </label>
      <label class="check">
        <input
          type="checkbox"
          checked={chosen.internal === "true"}
          onChange={(event) => choose({ internal: event.currentTarget.checked ? "true" : "" })}
        />{" "}
        Deliveries, too
      </label>
      {SEVERAL.flatMap((name) =>
        valuesOf(chosen[name]).map((value) => (
          <Chip key={`${name} ${value}`} label={`${LABELS[name]}: ${value}`} remove={() => choose({ [name]: toggled(chosen[name], value) })} />
        )),
      )}
      {(["error_text", "id"] as const).map(
        (name) => chosen[name] && <Chip key={name} label={`${LABELS[name]}: ${chosen[name]}`} remove={() => choose({ [name]: "" })} />,
      )}
      {way === "where" && <p class="quiet">Members of metadata begin with meta. Arguments that were encrypted or compressed before they were sent cannot be searched.</p>}
      {isGlobal && type.length === 1 && !type[0]?.endsWith("*") && <Link href={`/?type=${encodeURIComponent(type[0] ?? "")}`}>Over time</Link>}
    </form>
  );
}

interface View {
  name: string;
  search: string;
}

/** Views are kept by the browser, for whoever uses it. */
const VIEWS = "ojster-views";

const isView = (one: Partial<View> | null): boolean => typeof one?.name === "string" && typeof one.search === "string";

function savedViews(): View[] {
  try {
    const saved: unknown = JSON.parse(localStorage.getItem(VIEWS) ?? "[]");
    return Array.isArray(saved) ? (saved as View[]).filter(isView) : [];
  } catch {
    return [];
  }
}

export function Views({ chosen }: { chosen: Chosen }) {
  const [views, setViews] = useState(savedViews);
  const [name, setName] = useState("");
  const { tell } = useDialogs();
  /** Puts another view, or none, in place of the one of this name; other windows may have saved some meanwhile. */
  const keep = (replaced: string, ...view: View[]): void => {
    const others = savedViews().filter((one) => one.name !== replaced);
    const next = [...others, ...view].sort((one, other) => one.name.localeCompare(other.name));
    try {
      localStorage.setItem(VIEWS, JSON.stringify(next));
      setViews(next);
    } catch (error) {
      tell(`The browser does not keep views: ${(error as Error).message}`);
    }
  };
  const save = (): void => {
    const given = name.trim();
    if (!given) return;
    const view = { name: given, search: new URLSearchParams(query(chosen)).toString() };
    keep(given, view);
    setName("");
  };
  return (
    <details class="folded views">
      <summary>Views</summary>
      <ul>
        {views.map((view) => (
          <li key={view.name}>
            <Link href={`/jobs?${view.search}`}>{view.name}</Link>
            <Button
              isSmall
              kind="plain"
              icon="cross"
              aria-label={`Forget the view ${view.name}`}
              onClick={() => keep(view.name)}
            />
          </li>
        ))}
      </ul>
      <label>
        <span class="hidden">Name of the view</span>
        <input
          class="input"
          placeholder="Name of this view"
          value={name}
          onInput={(event) => setName(event.currentTarget.value)}
          onKeyDown={(event) => {
            if (event.key !== "Enter") return;
            event.preventDefault();
            save();
          }}
        />
      </label>
      <Button isSmall onClick={save} disabled={!name.trim()}>
        Save this view
      </Button>
    </details>
  );
}
