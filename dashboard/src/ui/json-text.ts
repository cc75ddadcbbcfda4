/** JSON whose numbers keep their text, such as 1.0 and 12345678901234567890; browsers that cannot keep it refuse what they would change. */
import { accepted } from "../api/client";

/** What browsers of today have, and the standard library of the compiler does not know. */
interface ExactJson {
  rawJSON?: (text: string) => object;
  parse: (text: string, revive: (name: string, value: unknown, context: { source?: string }) => unknown) => unknown;
}
const exact = JSON as unknown as ExactJson;

/** Texts, so that their digits are skipped, and numbers. */
const TOKENS = /"(?:[^"\\]|\\.)*"|-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?/g;

function refuseRounded(value: number, text: string): void {
  if (Number.isInteger(value) && !Number.isSafeInteger(value)) {
    throw new Error(`${text} is an integer that browsers round. Send it with the API or the command line, or write it as a text.`);
  }
}

/** The value of a JSON text, which `JSON.stringify` writes with the same numbers; throws what is wrong with it. */
export function valueIn(text: string): unknown {
  const keep = exact.rawJSON;
  if (!keep) {
    const value: unknown = JSON.parse(text);
    for (const [token] of text.matchAll(TOKENS)) if (!token.startsWith('"')) refuseRounded(Number(token), token);
    return value;
  }
  return exact.parse(text, (_, value, { source }) =>
    typeof value === "number" && source !== undefined && JSON.stringify(value) !== source ? keep(source) : value,
  );
}

/** A value that can be sent; throws if it has an integer that was rounded when it was read. */
export function unrounded<T>(value: T): T {
  JSON.stringify(value, (_, one: unknown) => {
    if (typeof one === "number") refuseRounded(one, String(one));
    return one;
  });
  return value;
}

/** The data of an answer, whose numbers keep their text. */
export const exactly = async <T>(call: Promise<{ data?: string; error?: unknown; response: Response }>): Promise<T> =>
  valueIn((await accepted(call)) || "null") as T;
