/**
 * A shared worker: one stream of changes for all windows of a browser that show the same to the same caller.
 *
 * A browser opens at most six connections to a server over HTTP/1.1: with a stream for each window, the seventh window would
 * wait for ever.
 */
export interface Wanted {
  /** Who asks, and for which workspace: windows share a stream only if both are the same. */
  caller: string;
  url: string;
  headers: Record<string, string>;
}

/** From a window: what it wants, that it is still there, or that it wants nothing any more. */
export type Request = Wanted | "here" | "leave";
/** To a window: the status of the stream, and whether it ran before; whole events; or its end. */
export type Reply = { status: number; isJoined: boolean } | { text: string } | { end: true };

/** A window that has not said for so long that it is there has crashed. */
const GONE_MS = 60_000;
/** A stream has a heartbeat every five seconds: without one for so long it is dead, as after a computer has slept. */
const DEAD_MS = 7_000;

class Stream {
  /** The windows, and when each was last there. */
  readonly windows = new Map<MessagePort, number>();
  private readonly connection = new AbortController();
  private heardAt = Date.now();
  private status = 0;

  constructor(private readonly end: (stream: Stream) => void) {}

  get isDead(): boolean {
    return this.connection.signal.aborted || Date.now() - this.heardAt > DEAD_MS;
  }

  join(port: MessagePort): void {
    this.windows.set(port, Date.now());
    if (this.status) port.postMessage({ status: this.status, isJoined: true } satisfies Reply);
  }

  leave(port: MessagePort): void {
    this.windows.delete(port);
    if (!this.windows.size) this.close();
  }

  close(): void {
    this.connection.abort();
  }

  async follow({ url, headers }: Wanted): Promise<void> {
    try {
      const answer = await fetch(url, { headers, signal: this.connection.signal });
      this.status = answer.status;
      this.tell({ status: answer.status, isJoined: false });
      if (answer.ok && answer.body) await this.read(answer.body);
    } catch {
      // The windows are told of the end, and find out what is wrong.
    }
    this.end(this);
    this.close();
    this.tell({ end: true });
  }

  private async read(body: ReadableStream<Uint8Array>): Promise<void> {
    const reader = body.pipeThrough(new TextDecoderStream() as ReadableWritablePair<string, Uint8Array>).getReader();
    let text = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      this.heardAt = Date.now();
      text += value;
      // Whole events alone: a window may join between two parts of one.
      const length = text.lastIndexOf("\n\n") + 2;
      if (length < 2) continue;
      this.tell({ text: text.slice(0, length) });
      text = text.slice(length);
    }
  }

  private tell(reply: Reply): void {
    const oldest = Date.now() - GONE_MS;
    for (const [port, at] of [...this.windows]) {
      if (at < oldest) this.leave(port);
      else port.postMessage(reply);
    }
  }
}

const streams = new Map<string, Stream>();

function streamOf(wanted: Wanted): Stream {
  const known = streams.get(wanted.caller);
  if (known && !known.isDead) return known;
  known?.close();
  const made = new Stream((ended) => {
    if (streams.get(wanted.caller) === ended) streams.delete(wanted.caller);
  });
  streams.set(wanted.caller, made);
  void made.follow(wanted);
  return made;
}

addEventListener("connect", (event) => {
  const port = (event as MessageEvent).ports[0];
  if (!port) return;
  let joined: Stream | null = null;
  port.onmessage = ({ data }: MessageEvent<Request>) => {
    if (data === "here") {
      if (joined?.windows.has(port)) joined.windows.set(port, Date.now());
      return;
    }
    joined?.leave(port);
    joined = null;
    if (data === "leave") port.close();
    else (joined = streamOf(data)).join(port);
  };
});
