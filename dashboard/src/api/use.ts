import { useCallback, useEffect, useRef, useState } from "preact/hooks";
import { type ApiError, secondHandAnswers } from "./client";
import { type Changes, type Kind, listen } from "./live";

export interface Loaded<T> {
  data: T | undefined;
  error: ApiError | undefined;
  isLoading: boolean;
  reload: () => void;
}

interface Liveness {
  /** Kinds of events after which the data is read again. */
  kinds?: Kind[];
  /** Read again only if the change concerns this job or workflow, or one of these. */
  id?: string | (string | undefined)[];
  /** Whether time alone changes it, so that it is read again every few seconds without a change, too. */
  isTimed?: boolean;
  /** While it returns true, changes wait. */
  isHeld?: () => boolean;
}

interface Current<T> {
  key: string | null;
  data?: T;
  error?: ApiError;
  isLoading: boolean;
  /** Whether an answer is on its way, and whether to ask again when it has come. */
  isReading: boolean;
  isAgain: boolean;
}

const MAX_KEPT = 100;
/** Time after which what the server, or a proxy before it, could not answer is asked for again. */
const RETRY_MS = 5_000;
/** Time after which an answer to the same question has what the first did not: longer than the second between two changes. */
const AGE_MS = 1_100;
/** Time between two looks at whether a page that is held may change. */
const HELD_MS = 500;
/** Time after which what is shown is drawn again, because how long something waits or runs grows. */
const DRAW_MS = 10_000;
const kept = new Map<string, unknown>();

function keep(key: string, value: unknown): void {
  kept.delete(key);
  kept.set(key, value);
  if (kept.size > MAX_KEPT) kept.delete(kept.keys().next().value as string);
}

/** Forgets what was read, as after a login. */
export function forgetAll(): void {
  kept.clear();
}

function concerns(changes: Changes, live: Liveness): boolean {
  if (changes.is_lost) return true;
  if (!live.kinds?.some((kind) => changes.kinds[kind])) return false;
  if (live.id === undefined || changes.ids === null) return true;
  return changes.ids.some((id) => (Array.isArray(live.id) ? live.id.includes(id) : live.id === id));
}

/** Data of the server: what was read before is shown at once, and read again when it changes. */
export function useData<T>(key: string | null, load: () => Promise<T>, live: Liveness = {}): Loaded<T> {
  const [, redraw] = useState(0);
  const state = useRef<Current<T>>({ key: null, isLoading: false, isReading: false, isAgain: false });
  const loader = useRef(load);
  loader.current = load;
  const liveness = useRef(live);
  liveness.current = live;
  const retrying = useRef(0);
  const ageing = useRef(0);
  if (state.current.key !== key) {
    state.current = {
      key,
      data: key === null ? undefined : (kept.get(key) as T | undefined),
      isLoading: key !== null,
      isReading: false,
      isAgain: false,
    };
  }

  const read = useCallback(async (isSecond = false) => {
    const current = state.current;
    if (current.key === null) return;
    // While an answer is on its way, no other is asked for: a busy server would never be shown.
    current.isAgain = current.isReading;
    if (current.isReading) return;
    current.isReading = true;
    window.clearTimeout(ageing.current);
    let known = 0;
    let isAsked = !isSecond;
    do {
      isAsked ||= current.isAgain;
      current.isAgain = false;
      known = secondHandAnswers();
      try {
        const data = await loader.current();
        if (state.current !== current) return;
        current.data = data;
        current.error = undefined;
        keep(current.key, data);
      } catch (error) {
        if (state.current !== current) return;
        current.error = error as ApiError;
        if (current.error.status === 404) {
          // It was deleted meanwhile: what it was must not look as if it still were.
          current.data = undefined;
          kept.delete(current.key);
        }
        window.clearTimeout(retrying.current);
        const { status } = current.error;
        if (status === 0 || status >= 500) retrying.current = window.setTimeout(() => void read(), RETRY_MS);
      }
      current.isLoading = false;
      redraw((count) => count + 1);
    } while (current.isAgain);
    current.isReading = false;
    // What was read after a change may be from before it: nothing else would tell the page to read again.
    const isLive = (liveness.current.kinds?.length ?? 0) > 0;
    if (isLive && isAsked && secondHandAnswers() > known) ageing.current = window.setTimeout(again, AGE_MS);
  }, []);
  const again = useCallback((): void => {
    if (liveness.current.isHeld?.()) ageing.current = window.setTimeout(again, HELD_MS);
    else void read(true);
  }, [read]);

  useEffect(() => {
    void read();
    return () => {
      window.clearTimeout(retrying.current);
      window.clearTimeout(ageing.current);
    };
  }, [key, read]);

  const isLive = (live.kinds?.length ?? 0) > 0;
  useEffect(() => {
    if (!isLive || key === null) return;
    let timer = 0;
    const later = (): void => {
      timer = 0;
      if (liveness.current.isHeld?.()) timer = window.setTimeout(later, HELD_MS);
      else void read();
    };
    const stop = listen((changes) => {
      if (!timer && concerns(changes, liveness.current)) timer = window.setTimeout(later, 0);
    });
    const drawing = window.setInterval(() => {
      if (document.hidden || liveness.current.isHeld?.()) return;
      if (liveness.current.isTimed) void read();
      else redraw((count) => count + 1);
    }, DRAW_MS);
    return () => {
      stop();
      window.clearInterval(drawing);
      window.clearTimeout(timer);
    };
  }, [key, isLive, read]);

  const { data, error, isLoading } = state.current;
  return { data, error, isLoading, reload: () => void read() };
}
