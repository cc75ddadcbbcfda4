/** A viewer for JSON that copes with large values: what is folded is not drawn, and long lists come in parts. */
import type { ComponentChildren } from "preact";
import { useState } from "preact/hooks";
import { number } from "./format";
import { Button, Copy } from "./parts";

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

/**
 * Characters that show nothing, or that turn the text after them around: they are named, because whoever reads an argument
 * has to see that they are there. Tabs and ends of lines are shown as they are.
 */
const UNSEEN = /[\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u2064\u2066-\u206f\ufeff\ufff9-\ufffb]/g;

/** A text on its own: what it contains changes nothing around it, neither direction nor lines. */
export function Plain({ text }: { text: string }) {
  const parts: ComponentChildren[] = [];
  let from = 0;
  for (const hit of text.matchAll(UNSEEN)) {
    parts.push(
      text.slice(from, hit.index),
      <span class="unseen" key={hit.index}>
        U+{hit[0].charCodeAt(0).toString(16).toUpperCase().padStart(4, "0")}
      </span>,
    );
    from = hit.index + hit[0].length;
  }
  return (
    <bdi>
      {parts}
      {text.slice(from)}
    </bdi>
  );
}

/** A part of a text that ends between two characters, and not within one that is made of two code units. */
function cut(text: string, length: number): string {
  const last = text.charCodeAt(length - 1);
  return text.slice(0, last >= 0xd800 && last < 0xdc00 ? length - 1 : length);
}

function Leaf({ value }: { value: unknown }) {
  const [length, setLength] = useState(LONGEST);
  if (typeof value !== "string") {
    return <span class={typeof value === "number" ? "number" : "word"}>{String(value)}</span>;
  }
  const text = value.length <= length ? value : cut(value, length);
  return (
    <>
      <span class="string">
        "<Plain text={text} />
        {text === value ? '"' : "…"}
      </span>
      {text !== value && (
        <Button isSmall onClick={() => setLength(length + MORE)}>
          {value.length - length <= MORE
            ? `Show all ${number(value.length)} characters`
            : `Show ${number(MORE)} more of ${number(value.length)} characters`}
        </Button>
      )}
    </>
  );
}
