/** Actions on several workflows, one by one, with progress and a way to stop. */
import { accepted, ApiError, client, query, type Schemas } from "../api/client";
import { useMay } from "../api/session";
import { useDialogs } from "../ui/dialogs";
import { many, number } from "../ui/format";
import { Button } from "../ui/parts";

type Info = Schemas["WorkflowInfo"];
type Act = "retry" | "cancel" | "hold" | "release";

interface Words {
  verb: string;
  done: string;
  text: string;
  icon: "retry" | "stop" | "pause" | "play";
  /** Whether it can be done to a workflow in its state. */
  suits: (workflow: Info) => boolean;
}

const WORDS: Record<Act, Words> = {
  retry: {
    verb: "Retry",
    done: "retried",
    text: "Their steps that failed or were cancelled run again. Those that completed keep their results.",
    icon: "retry",
    suits: (one) => one.finished === true && ["failed", "cancelled", "compensated"].includes(one.state),
  },
  cancel: {
    verb: "Cancel",
    done: "cancelled",
    text: "Their jobs that wait never start; those that run are asked to stop.",
    icon: "stop",
    suits: (one) => ["pending", "running"].includes(one.state),
  },
  hold: { verb: "Hold", done: "held", text: "No step of them starts until they are released. Those that run, end.", icon: "pause", suits: (one) => !one.finished && !one.held },
  release: { verb: "Release", done: "released", text: "Their steps start again.", icon: "play", suits: (one) => !one.finished && one.held === true },
};

/** Calls at the same time: a server starts what a workflow retries in the call. */
const AT_ONCE = 5;
const PAGE = 200;
/** Maximum number of workflows that are picked at once. */
export const MOST_PICKED = 10_000;

/** All workflows that match, the newest first, up to a limit; `null` if they are not wanted any more. */
export async function readMatching(filter: Record<string, string | null>, isWanted: () => boolean): Promise<Info[] | null> {
  const found: Info[] = [];
  let cursor: string | null | undefined = null;
  do {
    const asked: Record<string, string> = query({ ...filter, cursor, limit: PAGE });
    const page: Schemas["WorkflowsAnswer"] = await accepted(client.GET("/ojs/v1/workflows", { params: { query: asked } }));
    if (!isWanted()) return null;
    found.push(...page.workflows);
    cursor = page.pagination.next_cursor;
  } while (cursor && found.length < MOST_PICKED);
  return found.slice(0, MOST_PICKED);
}

/** Picked workflows with the states that a list shows now. */
export function refreshed(picked: ReadonlyMap<string, Info>, listed: Info[]): ReadonlyMap<string, Info> {
  const news = listed.filter((one) => picked.has(one.id));
  return news.length ? new Map([...picked, ...news.map((one): [string, Info] => [one.id, one])]) : picked;
}

/** Whether the next call would end like this one: there is no server, or it does not let the caller do this. */
const isFinal = (error: unknown): boolean => error instanceof ApiError && [0, 401, 403].includes(error.status);

function call(action: Act, id: string): Promise<unknown> {
  const path = { params: { path: { id } } };
  if (action === "retry") return accepted(client.POST("/ojs/v1/workflows/{id}/retry", path));
  if (action === "cancel") return accepted(client.POST("/ojs/v1/workflows/{id}/cancel", path));
  return accepted(action === "hold" ? client.POST("/ojs/v1/workflows/{id}/hold", path) : client.POST("/ojs/v1/workflows/{id}/release", path));
}

/** What can be done with the picked workflows: each button says with how many. */
export function PickedWorkflows(props: {
  picked: Info[];
  total: number;
  pickAll: () => void;
  unpick: (ids: ReadonlySet<string>) => void;
  clear: () => void;
  done: () => void;
}) {
  const { picked, total } = props;
  const may = useMay();
  const { act, inParts } = useDialogs();
  const apply = async (action: Act, chosen: Info[]): Promise<void> => {
    const { verb, done, text } = WORDS[action];
    const title = `${verb} ${many(chosen.length, "workflow")}`;
    /** Those that the action has not changed: they stay picked. */
    const left = new Set(chosen.map((one) => one.id));
    const work = async (): Promise<string> => {
      let place = 0;
      const refusals: Error[] = [];
      const isStopped = await inParts({
        title,
        total: chosen.length,
        part: async () => {
          const part = chosen.slice(place, place + AT_ONCE);
          place += AT_ONCE;
          const calls = part.map((one) => call(action, one.id).then(() => left.delete(one.id)));
          for (const outcome of await Promise.allSettled(calls)) {
            if (outcome.status === "rejected") refusals.push(outcome.reason as Error);
          }
          return { size: part.length, isLast: place >= chosen.length || refusals.some(isFinal) };
        },
      });
      const refusal = refusals.find(isFinal) ?? refusals[0];
      const refused = refusal ? ` ${number(refusals.length)} could not be: ${refusal.message}` : "";
      const isCut = isStopped || refusals.some(isFinal);
      return `${many(chosen.length - left.size, "workflow")} ${done}.${refused}${isCut ? " Stopped: the others stay as they are." : ""}`;
    };
    if (await act(work, { title: `${title}?`, text, action: title, isDangerous: action === "cancel" })) {
      props.unpick(new Set(picked.map((one) => one.id).filter((id) => !left.has(id))));
      props.done();
    }
  };
  return (
    <div class="more" role="group" aria-label="What to do with the picked workflows">
      <b>{many(picked.length, "workflow")} picked</b>
      {Math.min(total, MOST_PICKED) > picked.length && (
        <Button isSmall onClick={props.pickAll}>
          {total > MOST_PICKED ? `Pick the newest ${number(MOST_PICKED)} that match` : `Pick all ${number(total)} that match`}
        </Button>
      )}
      {may("cancel") &&
        (Object.keys(WORDS) as Act[]).map((action) => {
          const suited = picked.filter(WORDS[action].suits);
          return (
            suited.length > 0 && (
              <Button key={action} isSmall icon={WORDS[action].icon} kind={action === "cancel" ? "danger" : undefined} onClick={() => void apply(action, suited)}>
                {WORDS[action].verb} {many(suited.length, "workflow")}
              </Button>
            )
          );
        })}
      <Button isSmall kind="plain" onClick={props.clear}>
        Pick none
      </Button>
    </div>
  );
}
