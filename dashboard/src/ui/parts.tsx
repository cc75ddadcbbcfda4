/** Small parts that all pages are made of. */
import { type ComponentChildren, Fragment, type JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { Link, useLocation, useSearch } from "wouter-preact";
import type { Loaded } from "../api/use";
import { Icon, type IconName } from "./icons";
import { Line, Plain } from "./plain";

export function Page(props: {
  title: string;
  sub?: ComponentChildren;
  badge?: ComponentChildren;
  actions?: ComponentChildren;
  children: ComponentChildren;
}) {
  document.title = `${props.title} · Ojster`;
  return (
    <div class="page">
      <div class="head">
        <h1>
          <Line text={props.title} />
        </h1>
        {props.badge}
        {props.actions && <div class="actions">{props.actions}</div>}
        {props.sub && <p class="sub">{props.sub}</p>}
      </div>
      {props.children}
    </div>
  );
}

export function Card(props: { title?: string; end?: ComponentChildren; children: ComponentChildren; isBare?: boolean }) {
  return (
    <section class="card" aria-label={props.title}>
      {props.title && (
        <header>
          <h2>{props.title}</h2>
          {props.end && <div class="end">{props.end}</div>}
        </header>
      )}
      {props.isBare ? props.children : <div class="body">{props.children}</div>}
    </section>
  );
}

type ButtonProps = Omit<JSX.HTMLAttributes<HTMLButtonElement>, "icon"> & {
  icon?: IconName;
  kind?: "main" | "danger" | "plain" | "main danger";
  isSmall?: boolean;
  disabled?: boolean;
  type?: "button" | "submit";
};

/** A button. The second click of a double click counts only if the button still says what it said at the first one. */
export function Button({ icon, kind, isSmall, children, type = "button", onClick, ...rest }: ButtonProps) {
  const words = String(rest["aria-label"] ?? children);
  const clicked = useRef(words);
  const click: typeof onClick = (event) => {
    if (event.detail > 1 && words !== clicked.current) return event.preventDefault();
    clicked.current = words;
    onClick?.(event);
  };
  return (
    <button type={type} class={`button ${kind ?? ""} ${isSmall ? "small" : ""}`} onClick={click} {...rest}>
      {icon && <Icon name={icon} />}
      {children}
    </button>
  );
}

export function Empty({ icon = "info", title, children }: { icon?: IconName; title: string; children?: ComponentChildren }) {
  return (
    <div class="empty">
      <Icon name={icon} />
      <b>{title}</b>
      {children && <span>{children}</span>}
    </div>
  );
}

export function Problem({ error, retry }: { error: Error; retry?: () => void }) {
  return (
    <div class="problem" role="alert">
      <Icon name="alert" />
      <span>{error.message}</span>
      {retry && (
        <Button isSmall onClick={retry}>
          Try again
        </Button>
      )}
    </div>
  );
}

/**
 * Shows data that may be on its way: the place is kept, so that nothing jumps when it comes. `page`: the title of the page
 * that says why there is none, if the data would be a whole page.
 */
export function Shown<T>(props: { of: Loaded<T>; rows?: number; page?: string; children: (data: T) => ComponentChildren }) {
  const { data, error, reload } = props.of;
  if (data === undefined && error) {
    const problem = <Problem error={error} retry={reload} />;
    return props.page ? <Page title={props.page}>{problem}</Page> : problem;
  }
  if (data === undefined) {
    return (
      <div class="stack" aria-busy="true" aria-label="Loading">
        {Array.from({ length: props.rows ?? 3 }, (_, place) => (
          <div class="skeleton" key={place} />
        ))}
      </div>
    );
  }
  return (
    <>
      {error && <Problem error={error} retry={reload} />}
      {props.children(data)}
    </>
  );
}

export interface Column<T> {
  label: string;
  cell: (row: T) => ComponentChildren;
  className?: string;
}

/** A text of a cell on its own: what it contains changes nothing around it. */
const alone = (cell: ComponentChildren): ComponentChildren => (typeof cell === "string" ? <Plain text={cell} /> : cell);

export function Table<T>(props: {
  columns: Column<T>[];
  rows: T[];
  keyOf: (row: T) => string;
  label: string;
  empty?: ComponentChildren;
  /** What stands above rows that follow each other and have the same group; `null`: nothing. */
  group?: { of: (row: T) => string; head: (name: string) => ComponentChildren };
}) {
  if (!props.rows.length) return <>{props.empty ?? <Empty title="Nothing here" />}</>;
  const { rows, group } = props;
  const headOf = (row: T, place: number): ComponentChildren => {
    const name = group?.of(row);
    const before = rows[place - 1];
    return name === undefined || (before !== undefined && group?.of(before) === name) ? null : group?.head(name);
  };
  return (
    <div class="scroll" tabIndex={0} role="group" aria-label={props.label}>
      <table aria-label={props.label}>
        <thead>
          <tr>
            {props.columns.map((column) => (
              <th scope="col" class={column.className} key={column.label}>
                {column.label || <span class="hidden">Actions</span>}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {rows.map((row, place) => {
            const head = headOf(row, place);
            return (
              <Fragment key={props.keyOf(row)}>
                {head && (
                  <tr class="group-head">
                    <th scope="rowgroup" colSpan={props.columns.length}>
                      {head}
                    </th>
                  </tr>
                )}
                <tr>
                  {props.columns.map((column) => (
                    <td class={`${column.className ?? ""} ${column.label ? "" : "actions"}`} data-label={column.label} key={column.label}>
                      {alone(column.cell(row))}
                    </td>
                  ))}
                </tr>
              </Fragment>
            );
          })}
        </tbody>
      </table>
    </div>
  );
}

const small = window.matchMedia("(max-width: 980px)");

/** Side matter that is folded where there is no room for it beside the rest. */
export function Folded({ label, children }: { label: string; children: ComponentChildren }) {
  const [isSmall, setSmall] = useState(small.matches);
  const [isOpen, setOpen] = useState(false);
  useEffect(() => {
    const tell = (): void => setSmall(small.matches);
    small.addEventListener("change", tell);
    return () => small.removeEventListener("change", tell);
  }, []);
  if (!isSmall) return <>{children}</>;
  return (
    <details class="folded" open={isOpen} onToggle={(event) => setOpen(event.currentTarget.open)}>
      <summary>{label}</summary>
      {isOpen && children}
    </details>
  );
}

export function Bar({ done, of, isFailed, label }: { done: number; of: number; isFailed?: boolean; label: string }) {
  const share = of ? Math.round((100 * done) / of) : 0;
  return (
    <span
      class={`bar ${isFailed ? "failed" : ""}`}
      role="progressbar"
      aria-label={label}
      aria-valuenow={share}
      aria-valuemin={0}
      aria-valuemax={100}
    >
      <i style={{ width: `${share}%` }} />
    </span>
  );
}

export function Facts({ facts }: { facts: [string, ComponentChildren][] }) {
  return (
    <dl class="facts">
      {facts
        .filter(([, value]) => value !== null && value !== undefined && value !== "" && value !== false)
        .map(([name, value]) => (
          <>
            <dt>{name}</dt>
            <dd>{value}</dd>
          </>
        ))}
    </dl>
  );
}

export function Tabs<T extends string>(props: { tabs: [T, string][]; chosen: T; choose: (tab: T) => void; label: string }) {
  const move = (event: KeyboardEvent): void => {
    const step = event.key === "ArrowRight" ? 1 : event.key === "ArrowLeft" ? -1 : 0;
    if (!step) return;
    const place = props.tabs.findIndex(([tab]) => tab === props.chosen);
    const next = props.tabs[(place + step + props.tabs.length) % props.tabs.length];
    if (!next) return;
    props.choose(next[0]);
    const list = event.currentTarget as HTMLElement;
    requestAnimationFrame(() => list.querySelector<HTMLElement>('[aria-selected="true"]')?.focus());
  };
  return (
    <div class="tabs" role="tablist" aria-label={props.label} onKeyDown={move}>
      {props.tabs.map(([tab, label]) => (
        <button
          type="button"
          role="tab"
          key={tab}
          aria-selected={tab === props.chosen}
          tabIndex={tab === props.chosen ? 0 : -1}
          onClick={() => props.choose(tab)}
        >
          {label}
        </button>
      ))}
    </div>
  );
}

export function Segments<T extends string>(props: { of: [T, string][]; chosen: T; choose: (one: T) => void; label: string }) {
  return (
    <div class="segments" role="group" aria-label={props.label}>
      {props.of.map(([one, label]) => (
        <button type="button" key={one} aria-pressed={one === props.chosen} onClick={() => props.choose(one)}>
          {label}
        </button>
      ))}
    </div>
  );
}

/** The end of a form: what is wrong with it, and its buttons. */
export function FormEnd(props: { problem?: string; action: string; isSending: boolean; close: () => void }) {
  return (
    <>
      {props.problem && (
        <p role="alert" class="wrong">
          {props.problem}
        </p>
      )}
      <div class="buttons">
        <Button onClick={props.close}>Close form</Button>
        <Button type="submit" kind="main" disabled={props.isSending}>
          {props.action}
        </Button>
      </div>
    </>
  );
}

/** Copies a text beside an element. Browsers have a clipboard on https and on this machine alone; the old way works on http. */
async function copyText(text: string, beside: Element): Promise<boolean> {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const field = document.createElement("textarea");
    field.className = "hidden";
    field.value = text;
    beside.after(field); // in the same dialog: what is outside of one cannot be selected
    field.select();
    const isCopied = document.execCommand("copy");
    field.remove();
    (beside as HTMLElement).focus();
    return isCopied;
  }
}

export function Copy({ text, label = "Copy" }: { text: string; label?: string }) {
  const [outcome, setOutcome] = useState<"copy" | "check" | "alert">("copy");
  const copy = async (beside: Element): Promise<void> => {
    setOutcome((await copyText(text, beside)) ? "check" : "alert");
    window.setTimeout(() => setOutcome("copy"), 1500);
  };
  const said = { copy: label, check: "Copied", alert: "The browser does not copy: select the text" }[outcome];
  return (
    <>
      <Button kind="plain" isSmall icon={outcome} aria-label={label} title={said} onClick={(event) => void copy(event.currentTarget)} />
      <span class="hidden" role="status">
        {outcome === "copy" ? "" : said}
      </span>
    </>
  );
}

/** A condition that a click removes. */
export function Chip({ label, remove }: { label: string; remove: () => void }) {
  return (
    <button type="button" class="chip" onClick={remove}>
      <Line text={label} /> <Icon name="cross" />
      <span class="hidden">Remove</span>
    </button>
  );
}

/** The button that was pressed with the keyboard, until the next page has it again. */
let pressed: string | null = null;

/** The buttons of a list in pages; without a way, there is no such page. They keep the focus while the list is replaced. */
export function Turn({ newer, older, labels = ["Newer", "Older"] }: { newer?: () => void; older?: () => void; labels?: [string, string] }) {
  const place = useRef<HTMLSpanElement>(null);
  useEffect(() => {
    if (pressed === null || document.activeElement !== document.body) return void (pressed = null);
    const buttons = [...(place.current?.parentElement?.querySelectorAll("button") ?? [])].filter((one) => labels.includes(one.innerText));
    const usable = buttons.filter((one) => !one.disabled);
    (usable.find((one) => one.innerText === pressed) ?? usable[0])?.focus();
    pressed = null;
  });
  const turn = (label: string, way: (() => void) | undefined) => (event: MouseEvent) => {
    pressed = event.detail ? null : label;
    way?.();
  };
  return (
    <>
      <span style={{ marginLeft: "auto" }} ref={place} />
      <Button isSmall disabled={!newer} onClick={turn(labels[0], newer)}>
        {labels[0]}
      </Button>
      <Button isSmall disabled={!older} onClick={turn(labels[1], older)}>
        {labels[1]}
      </Button>
    </>
  );
}

/** The place in a list in pages: the cursor of the page that is shown, and the ways to its neighbours. */
export function usePages() {
  const [cursors, setCursors] = useState<string[]>([]);
  return {
    cursor: cursors.at(-1),
    begin: () => setCursors([]),
    newer: cursors.length ? () => setCursors(cursors.slice(0, -1)) : undefined,
    older: (next: string | null | undefined) => (next ? () => setCursors([...cursors, next]) : undefined),
  };
}

/** A choice that is in the address: a reload and a link lead to it. What is left out there is `initial`. */
export function useInAddress<T extends string>(name: string, initial: T, isStep = false): [T, (value: T) => void] {
  const [path, go] = useLocation();
  const chosen = (new URLSearchParams(useSearch()).get(name) ?? initial) as T;
  const choose = (value: T): void => {
    const others = new URLSearchParams(window.location.search); // that of now: two choices may follow each other
    if (value === initial) others.delete(name);
    else others.set(name, value);
    go(others.size ? `${path}?${others}` : path, { replace: !isStep });
  };
  return [chosen, choose];
}

/** As `usePages`, with the place in the address: a reload, a link and the way back lead to the same page. */
export function usePagesInAddress() {
  const [page, setPage] = useInAddress<string>("page", "", true);
  const cursors = page.split(".").filter(Boolean);
  const turn = (next: string[]): void => setPage(next.join("."));
  return {
    cursor: cursors.at(-1),
    begin: () => cursors.length && turn([]),
    newer: cursors.length ? () => turn(cursors.slice(0, -1)) : undefined,
    older: (next: string | null | undefined) => (next ? () => turn([...cursors, next]) : undefined),
  };
}

export function JobLink({ id, children }: { id: string; children?: ComponentChildren }) {
  return (
    <Link href={`/jobs/${id}`} class={children ? "" : "mono"}>
      {children ?? id.slice(-12)}
    </Link>
  );
}

/** Small columns: how many of something there were in each hour. */
export function Spark({ values, label }: { values: number[]; label: string }) {
  const most = Math.max(1, ...values);
  const width = 120 / Math.max(1, values.length);
  return (
    <svg class="spark" viewBox="0 0 120 24" role="img" aria-label={label}>
      {values.map((value, place) => {
        const height = value ? Math.max(2, (22 * value) / most) : 0.6;
        return <rect key={place} x={place * width} y={24 - height} width={Math.max(1, width - 1)} height={height} />;
      })}
    </svg>
  );
}
