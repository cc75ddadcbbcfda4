/** Questions before actions, and words after them. */
import { createContext, type ComponentChildren } from "preact";
import { useContext, useEffect, useMemo, useRef, useState } from "preact/hooks";
import { number } from "./format";
import { Bar, Button, FormEnd } from "./parts";
import { Line, Plain } from "./plain";
import { useSending } from "./sending";

export interface Question {
  title: string;
  /** What will happen, to how many, and what cannot be undone. */
  text: ComponentChildren;
  action: string;
  isDangerous?: boolean;
  /** A word that must be typed first. */
  word?: string;
  /** A text to ask for. */
  field?: { label: string; isRequired?: boolean };
}

interface Toast {
  key: number;
  text: string;
  undo?: () => Promise<unknown>;
  /** Why something was not done: it stays until somebody closes it, who may have looked away. */
  isRefusal: boolean;
}

/** Work on many things in parts, one after the other. */
export interface PartWork {
  /** What is done to how many, such as "Retry 45 jobs". */
  title: string;
  total: number;
  /** Does the next part; returns how many things it was about, and whether it was the last one. */
  part: () => Promise<{ size: number; isLast: boolean }>;
}

interface Running {
  key: number;
  title: string;
  total: number;
  done: number;
  isStopping: boolean;
  stop: () => void;
}

export interface Dialogs {
  /** Asks; `null` if the answer is no, else the text of the field. */
  ask: (question: Question) => Promise<string | null>;
  tell: (text: string, undo?: () => Promise<unknown>) => void;
  /** Asks if there is a question, acts, and tells what was done or why not. Returns whether it was done. */
  act: (work: (text: string) => Promise<string | void>, question?: Question, undo?: () => Promise<unknown>) => Promise<boolean>;
  /** Works in parts, and shows how far it is, with a way to stop it between two parts. Returns whether it was stopped. */
  inParts: (work: PartWork) => Promise<boolean>;
}

const Context = createContext<Dialogs | null>(null);

export function useDialogs(): Dialogs {
  const dialogs = useContext(Context);
  if (!dialogs) throw new Error("useDialogs needs DialogHost around it");
  return dialogs;
}

export function DialogHost({ children }: { children: ComponentChildren }) {
  const [asked, setAsked] = useState<{ question: Question; answer: (text: string | null) => void } | null>(null);
  const [toasts, setToasts] = useState<Toast[]>([]);
  const [running, setRunning] = useState<Running[]>([]);
  const dialogs = useMemo<Dialogs>(() => {
    let last = 0;
    const ask = (question: Question): Promise<string | null> =>
      new Promise((resolve) => {
        setAsked({
          question,
          answer: (text) => {
            setAsked(null);
            resolve(text);
          },
        });
      });
    const show = (text: string, isRefusal: boolean, undo?: () => Promise<unknown>): number => {
      const key = ++last;
      setToasts((known) => [...known.filter((one) => one.text !== text).slice(-3), { key, text, undo, isRefusal }]);
      return key;
    };
    const tell = (text: string, undo?: () => Promise<unknown>): void => {
      const key = show(text, false, undo);
      window.setTimeout(() => setToasts((known) => known.filter((one) => one.key !== key)), undo ? 10_000 : 5_000);
    };
    const act: Dialogs["act"] = async (work, question, undo) => {
      const text = question ? await ask(question) : "";
      if (text === null) return false;
      try {
        const done = await work(text);
        if (done) tell(done, undo);
        return true;
      } catch (error) {
        show((error as Error).message, true);
        return false;
      }
    };
    const inParts: Dialogs["inParts"] = async ({ title, total, part }) => {
      const key = ++last;
      let isStopped = false;
      const change = (what: (one: Running) => Partial<Running>): void =>
        setRunning((known) => known.map((one) => (one.key === key ? { ...one, ...what(one) } : one)));
      const stop = (): void => {
        isStopped = true;
        change(() => ({ isStopping: true }));
      };
      setRunning((known) => [...known, { key, title, total, done: 0, isStopping: false, stop }]);
      try {
        for (;;) {
          const { size, isLast } = await part();
          change((one) => ({ done: one.done + size }));
          if (isLast) return false;
          if (isStopped) return true;
        }
      } finally {
        setRunning((known) => known.filter((one) => one.key !== key));
      }
    };
    return { ask, tell, act, inParts };
  }, []);
  const isRunning = running.length > 0;
  const shelf = useRef<HTMLDivElement>(null);
  useEffect(() => {
    const shown = shelf.current;
    if (!shown) return;
    const isEmpty = !toasts.length && !isRunning;
    // Above dialogs, too, which are shown over everything else. Else it stays: to hide it would take the focus from its buttons.
    const isBelow = !shown.matches(":popover-open") || document.querySelector("dialog[open]") !== null;
    if (isEmpty || isBelow) shown.hidePopover();
    if (!isEmpty && isBelow) shown.showPopover();
  }, [toasts, isRunning]);
  const close = (toast: Toast): void => setToasts((known) => known.filter((one) => one !== toast));
  const undo = async (toast: Toast): Promise<void> => {
    close(toast);
    await dialogs.act(async () => {
      await toast.undo?.();
      return "Undone.";
    });
  };
  return (
    <Context.Provider value={dialogs}>
      {children}
      {asked && <Asked {...asked} />}
      <div class="toasts" popover="manual" ref={shelf}>
        {running.map((one) => (
          <div class="toast" key={one.key}>
            <span>
              {one.title}: {number(one.done)} of {number(one.total)}
            </span>
            <Bar done={one.done} of={one.total} label={one.title} />
            <Button isSmall disabled={one.isStopping} onClick={one.stop}>
              {one.isStopping ? "Stopping…" : "Stop here"}
            </Button>
          </div>
        ))}
        {/* Progress stands outside: each of its steps would be read aloud. */}
        <div class="told" role="status" aria-live="polite">
          {toasts.map((toast) => (
            <div class="toast" key={toast.key}>
              <span><Plain text={toast.text} /></span>
              {toast.undo && (
                <Button isSmall onClick={() => void undo(toast)}>
                  Undo
                </Button>
              )}
              {toast.isRefusal && <Button isSmall icon="cross" aria-label="Close the message" onClick={() => close(toast)} />}
            </div>
          ))}
        </div>
      </div>
    </Context.Provider>
  );
}

export function Dialog(props: { label: string; close: () => void; className?: string; children: ComponentChildren }) {
  const dialog = useRef<HTMLDialogElement>(null);
  useEffect(() => {
    const shown = dialog.current;
    shown?.showModal();
    return () => shown?.close(); // gives the focus back
  }, []);
  return (
    <dialog ref={dialog} class={props.className} aria-label={props.label} onClose={props.close} onCancel={props.close}>
      {props.children}
    </dialog>
  );
}

/** A dialog that makes or changes something by what is typed into its fields. */
export function NewDialog(props: {
  label: string;
  action: string;
  close: () => void;
  save: () => Promise<unknown>;
  children: ComponentChildren;
}) {
  const { isSending, once } = useSending();
  const submit = (event: Event): void => {
    event.preventDefault();
    void once(props.save);
  };
  return (
    <Dialog label={props.label} close={props.close}>
      <form onSubmit={submit}>
        <h2>{props.label}</h2>
        {props.children}
        <FormEnd action={props.action} isSending={isSending} close={props.close} />
      </form>
    </Dialog>
  );
}

function Asked({ question, answer }: { question: Question; answer: (text: string | null) => void }) {
  const [typed, setTyped] = useState("");
  const [text, setText] = useState("");
  const isReady = (!question.word || typed === question.word) && (!question.field?.isRequired || text.trim() !== "");
  return (
    <Dialog label={question.title} close={() => answer(null)}>
      <form
        onSubmit={(event) => {
          event.preventDefault();
          if (isReady) answer(text);
        }}
      >
        <h2><Line text={question.title} /></h2>
        <div>{question.text}</div>
        {question.field && (
          <label class="field">
            <span>{question.field.label}</span>
            <input class="input" value={text} onInput={(event) => setText(event.currentTarget.value)} />
          </label>
        )}
        {question.word && (
          <label class="field">
            <span>
              Type <code>{question.word}</code> to confirm
            </span>
            <input class="input" value={typed} onInput={(event) => setTyped(event.currentTarget.value)} autocomplete="off" />
          </label>
        )}
        <div class="buttons">
          <Button onClick={() => answer(null)}>Keep it as it is</Button>
          <Button type="submit" kind={question.isDangerous ? "main danger" : "main"} disabled={!isReady}>
            {question.action}
          </Button>
        </div>
      </form>
    </Dialog>
  );
}
