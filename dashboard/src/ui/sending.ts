/** A form that sends one request at a time: a second click does not send it again. */
import { useEffect, useRef, useState } from "preact/hooks";

interface Sending {
  /** Whether a request is on its way: the button that sends it is disabled. */
  isSending: boolean;
  /** Does the work unless the work before it has not ended. */
  once: (work: () => Promise<unknown>) => Promise<void>;
  /** Whether the form is still there: what was closed opens no page later. */
  isOpen: () => boolean;
}

export function useSending(): Sending {
  const [isSending, setSending] = useState(false);
  // Two clicks can come before the page is drawn again.
  const isBusy = useRef(false);
  const isThere = useRef(true);
  useEffect(() => () => void (isThere.current = false), []);
  const once = async (work: () => Promise<unknown>): Promise<void> => {
    if (isBusy.current) return;
    isBusy.current = true;
    setSending(true);
    try {
      await work();
    } finally {
      isBusy.current = false;
      if (isThere.current) setSending(false);
    }
  };
  return { isSending, once, isOpen: () => isThere.current };
}
