/** An error of a job or a step, with its backtrace. */
import type { ComponentChildren } from "preact";
import { Long } from "./json";
import { Line } from "./plain";

interface Failed {
  type?: unknown;
  message?: unknown;
  backtrace?: unknown;
}

/** `of`: what stands beside its type; the children stand behind it. */
export function Failure(props: { error: Failed; of?: string; children?: ComponentChildren }) {
  const { type, message, backtrace } = props.error;
  return (
    <div class="failure">
      <b>
        <Line text={String(type ?? "Error")} /> {props.of && <span class="quiet">{props.of}</span>}
      </b>
      <Long text={String(message ?? "")} className="told" />
      {Array.isArray(backtrace) && (
        <pre class="trace" tabIndex={0}>
          <Long text={backtrace.join("\n")} />
        </pre>
      )}
      {props.children}
    </div>
  );
}
