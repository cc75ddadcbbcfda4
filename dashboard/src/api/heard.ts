/** When the server was last heard: a heartbeat of the stream, or any answer. */
let heardAt = Date.now();

/** Notes that the server has just been heard. */
export function hear(): void {
  heardAt = Date.now();
}

/** How far the server's clock is ahead of this one's, in milliseconds; 0: as far as its answers tell, they agree. */
let ahead = 0;

/**
 * Compares both clocks by an answer's `Date`, which has whole seconds, to a request that was sent at `sent`. Clocks agree if
 * the server answered between that time and now.
 */
export function compareClocks(date: string | null, sent: number): void {
  const told = date ? Date.parse(date) : NaN;
  if (Number.isNaN(told)) return;
  if (told + 1_000 < sent) ahead = told - sent;
  else ahead = Math.max(0, told - Date.now());
}

/** The time on the server, by which all that it tells is dated, in milliseconds since the epoch. */
export const now = (): number => Date.now() + ahead;

/** When the server was last heard, in milliseconds since the epoch, by this clock. */
export const lastHeard = (): number => heardAt;
