/** The audit log: who did what, when, to what, from where, and how it ended. */
import { useState } from "preact/hooks";
import { useLocation, useSearch } from "wouter-preact";
import { accepted, client, query, type Schemas } from "../api/client";
import { useData } from "../api/use";
import { ExportButtons } from "../ui/export";
import { exact, tail, timestamp } from "../ui/format";
import { Button, Empty, Shown, Table, Turn, usePages } from "../ui/parts";

type Entry = Schemas["AuditEntryInfo"];

const DAY = 86_400_000;
const SPANS: [string, string, number][] = [
  ["", "At any time", 0],
  ["1h", "Last hour", DAY / 24],
  ["24h", "Last 24 hours", DAY],
  ["7d", "Last 7 days", 7 * DAY],
  ["30d", "Last 30 days", 30 * DAY],
];

const CONDITIONS = ["principal", "operation", "object", "outcome", "within"] as const;
type Condition = (typeof CONDITIONS)[number];
type Chosen = Partial<Record<Condition, string>>;

/** The conditions in the address of the page, so that a link shows the same. */
function useChosen(): [Chosen, (chosen: Chosen) => void] {
  const search = new URLSearchParams(useSearch());
  const [path, go] = useLocation();
  const chosen: Chosen = Object.fromEntries(CONDITIONS.flatMap((name) => (search.get(name) ? [[name, search.get(name) ?? ""]] : [])));
  return [
    chosen,
    (next) => {
      const others = [...search].filter(([name]) => !CONDITIONS.includes(name as Condition));
      go(`${path}?${new URLSearchParams({ ...Object.fromEntries(others), ...query(next) }).toString()}`, { replace: true });
    },
  ];
}

/** What was done, in words. A refused request has none: it is named as the API names it. */
function said(entry: Entry): string {
  const words = (entry.detail as { summary?: string } | undefined)?.summary;
  return words ?? `${entry.operation}${entry.object ? ` ${entry.object}` : ""}`;
}

export function Audit() {
  const [chosen, choose] = useChosen();
  const pages = usePages();
  const { within, ...conditions } = chosen;
  const span = SPANS.find(([name]) => name === within)?.[2];
  const asked = query({ ...conditions, since: span ? timestamp(span) : undefined });
  const entries = useData(`audit ${JSON.stringify(chosen)} ${pages.cursor ?? ""}`, () =>
    accepted(client.GET("/ojs/v1/admin/audit", { params: { query: query({ ...asked, limit: 50, cursor: pages.cursor }) } })),
  );
  const set = (next: Chosen): void => {
    pages.begin();
    choose(next);
  };
  const known = entries.data?.entries ?? [];
  return (
    <>
      <Filters chosen={chosen} set={set} known={known} />
      <Shown of={entries} rows={8}>
        {(data) => (
          <>
            <Table<Entry>
              label="Audit log"
              rows={data.entries}
              keyOf={(entry) => String(entry.number)}
              empty={<Empty title={Object.keys(chosen).length ? "No such entries" : "The audit log is empty"} />}
              columns={[
                { label: "When", cell: (entry) => <span class="nowrap">{exact(entry.timestamp)}</span> },
                { label: "Who", cell: (entry) => <Narrow label={entry.principal} to={() => set({ ...chosen, principal: entry.principal })} /> },
                { label: "What", className: "grow", cell: said },
                { label: "Outcome", cell: (entry) => (entry.outcome === "success" ? "done" : `refused: ${entry.refusal ?? "failure"}`) },
                { label: "From", className: "wide", cell: (entry) => entry.source_ip },
                {
                  label: "Object",
                  className: "wider",
                  cell: (entry) => entry.object && <Narrow label={entry.object} to={() => set({ ...chosen, object: entry.object })} />,
                },
              ]}
            />
            <div class="more">
              <ExportButtons path="admin/audit/export" query={asked} name="audit-log" what="the audit log" />
              <Turn newer={pages.newer} older={pages.older(data.pagination.next_cursor)} />
            </div>
          </>
        )}
      </Shown>
    </>
  );
}

/** A value that becomes a condition of the list when it is pressed. */
/** Longer names, such as ids, are shown by their end. */
const MOST_CHARS = 24;

function Narrow({ label, to }: { label: string; to: () => void }) {
  return (
    <button type="button" class="link nowrap" title={`Only ${label}`} onClick={to}>
      {label.length > MOST_CHARS ? `…${tail(label)}` : label}
    </button>
  );
}

function Filters({ chosen, set, known }: { chosen: Chosen; set: (next: Chosen) => void; known: Entry[] }) {
  const [typed, setTyped] = useState<Chosen>({});
  const value = (name: Condition): string => typed[name] ?? chosen[name] ?? "";
  const apply = (more: Chosen = {}): void => {
    set({ ...chosen, ...typed, ...more });
    setTyped({});
  };
  const text = (name: Condition, label: string, hint: string, values: string[]) => (
    <label class="field">
      <span>{label}</span>
      <input
        class="input"
        value={value(name)}
        placeholder={hint}
        list={`audit-${name}`}
        onInput={(event) => setTyped({ ...typed, [name]: event.currentTarget.value })}
        onChange={(event) => apply({ [name]: event.currentTarget.value.trim() })}
      />
      <datalist id={`audit-${name}`}>
        {[...new Set(values)].map((one) => (
          <option key={one} value={one} />
        ))}
      </datalist>
    </label>
  );
  return (
    <form
      class="fields"
      role="search"
      aria-label="Filters of the audit log"
      onSubmit={(event) => {
        event.preventDefault();
        apply();
      }}
    >
      {text("principal", "Who", "name of a token", known.map((entry) => entry.principal))}
      {text("operation", "What", "cancel_job, or cancel_*", known.map((entry) => entry.operation))}
      {text("object", "On what", "id or name", known.flatMap((entry) => entry.object || []))}
      <label class="field">
        <span>When</span>
        <select class="input" value={value("within")} onChange={(event) => apply({ within: event.currentTarget.value })}>
          {SPANS.map(([name, label]) => (
            <option key={name} value={name}>
              {label}
            </option>
          ))}
        </select>
      </label>
      <label class="field">
        <span>Outcome</span>
        <select class="input" value={value("outcome")} onChange={(event) => apply({ outcome: event.currentTarget.value })}>
          <option value="">Any</option>
          <option value="success">Done</option>
          <option value="failure">Refused</option>
        </select>
      </label>
      {Object.keys(chosen).length > 0 && (
        <Button icon="cross" onClick={() => set({})}>
          Remove all filters
        </Button>
      )}
    </form>
  );
}
