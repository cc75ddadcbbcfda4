/**
 * What changes on the server, over one connection for all windows of a browser.
 *
 * It is open only while somebody looks: a hidden page costs the server nothing. When the page is shown again, it goes on
 * after the last event that it has seen, so that nothing is missed. A server that freezes, a computer that has slept and a
 * proxy that keeps the stream for itself look the same to `fetch`, which waits: the heartbeat tells.
 */
import { ROOT, workspaceHeader } from "./client";
import { hear } from "./heard";
import { openStream } from "./stream";

export type Kind = "job" | "workflow" | "queue" | "worker" | "cron" | "webhook" | "push" | "system";
/**
 * `slow`: the server cannot stream, so that the page asks again every few seconds; `silent`: nothing was heard of it for
 * too long, or it refuses connections.
 */
export type LiveState = "off" | "connecting" | "on" | "slow" | "silent" | "paused";

export interface Changes {
  kinds: Record<string, number>;
  queues: string[];
  /** `null`: too many to name. */
  ids: string[] | null;
  is_lost: boolean;
}

type Listener = (changes: Changes) => void;

const RETRY_MS = 3_000;
const SLOW_MS = 5_000;
/** A stream has a heartbeat at least every five seconds: after this time without one, nobody is there. */
const SILENT_MS = 10_000;
/** Time between two looks at the clock; if they are much further apart, the computer has slept. */
const TICK_MS = 1_000;
const ASLEEP_MS = 5_000;
/** For so long the page asks every few seconds, where a proxy keeps the stream for itself, before it tries the stream again. */
const SWALLOWED_MS = 60_000;
/** Status of a server that cannot stream. */
const UNSUPPORTED = 422;

const listeners = new Set<Listener>();
const watchers = new Set<(state: LiveState) => void>();
let connection: AbortController | null = null;
let lastId = "";
let caller = "";
let state: LiveState = "off";
let isPaused = false;

function become(next: LiveState): void {
  if (next === state) return;
  state = next;
  watchers.forEach((tell) => tell(next));
}

function update(): void {
  const isWanted = listeners.size > 0 && !document.hidden && !isPaused;
  if (isWanted && connection === null) {
    connection = new AbortController();
    void follow(connection.signal);
  }
  if (!isWanted) {
    connection?.abort();
    connection = null;
    become(isPaused ? "paused" : "off");
  }
}

/** Connects again at once, and goes on where the page was. */
export function reconnect(): void {
  connection?.abort();
  connection = null;
  update();
}

/** Forgets the connection and where it was, as after a login or the choice of another workspace: who asks, and for what. */
export function restart(asking: string): void {
  caller = asking;
  lastId = "";
  reconnect();
}

/** Reads the stream, and connects again when it ends; `fetch`, because an `EventSource` cannot name a workspace. */
async function follow(signal: AbortSignal): Promise<void> {
  become("connecting");
  let misses = 0; // streams without a word from a server that answers
  while (!signal.aborted) {
    let isStreaming = false;
    let hasSlept = false;
    try {
      const status = await attempt(signal, async (one, heard) => {
        const headers = { ...workspaceHeader(), ...(lastId ? { "Last-Event-ID": lastId } : {}) };
        const answer = await openStream({ caller, url: addressOf("events/changes").href, headers }, one);
        if (answer.isJoined && lastId) tellAll({ kinds: {}, queues: [], ids: null, is_lost: true });
        if (answer.body) {
          await read(answer.body, lastId !== "", () => {
            heard();
            isStreaming = true;
            misses = 0;
            become("on");
          });
        }
        return answer.status;
      });
      if (status === 401) return; // the next call of the page asks for a token
      if (status === UNSUPPORTED) return await askAgain(signal, Infinity);
    } catch (error) {
      // The server does not answer, or this page has ended the connection.
      hasSlept = error === ASLEEP;
    }
    if (signal.aborted) return;
    if (hasSlept) become("connecting");
    else if (!isStreaming && (await isThere(signal))) {
      // A server that was frozen answers again, and streams: only a second miss, or the first of all, is a proxy's doing.
      if (lastId === "" || ++misses > 1) await askAgain(signal, SWALLOWED_MS);
      else become("connecting");
    } else if (!signal.aborted) {
      become("silent");
      await sleep(RETRY_MS);
    }
  }
}

/** Lets everything be read again every few seconds while the server answers, for some time or until the page is hidden. */
async function askAgain(signal: AbortSignal, milliseconds: number): Promise<void> {
  become("slow");
  for (let passed = 0; passed < milliseconds; passed += SLOW_MS) {
    tellAll({ kinds: {}, queues: [], ids: null, is_lost: true });
    await sleep(SLOW_MS);
    const isAnswering = await isThere(signal);
    if (signal.aborted) return;
    become(isAnswering ? "slow" : "silent");
  }
}

const isThere = (signal: AbortSignal): Promise<boolean> =>
  attempt(signal, async (one, heard) => {
    const { ok } = await ask("ping", one);
    heard();
    return ok;
  }).catch(() => false);

const ASLEEP = new Error("The computer has slept.");

const sleep = (milliseconds: number): Promise<void> => new Promise((resolve) => window.setTimeout(resolve, milliseconds));

const addressOf = (path: string): URL => new URL(`ojs/v1/${path}`, ROOT);

const ask = (path: string, signal: AbortSignal): Promise<Response> => fetch(addressOf(path), { headers: workspaceHeader(), signal });

/**
 * Does something with a connection, which ends when the page no longer wants it, when nothing was heard for too long, or
 * when the computer has slept: the server may be gone since, and nobody would say so.
 */
async function attempt<T>(wanted: AbortSignal, work: (signal: AbortSignal, heard: () => void) => Promise<T>): Promise<T> {
  const connected = new AbortController();
  const stop = (): void => connected.abort();
  let last = Date.now();
  let tickedAt = last;
  const timer = window.setInterval(() => {
    const now = Date.now();
    if (now - tickedAt > ASLEEP_MS) connected.abort(ASLEEP);
    else if (now - last >= SILENT_MS) stop();
    tickedAt = now;
  }, TICK_MS);
  wanted.addEventListener("abort", stop);
  try {
    return await work(connected.signal, () => {
      last = Date.now();
      hear();
    });
  } catch (error) {
    throw connected.signal.reason === ASLEEP ? ASLEEP : error;
  } finally {
    window.clearInterval(timer);
    wanted.removeEventListener("abort", stop);
  }
}

async function read(body: ReadableStream<Uint8Array>, isResumed: boolean, heard: () => void): Promise<void> {
  const reader = body.pipeThrough(new TextDecoderStream() as ReadableWritablePair<string, Uint8Array>).getReader();
  let text = "";
  let isFirst = true;
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    heard();
    const blocks = (text + value).split("\n\n");
    text = blocks.pop() ?? "";
    for (const block of blocks) {
      const fields = new Map(block.split("\n").map((line) => splitOnce(line)));
      const data = fields.get("data");
      if (data === undefined) continue;
      lastId = fields.get("id") ?? lastId;
      const changes = JSON.parse(data) as Changes;
      // What happened while the connection was closed is read again.
      tellAll(isFirst && isResumed ? { ...changes, is_lost: true } : changes);
      isFirst = false;
    }
  }
}

function splitOnce(line: string): [string, string] {
  const place = line.indexOf(": ");
  return place < 0 ? [line, ""] : [line.slice(0, place), line.slice(place + 2)];
}

function tellAll(changes: Changes): void {
  for (const tell of [...listeners]) tell(changes);
}

document.addEventListener("visibilitychange", update);

export function listen(tell: Listener): () => void {
  listeners.add(tell);
  update();
  return () => {
    listeners.delete(tell);
    window.setTimeout(update, 0); // the next page may listen at once
  };
}

export function watchState(tell: (state: LiveState) => void): () => void {
  watchers.add(tell);
  tell(state);
  return () => watchers.delete(tell);
}

export function pause(paused: boolean): void {
  isPaused = paused;
  update();
}
