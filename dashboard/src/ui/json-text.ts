/** JSON that people type: numbers that the browser cannot keep are refused, not rounded. */

/** Texts, so that their digits are skipped, and numbers. */
const TOKENS = /"(?:[^"\\]|\\.)*"|-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?/g;

/** Throws if a JSON text has an integer that would become another one. */
function refuseLarge(text: string): void {
  for (const [token] of text.matchAll(TOKENS)) {
    const value = token.startsWith('"') ? 0 : Number(token);
    if (Number.isInteger(value) && !Number.isSafeInteger(value)) {
      throw new Error(`${token} is an integer that browsers round. Send it with the API or the command line, or write it as a text.`);
    }
  }
}

/** The value of a JSON text; throws what is wrong with it. */
export function valueIn(text: string): unknown {
  const value: unknown = JSON.parse(text);
  refuseLarge(text);
  return value;
}

/** A value that can be sent; throws if it has an integer that was rounded when it was read. */
export function unrounded<T>(value: T): T {
  refuseLarge(JSON.stringify(value) ?? "null");
  return value;
}
