/** Texts of users on their own: what they contain changes nothing around them. */
import type { ComponentChildren } from "preact";

/** Characters of a text that are shown in a line of a list. */
const LONGEST_LINE = 500;

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
export function cut(text: string, length: number): string {
  const last = text.charCodeAt(length - 1);
  return text.slice(0, last >= 0xd800 && last < 0xdc00 ? length - 1 : length);
}

/** The beginning of a text, for a line of a list. */
export const Line = ({ text }: { text: string }) => <Plain text={text.length <= LONGEST_LINE ? text : `${cut(text, LONGEST_LINE)}…`} />;
