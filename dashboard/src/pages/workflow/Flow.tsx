/** A flow: where it waits, what it has published, what it can be asked, and its messages. */
import { useState } from "preact/hooks";
import { accepted, client, query, type Schemas } from "../../api/client";
import { useMay } from "../../api/session";
import { useData } from "../../api/use";
import { ArgumentsForm } from "../../ui/arguments-form";
import { Dialog, useDialogs } from "../../ui/dialogs";
import { bytes, many, Time } from "../../ui/format";
import { Json } from "../../ui/json";
import { Button, Card, Empty, Facts, JobLink, Shown, Table, Turn, usePages } from "../../ui/parts";
import { type JsonSchema, SchemaForm } from "../../ui/schema-form";
import { State } from "../../ui/states";

type Info = Schemas["FlowInfo"];
type Wait = Schemas["WaitInfo"];
type Message = Schemas["MessageInfo"];

const WAITS: Record<Wait["kind"], string> = { run: "", receive: "the message ", receive_many: "messages ", listen: "a message with a key: ", listen_many: "messages with a key: ", sleep: "" };
const ANSWER_MS = 10_000;

/** Reads a flow again whenever something happens to it. */
export function useFlow(id: string, isFlow: boolean) {
  const live = { kinds: ["workflow" as const, "job" as const], id: [id] };
  const flow = useData(
    isFlow ? `flow ${id}` : null,
    () => accepted(client.GET("/ojs/v1/workflows/{id}/flow", { params: { path: { id } } })).then((one) => one.flow),
    live,
  );
  if (flow.data?.job_id) live.id.push(flow.data.job_id); // what happens to a flow happens to the job that runs it
  return flow;
}

/** Where a flow waits, above everything else of its page. */
export function FlowWaits({ id, flow, reload }: { id: string; flow: Info; reload: () => void }) {
  const may = useMay();
  const [asked, setAsked] = useState<Wait | "message" | null>(null);
  const [update, setUpdate] = useState<Schemas["UpdateInfo"] | null>(null);
  const isChanged = flow.latest_code_version !== undefined && flow.code_version !== flow.latest_code_version;
  const waits = flow.waits ?? [];
  const canAsk = may("enqueue") && !["completed", "failed", "cancelled", "discarded"].includes(flow.state);
  const close = (): void => {
    setAsked(null);
    setUpdate(null);
    reload();
  };
  return (
    <Card
      title={flow.state === "waiting" ? "Waits for" : "Flow"}
      isBare
      end={
        canAsk && (
          <span class="filters">
            <Button isSmall icon="plus" onClick={() => setAsked("message")}>
              Send a message
            </Button>
            {flow.updates?.map((one) => (
              <Button key={one.name} isSmall onClick={() => setUpdate(one)}>
                Ask {one.name}
              </Button>
            ))}
          </span>
        )
      }
    >
      <ul class="findings">
        {waits.map((wait) => (
          <li key={wait.key}>
            <span>
              <b>
                {WAITS[wait.kind]}
                {wait.kind === "sleep" ? "a time" : wait.name}
              </b>{" "}
              began <Time at={wait.since} />
              {wait.until && (
                <>
                  , ends <Time at={wait.until} />
                </>
              )}
              {wait.at && (
                <span class="place">
                  {wait.at}: <code>{wait.code}</code>
                </span>
              )}
            </span>
            {canAsk && (wait.kind === "receive" || wait.kind === "receive_many") && (
              <span style={{ marginLeft: "auto" }}>
                <Button isSmall kind="main" onClick={() => setAsked(wait)}>
                  Send {wait.name}
                </Button>
              </span>
            )}
          </li>
        ))}
        {!waits.length && <li>{saidOf(flow)}</li>}
        {isChanged && (
          <li>
            <span>
              The code of its function has changed since the run began: <code>{flow.code_version}</code>, now <code>{flow.latest_code_version}</code>.
            </span>
          </li>
        )}
      </ul>
      {asked && <SendDialog id={id} wait={asked === "message" ? null : asked} close={close} />}
      {update && <UpdateDialog id={id} update={update} close={close} />}
    </Card>
  );
}

function saidOf(flow: Info): string {
  if (flow.state === "active") return "A worker runs its function.";
  if (flow.state === "available") return "It is ready, and waits for a worker.";
  return `Its function is ${flow.state}.`;
}

const formOf = (form: unknown, title: string, otherwise: string): JsonSchema => ({
  ...((form as JsonSchema | undefined) ?? { description: otherwise }),
  title,
});

function SendDialog({ id, wait, close }: { id: string; wait: Wait | null; close: () => void }) {
  const { act } = useDialogs();
  const [name, setName] = useState(wait?.name ?? "");
  const send = async (data: unknown): Promise<void> => {
    const isDone = await act(async () => {
      const body = { name, data } as Schemas["MessageBody"];
      await accepted(client.POST("/ojs/v1/workflows/{id}/messages", { params: { path: { id } }, body }));
      return `The message ${name} was sent.`;
    });
    if (isDone) close();
  };
  const otherForm = wait?.kind === "receive_many" ? undefined : wait?.form;
  return (
    <Dialog label="Send a message" close={close}>
      {!wait && (
        <label class="field">
          <span>Name of the message</span>
          <input class="input" value={name} onInput={(event) => setName(event.currentTarget.value)} />
        </label>
      )}
      <SchemaForm
        schema={formOf(otherForm, name ? `Send ${name}` : "Send a message", "Any JSON value. It is kept until the flow receives it.")}
        label="Data"
        action="Send message"
        send={send}
        close={close}
      />
    </Dialog>
  );
}

function UpdateDialog({ id, update, close }: { id: string; update: Schemas["UpdateInfo"]; close: () => void }) {
  const { act } = useDialogs();
  const [answer, setAnswer] = useState<Schemas["UpdateAnswer"] | null>(null);
  const send = async (args: unknown[]): Promise<void> => {
    await act(async () => {
      const body = { name: update.name, args, wait_ms: ANSWER_MS } as Schemas["UpdateBody"];
      setAnswer(await accepted(client.POST("/ojs/v1/workflows/{id}/updates", { params: { path: { id } }, body })));
    });
  };
  return (
    <Dialog label={`Ask ${update.name}`} close={close}>
      {answer ? (
        <div class="inside">
          <div class="head">
            <h2>{update.name}</h2>
            <State state={answer.state} />
          </div>
          {answer.state === "waiting" && <p>The flow has not answered yet. It handles the update later.</p>}
          {answer.result !== undefined && <Json value={answer.result} label="the answer" />}
          {answer.error !== undefined && <Json value={answer.error} label="the error" />}
          <div class="buttons">
            <Button kind="main" onClick={close}>
              Close
            </Button>
          </div>
        </div>
      ) : (
        <ArgumentsForm schema={(update.form as JsonSchema | undefined) ?? null} title={`Ask ${update.name}`} action="Ask flow" args={[]} send={send} close={close} />
      )}
    </Dialog>
  );
}

/** What a flow has published, and what was sent to it. */
export function FlowTab({ id, flow }: { id: string; flow: Info }) {
  const pages = usePages();
  const [state, setState] = useState("");
  const { cursor } = pages;
  const messages = useData(
    `messages ${id} ${state} ${cursor ?? ""}`,
    () => accepted(client.GET("/ojs/v1/workflows/{id}/messages", { params: { path: { id }, query: query({ state, cursor }) } })),
    { kinds: ["workflow", "job"], id: [id, flow.job_id ?? undefined] },
  );
  return (
    <div class="body stack">
      <Facts
        facts={[
          ["Function", flow.name],
          ["Began", flow.began_at && <Time at={flow.began_at} />],
          ["Code", flow.code_version && <code>{flow.code_version}</code>],
          ["Job", flow.job_id && <JobLink id={flow.job_id} />],
          ["Not received", flow.messages_waiting ? many(flow.messages_waiting, "message") : null],
          ["Not answered", flow.updates_waiting ? many(flow.updates_waiting, "update") : null],
        ]}
      />
      {flow.published !== undefined && (
        <div>
          <h3>
            Published <Time at={flow.published_at} />
          </h3>
          <Json value={flow.published} label="what it has published" />
        </div>
      )}
      <div>
        <h3>Messages and updates</h3>
        <label class="field">
          <span>Which</span>
          <select
            class="input"
            value={state}
            onChange={(event) => {
              pages.begin();
              setState(event.currentTarget.value);
            }}
          >
            <option value="">All</option>
            <option value="waiting">Waiting</option>
            <option value="received">Received</option>
          </select>
        </label>
        <Shown of={messages}>
          {(data) => (
            <>
              <Table<Message>
                label="Messages and updates"
                rows={data.messages}
                keyOf={(one) => String(one.number)}
                empty={<Empty title="There are none" />}
                columns={[
                  { label: "Name", cell: (one) => <b>{one.name}</b> },
                  { label: "State", cell: (one) => <State state={one.state} label={one.kind === "update" ? `update, ${one.state}` : one.state} /> },
                  {
                    label: "Content",
                    className: "grow",
                    cell: (one) => (
                      <>
                        {one.data === undefined ? <span class="quiet">{bytes(one.size)}</span> : <Json value={one.data} label={`the data of ${one.number}`} />}
                        {one.answer !== undefined && <Json value={one.answer} label={`the answer to ${one.number}`} />}
                        {one.error !== undefined && <Json value={one.error} label={`the error of ${one.number}`} />}
                      </>
                    ),
                  },
                  { label: "By", className: "wide", cell: (one) => one.sent_by ?? "" },
                  { label: "Sent", className: "num", cell: (one) => <Time at={one.sent_at} /> },
                ]}
              />
              <div class="more">
                <Turn newer={pages.newer} older={pages.older(data.next_cursor)} />
              </div>
            </>
          )}
        </Shown>
      </div>
    </div>
  );
}
