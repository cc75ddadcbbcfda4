/**
 * What changes on the server, over one connection for the whole page.
 *
 * It is open only while somebody looks: a hidden page costs the server nothing. When the page is shown again, it goes on
 * after the last event that it has seen, so that nothing is missed.
 */
import { ROOT } from "./client";

export type Kind = "job" | "workflow" | "queue" | "worker" | "cron" | "webhook" | "system";
export type LiveState = "off" | "connecting" | "on" | "paused";

export interface Changes {
  kinds: Record<string, number>;
  queues: string[];
  /** `null`: too many to name. */
  ids: string[] | null;
  is_lost: boolean;
}

type Listener = (changes: Changes) => void;

const listeners = new Set<Listener>();
const watchers = new Set<(state: LiveState) => void>();
let source: EventSource | null = null;
let lastId = "";
let state: LiveState = "off";
let isPaused = false;
/** Whether the connection was open before: what happened since is read again. */
let isOpened = false;

function become(next: LiveState): void {
  if (next === state) return;
  state = next;
  watchers.forEach((tell) => tell(next));
}

function update(): void {
  const isWanted = listeners.size > 0 && !document.hidden && !isPaused;
  if (isWanted && source === null) open();
  if (!isWanted && source !== null) {
    source.close();
    source = null;
  }
  if (!isWanted) become(isPaused ? "paused" : "off");
}

function open(): void {
  const url = new URL("ojs/v1/events/changes", ROOT);
  if (lastId) url.searchParams.set("last_event_id", lastId);
  source = new EventSource(url);
  become("connecting");
  source.onopen = () => {
    become("on");
    if (isOpened) for (const tell of [...listeners]) tell({ kinds: {}, queues: [], ids: null, is_lost: true });
    isOpened = true;
  };
  source.onerror = () => {
    become("connecting");
    if (source?.readyState === EventSource.CLOSED) {
      source = null;
      window.setTimeout(update, 5_000);
    }
  };
  source.addEventListener("changes", (event) => {
    if (event.lastEventId) lastId = event.lastEventId;
    const changes = JSON.parse(event.data as string) as Changes;
    for (const tell of [...listeners]) tell(changes);
  });
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
