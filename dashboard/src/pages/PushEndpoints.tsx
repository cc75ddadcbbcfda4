/** Push endpoints: functions that get jobs over HTTP, with their troubles, their limits and what waits for them. */
import { useState } from "preact/hooks";
import { Link } from "wouter-preact";
import { accepted, client, query, type Schemas } from "../api/client";
import { useMay } from "../api/session";
import { useData } from "../api/use";
import { NewDialog, useDialogs } from "../ui/dialogs";
import { compact, durationOf, many, secondsOf, Time } from "../ui/format";
import { NumberField, numberIn, RateField, rateIn, rateInWords, rateOf, SpanField, spanIn, spanOf } from "../ui/limit-fields";
import { Bar, Button, Card, Empty, Shown, Table } from "../ui/parts";
import { Line } from "../ui/plain";
import { Secret } from "../ui/secret";
import { State } from "../ui/states";
import { joined } from "./job-filters";

type Endpoint = Schemas["PushEndpointInfo"];

/** Facets name no more queues: the jobs of others are not counted. */
const MOST_QUEUES = 50;

/** `running`: the jobs that each worker has, by its id. */
export function PushEndpoints({ running }: { running: ReadonlyMap<string, number> }) {
  const may = useMay();
  const { act } = useDialogs();
  const [edited, setEdited] = useState<Endpoint | "new" | null>(null);
  const [secret, setSecret] = useState<string | null>(null);
  const endpoints = useData(may("admin") ? "push endpoints" : null, () => accepted(client.GET("/ojs/v1/push/endpoints")), {
    kinds: ["push", "worker"],
  });
  const isUsed = Boolean(endpoints.data?.endpoints.length);
  const waiting = useData(
    isUsed ? "waiting for endpoints" : null,
    async () => {
      const { facets, exact } = await accepted(client.GET("/ojs/v1/job-facets", { params: { query: query({ state: "available" }) } }));
      const queues = facets.queue ?? [];
      return { jobs: new Map(queues.map((one) => [one.value, one.jobs])), isWhole: exact.includes("queue") && queues.length < MOST_QUEUES };
    },
    { kinds: ["job"] },
  );
  if (!may("admin")) return null;
  const told = (endpoint: Endpoint): void => {
    setSecret(endpoint.config.signing_secret ?? null);
    endpoints.reload();
  };
  return (
    <Card
      title="Push endpoints"
      isBare
      end={
        <Button icon="plus" isSmall onClick={() => setEdited("new")}>
          New endpoint
        </Button>
      }
    >
      <Shown of={endpoints} rows={2}>
        {(data) => (
          <Table<Endpoint>
            label="Push endpoints"
            rows={data.endpoints}
            keyOf={(one) => one.id}
            empty={<Empty title="No push endpoints">A push endpoint is a function or a web application that gets jobs over HTTP, without workers.</Empty>}
            columns={[
              { label: "Endpoint", className: "grow", cell: (one) => <Named endpoint={one} /> },
              { label: "State", cell: (one) => <EndpointState endpoint={one} /> },
              { label: "Busy", cell: (one) => <Busy endpoint={one} running={running.get(one.worker_id) ?? 0} /> },
              { label: "Waiting", className: "num", cell: (one) => <Waiting endpoint={one} {...waiting.data} /> },
              {
                label: "",
                className: "num nowrap",
                cell: (one) => <EndpointActions endpoint={one} edit={() => setEdited(one)} told={told} act={act} reload={endpoints.reload} />,
              },
            ]}
          />
        )}
      </Shown>
      {edited && (
        <EndpointForm
          endpoint={edited === "new" ? null : edited}
          close={() => setEdited(null)}
          done={(endpoint) => {
            if (edited === "new") told(endpoint);
            else endpoints.reload();
            setEdited(null);
          }}
        />
      )}
      {secret !== null && <Secret label="The endpoint's secret" text={secret} close={() => setSecret(null)} />}
    </Card>
  );
}

/** Its name and address, and if its function takes no jobs, why and since when. */
function Named({ endpoint: { id, endpoint, queues, job_types, state, reason, troubled_since, suspended_until } }: { endpoint: Endpoint }) {
  return (
    <>
      <b>{id}</b>
      <code class="sub clip">{endpoint}</code>
      <span class="sub">
        {queues.join(", ")}
        {job_types.length > 0 && <>, only {job_types.join(", ")}</>}
      </span>
      {reason && (
        <span class="sub" style={{ display: "block" }}>
          Takes no jobs{troubled_since && <> since <Time at={troubled_since} /></>}: <Line text={reason.replace(/\.?$/, ".")} />{" "}
          {state === "disabled" ? "It gets none until you resume it." : state === "suspended" && suspended_until && <>It gets one to try <Time at={suspended_until} />.</>}
        </span>
      )}
    </>
  );
}

function EndpointState({ endpoint: { state } }: { endpoint: Endpoint }) {
  if (state === "disabled") return <State state="failed" label="disabled" />;
  return <State state={state === "active" ? "on" : state} />;
}

function Busy({ endpoint, running }: { endpoint: Endpoint; running: number }) {
  const { max_concurrency: most, rate } = endpoint.config;
  return (
    <>
      <span class="progress">
        <Bar done={running} of={most} label={`Jobs that ${endpoint.id} has`} />
        <span class="num nowrap">
          {compact(running)} of {compact(most)}
        </span>
      </span>
      {rate && <span class="sub nowrap">at most {rateInWords(rate)}</span>}
    </>
  );
}

/** How many jobs wait in its queues: also those of other types, and those that workers may take. */
function Waiting({ endpoint, jobs, isWhole }: { endpoint: Endpoint; jobs?: ReadonlyMap<string, number>; isWhole?: boolean }) {
  if (!jobs) return null;
  const sum = endpoint.queues.reduce((all, queue) => all + (jobs.get(queue) ?? 0), 0);
  const where = new URLSearchParams({ state: "available", queue: joined(endpoint.queues) });
  return (
    <Link href={`/jobs?${where}`} aria-label={`${many(sum, "job")} in the queues of ${endpoint.id}`}>
      {isWhole ? "" : "≥ "}
      {compact(sum)}
    </Link>
  );
}

function EndpointActions(props: {
  endpoint: Endpoint;
  edit: () => void;
  told: (endpoint: Endpoint) => void;
  act: ReturnType<typeof useDialogs>["act"];
  reload: () => void;
}) {
  const { act, reload } = props;
  const { id, state } = props.endpoint;
  const path = { params: { path: { id } } };
  const isOff = state !== "active";
  const set = (isOn: boolean): Promise<unknown> =>
    accepted(isOn ? client.POST("/ojs/v1/push/endpoints/{id}/resume", path) : client.POST("/ojs/v1/push/endpoints/{id}/pause", path)).then(reload);
  const turn = (isOn: boolean): Promise<boolean> =>
    act(
      async () => {
        await set(isOn);
        return isOn ? `${id} gets jobs again.` : `${id} gets no more jobs. Those that it has go on.`;
      },
      undefined,
      isOn && state !== "paused" ? undefined : () => set(!isOn),
    );
  const rotate = (): Promise<boolean> =>
    act(
      async () => props.told((await accepted(client.POST("/ojs/v1/push/endpoints/{id}/rotate-secret", path))).push_endpoint),
      { title: "Create a new secret?", text: `What is sent to ${id} is signed with both for a day; then with the new one alone.`, action: "Create secret" },
    );
  const remove = (): Promise<boolean> =>
    act(
      async () => {
        await accepted(client.DELETE("/ojs/v1/push/endpoints/{id}", path));
        reload();
        return `${id} was deleted.`;
      },
      { title: `Delete the endpoint ${id}?`, text: "Jobs that its function has go back to their queues. This cannot be undone.", action: "Delete endpoint", isDangerous: true },
    );
  return (
    <>
      <Button isSmall aria-label={`${isOff ? "Resume" : "Pause"} endpoint ${id}`} onClick={() => void turn(isOff)}>
        {isOff ? "Resume endpoint" : "Pause endpoint"}
      </Button>{" "}
      <Button isSmall aria-label={`Edit endpoint ${id}`} onClick={props.edit}>
        Edit endpoint
      </Button>{" "}
      <Button isSmall aria-label={`Replace secret of ${id}`} onClick={() => void rotate()}>
        Replace secret
      </Button>{" "}
      <Button isSmall icon="trash" kind="danger" aria-label={`Delete endpoint ${id}`} onClick={() => void remove()} />
    </>
  );
}

const words = (text: string): string[] => text.split(/[\s,]+/).filter(Boolean);

/** Creates an endpoint, or changes one; its secret stays. */
function EndpointForm(props: { endpoint: Endpoint | null; close: () => void; done: (endpoint: Endpoint) => void }) {
  const { endpoint } = props;
  const config = endpoint?.config;
  const { act } = useDialogs();
  const [id, setId] = useState(endpoint?.id ?? "");
  const [url, setUrl] = useState(endpoint?.endpoint ?? "");
  const [queues, setQueues] = useState((endpoint?.queues ?? ["default"]).join(", "));
  const [types, setTypes] = useState((endpoint?.job_types ?? []).join(", "));
  const [most, setMost] = useState(String(config?.max_concurrency ?? ""));
  const [rate, setRate] = useState(rateOf(config?.rate));
  const [timeout, setTimeout] = useState(spanOf(config && durationOf(config.timeout_ms / 1000)));
  const save = async (): Promise<void> => {
    await act(async () => {
      const span = spanIn(timeout, "Time of a call");
      const limits = {
        ...(most.trim() ? { max_concurrency: numberIn(most, "Jobs at once") ?? undefined } : {}),
        ...(span ? { timeout_ms: Math.round((secondsOf(span) ?? 0) * 1000) } : {}),
        rate: rateIn(rate, "Deliveries"),
      };
      const body = { endpoint: url.trim(), queues: words(queues), job_types: words(types), config: limits } as Schemas["PushEndpointBody"];
      if (!endpoint) await refuseKnown(id.trim());
      const answer = await accepted(client.PUT("/ojs/v1/push/endpoints/{id}", { params: { path: { id: id.trim() } }, body }));
      props.done(answer.push_endpoint);
      return endpoint ? `${endpoint.id} was changed.` : undefined;
    });
  };
  return (
    <NewDialog label={endpoint ? `Edit the endpoint ${endpoint.id}` : "New endpoint"} action={endpoint ? "Change endpoint" : "Create endpoint"} close={props.close} save={save}>
      {!endpoint && <Text label="Name" value={id} set={setId} isRequired />}
      <Text label="Address" type="url" value={url} set={setUrl} isRequired />
      <Text label="Queues" value={queues} set={setQueues} isRequired />
      <Text label="Job types; empty: all" value={types} set={setTypes} />
      <NumberField label="Jobs at once" value={most} set={setMost} empty="10" />
      <RateField label="Deliveries" value={rate} set={setRate} />
      <SpanField label="Time of a call" value={timeout} set={setTimeout} empty="30 seconds" />
    </NewDialog>
  );
}

function Text(props: { label: string; value: string; set: (text: string) => void; type?: string; isRequired?: boolean }) {
  return (
    <label class="field">
      <span>{props.label}</span>
      <input class="input" type={props.type} value={props.value} onInput={(event) => props.set(event.currentTarget.value)} required={props.isRequired} />
    </label>
  );
}

/** Throws if there is an endpoint of this name: a new one must not replace it. */
async function refuseKnown(id: string): Promise<void> {
  const { endpoints } = await accepted(client.GET("/ojs/v1/push/endpoints"));
  if (endpoints.some((one) => one.id === id)) throw new Error(`There is an endpoint ${id} already. Edit that one, or choose another name.`);
}
