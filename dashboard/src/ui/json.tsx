/** A viewer for JSON that copes with large values: what is folded is not drawn, and long lists come in parts. */
import type { ComponentChildren } from "preact";
import { useState } from "preact/hooks";
import { number } from "./format";
import { Button, Copy } from "./parts";
import { cut, Plain } from "./plain";

const PART = 100;
const LONGEST = 2_000;
/** Characters of a long text that one click shows: a megabyte at once would stop the browser for seconds. */
const MORE = 50_000;

export function Json({ value, label }: { value: unknown; label: string }) {
  return (
    <div class="json" tabIndex={0} role="group" aria-label={label}>
      <Copy text={JSON.stringify(value, null, 2) ?? "null"} label={`Copy ${label}`} />
      <Value value={value} depth={0} />
    </div>
  );
}

function Value({ value, name, depth }: { value: unknown; name?: string; depth: number }) {
  const entries = Array.isArray(value)
    ? value.map((one, place): [string, unknown] => [String(place), one])
    : value !== null && typeof value === "object"
      ? Object.entries(value)
      : null;
  const key = name === undefined ? null : <span class="key"><Plain text={name} />: </span>;
  if (entries === null) {
    return (
      <div class="leaf">
        {key}
        <Leaf value={value} />
      </div>
    );
  }
  const kind = Array.isArray(value) ? `[${entries.length}]` : `{${entries.length}}`;
  if (!entries.length) {
    return (
      <div class="leaf">
        {key}
        {Array.isArray(value) ? "[]" : "{}"}
      </div>
    );
  }
  return <Branch label={<>{key}{kind}</>} entries={entries} depth={depth} />;
}

function Branch({ label, entries, depth }: { label: ComponentChildren; entries: [string, unknown][]; depth: number }) {
  const [isOpen, setOpen] = useState(depth < 2 && entries.length <= PART);
  const [shown, setShown] = useState(PART);
  return (
    <details open={isOpen} onToggle={(event) => setOpen(event.currentTarget.open)}>
      <summary>{label}</summary>
      {isOpen && entries.slice(0, shown).map(([name, one]) => <Value key={name} name={name} value={one} depth={depth + 1} />)}
      {isOpen && entries.length > shown && (
        <Button isSmall onClick={() => setShown(shown + 10 * PART)}>
          Show more of {number(entries.length)}
        </Button>
      )}
    </details>
  );
}

function Leaf({ value }: { value: unknown }) {
  if (typeof value !== "string") {
    return <span class={typeof value === "number" ? "number" : "word"}>{String(value)}</span>;
  }
  return <Long text={value} className="string" quote={'"'} />;
}

/** A text of any length on its own: what is beyond its beginning is shown if somebody asks for it. */
export function Long({ text, className, quote = "" }: { text: string; className?: string; quote?: string }) {
  const [length, setLength] = useState(LONGEST);
  const shown = text.length <= length ? text : cut(text, length);
  return (
    <>
      <span class={className}>
        {quote}
        <Plain text={shown} />
        {shown === text ? quote : "…"}
      </span>
      {shown !== text && (
        <Button isSmall onClick={() => setLength(length + MORE)}>
          {text.length - length <= MORE ? `Show all ${number(text.length)} characters` : `Show ${number(MORE)} more of ${number(text.length)} characters`}
        </Button>
      )}
    </>
  );
}
