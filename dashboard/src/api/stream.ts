/** Opens the stream of changes: over the connection that all windows share, or, without shared workers, over one of its own. */
import type { Reply, Request, Wanted } from "./shared-stream";

export interface Opened {
  status: number;
  body: ReadableStream<Uint8Array> | null;
  /** Whether the stream ran before, so that what happened since this window's last event does not come again. */
  isJoined: boolean;
}

let isShared = "SharedWorker" in window;

export async function openStream(wanted: Wanted, signal: AbortSignal): Promise<Opened> {
  if (isShared) {
    try {
      return await share(wanted, signal);
    } catch (error) {
      if (error !== UNSHARED) throw error;
      isShared = false;
    }
  }
  const answer = await fetch(wanted.url, { headers: wanted.headers, signal });
  return { status: answer.status, body: answer.ok ? answer.body : null, isJoined: false };
}

const UNSHARED = new Error("The browser runs no shared workers.");
const ENDED = new Error("The stream has ended.");

function share(wanted: Wanted, signal: AbortSignal): Promise<Opened> {
  const worker = new SharedWorker(new URL("./shared-stream.ts", import.meta.url), { type: "module", name: "ojster" });
  const { port } = worker;
  const send = (request: Request): void => port.postMessage(request);
  return new Promise((resolve, reject) => {
    let events: ReadableStreamDefaultController<Uint8Array> | null = null;
    const encoder = new TextEncoder();
    const leave = (): void => {
      window.removeEventListener("pagehide", leave);
      send("leave");
      reject(signal.reason);
      events?.error(signal.reason);
      events = null;
    };
    worker.onerror = () => reject(UNSHARED);
    signal.addEventListener("abort", leave);
    window.addEventListener("pagehide", leave);
    port.onmessage = ({ data }: MessageEvent<Reply>) => {
      if ("text" in data) {
        events?.enqueue(encoder.encode(data.text));
        send("here");
      } else if ("end" in data) {
        reject(ENDED);
        events?.close();
        events = null;
      } else {
        const body = data.status === 200 ? new ReadableStream<Uint8Array>({ start: (made) => void (events = made) }) : null;
        resolve({ ...data, body });
      }
    };
    send(wanted);
  });
}
