/** When the server was last heard: a heartbeat of the stream, or any answer. */
let heardAt = Date.now();

/** Notes that the server has just been heard. */
export function hear(): void {
  heardAt = Date.now();
}

/** When the server was last heard, in milliseconds since the epoch. */
export const lastHeard = (): number => heardAt;
