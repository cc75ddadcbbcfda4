import { useState } from "preact/hooks";
import { Link } from "wouter-preact";
import { accepted, ApiError, client, query, type Schemas } from "../api/client";
import { useIsGlobal, useMay, useOwnQueues } from "../api/session";
import { useData } from "../api/use";
import { NewDialog, useDialogs } from "../ui/dialogs";
import { exact, many, Time } from "../ui/format";
import { Button, Empty, JobLink, Page, Shown, Table, Tabs, useInAddress } from "../ui/parts";
import { Line } from "../ui/plain";
import { Secret } from "../ui/secret";
import { State } from "../ui/states";

type Tab = "feed" | "deliveries" | "webhooks" | "channels";

interface Told {
  id: string;
  type: string;
  time: string;
  subject: string;
  data: Record<string, unknown>;
}

export function EventsPage() {
  const [tab, setTab] = useInAddress<Tab>("tab", "feed");
  const may = useMay();
  const isGlobal = useIsGlobal();
  const tabs: [Tab, string][] = [["feed", "Events"]];
  if (may("admin") && isGlobal) tabs.push(["deliveries", "Deliveries"], ["webhooks", "Webhooks"], ["channels", "Channels"]);
  return (
    <Page title="Events">
      <section class="card">
        <Tabs label="What to show" tabs={tabs} chosen={tab} choose={setTab} />
        {tab === "feed" && <Feed />}
        {tab === "deliveries" && <Deliveries />}
        {tab === "webhooks" && <Webhooks />}
        {tab === "channels" && <Channels />}
      </section>
    </Page>
  );
}

const SHOWN = 100;
const MOST_PAGES = 20;

function Feed() {
  const [kind, setKind] = useInAddress<string>("type", "");
  const queues = useOwnQueues().join();
  const feed = useData(
    `feed ${kind}`,
    async () => {
      let events: Told[] = [];
      let after: string | null = null;
      for (let pages = 0; pages < MOST_PAGES; pages++) {
        const asked = query({ types: kind, queues, limit: 1000, recent: after === null ? "true" : null, after });
        const page: Schemas["EventPage"] = await accepted(client.GET("/ojs/v1/events", { params: { query: asked } }));
        events = [...events, ...(page.events as unknown as Told[])].slice(-SHOWN);
        if (!page.has_more) break;
        after = page.cursor;
      }
      return events.reverse();
    },
    { kinds: ["job", "workflow", "queue", "worker", "cron", "system"] },
  );
  return (
    <>
      <div class="body filters" style={{ padding: "12px 16px" }}>
        <label>
          <span class="hidden">Only events of this type</span>
          <input class="input" placeholder="Type, as job.failed" value={kind} onChange={(event) => setKind(event.currentTarget.value.trim())} />
        </label>
      </div>
      <Shown of={feed} rows={10}>
        {(events) => (
          <Table<Told>
            label="Events"
            rows={events}
            keyOf={(event) => event.id}
            empty={<Empty icon="events" title="No events" />}
            columns={[
              { label: "When", cell: (event) => <span class="nowrap">{exact(event.time)}</span> },
              { label: "Event", cell: (event) => <b class="nowrap">{event.type}</b> },
              { label: "Of", className: "grow", cell: (event) => <Subject event={event} /> },
              { label: "Queue", className: "wide", cell: (event) => String(event.data.queue ?? "") },
            ]}
          />
        )}
      </Shown>
    </>
  );
}

function Subject({ event }: { event: Told }) {
  if (typeof event.data.job_id === "string") {
    return <Link href={`/jobs/${String(event.data.job_id)}`}>{String(event.data.job_type ?? event.data.job_id)}</Link>;
  }
  if (event.type.startsWith("workflow.")) return <Link href={`/workflows/${event.subject}`}>{event.subject}</Link>;
  if (event.type.startsWith("queue.")) return <Link href={`/queues/${encodeURIComponent(event.subject)}`}>{event.subject}</Link>;
  return <>{event.subject}</>;
}

function Deliveries() {
  const deliveries = useData("deliveries", () => accepted(client.GET("/ojs/v1/webhooks/deliveries", { params: { query: { per_page: "100" } } })), {
    kinds: ["webhook", "job"],
  });
  const { act } = useDialogs();
  const redeliver = async (id: string): Promise<void> => {
    await act(async () => {
      await accepted(client.POST("/ojs/v1/webhooks/deliveries/{id}/retry", { params: { path: { id } } }));
      return "It is sent again.";
    });
    deliveries.reload();
  };
  return (
    <Shown of={deliveries} rows={8}>
      {(data) => (
        <Table
          label="Deliveries"
          rows={data.deliveries}
          keyOf={(one) => one.id}
          empty={<Empty icon="events" title="Nothing was delivered">Deliveries of webhooks and notifications are listed here.</Empty>}
          columns={[
            {
              label: "Event",
              className: "grow",
              cell: (one) => (
                <>
                  <JobLink id={one.id.replace(/^del_/, "")}>{one.event_type ?? "notification"}</JobLink>
                  {one.error && one.state !== "delivered" && <span class="sub clip"><Line text={String(one.error.message ?? "")} /></span>}
                </>
              ),
            },
            { label: "State", cell: (one) => <State state={one.state} /> },
            { label: "Attempts", className: "num", cell: (one) => one.attempts },
            { label: "Created", className: "num wide", cell: (one) => <Time at={one.created_at} /> },
            { label: "Next", className: "num wide", cell: (one) => <Time at={one.next_attempt_at} /> },
            {
              label: "",
              className: "num",
              cell: (one) =>
                one.state === "dead" && (
                  <Button isSmall icon="retry" onClick={() => void redeliver(one.id)}>
                    Send delivery again
                  </Button>
                ),
            },
          ]}
        />
      )}
    </Shown>
  );
}

type Hook = Schemas["SubscriptionInfo"];

function Webhooks() {
  const hooks = useData(
    "webhooks",
    () => accepted(client.GET("/ojs/v1/webhooks/subscriptions", { params: { query: { limit: "100" } } })),
    { kinds: ["webhook"] },
  );
  const [isMaking, setMaking] = useState(false);
  const [secret, setSecret] = useState<string | null>(null);
  const { act } = useDialogs();
  const told = (hook: Hook): void => {
    setSecret(hook.secret ?? null);
    hooks.reload();
  };
  const test = async (id: string): Promise<void> => {
    await act(async () => {
      const answer = await accepted(client.POST("/ojs/v1/webhooks/subscriptions/{id}/test", { params: { path: { id } } }));
      return `The test was sent: ${JSON.stringify(answer)}`.slice(0, 200);
    });
  };
  const turn = async ({ id, active }: Hook): Promise<void> => {
    const set = (isOn: boolean): Promise<unknown> =>
      accepted(client.PATCH("/ojs/v1/webhooks/subscriptions/{id}", { params: { path: { id } }, body: { active: isOn } })).then(hooks.reload);
    await act(
      async () => {
        await set(!active);
        return active ? "Nothing is sent there until it is turned on." : "Events are sent there again.";
      },
      undefined,
      () => set(active),
    );
  };
  const rotate = async ({ id, url }: Hook): Promise<void> => {
    await act(
      async () => {
        const answer = await accepted(client.POST("/ojs/v1/webhooks/subscriptions/{id}/rotate-secret", { params: { path: { id } } }));
        told(answer.subscription);
      },
      { title: "Create a new secret?", text: `What is sent to ${url} is signed with both for a day; then with the new one alone.`, action: "Create secret" },
    );
  };
  const remove = async ({ id, url }: Hook): Promise<void> => {
    await act(
      async () => {
        await accepted(client.DELETE("/ojs/v1/webhooks/subscriptions/{id}", { params: { path: { id } } }));
        hooks.reload();
        return "The webhook was deleted.";
      },
      { title: "Delete the webhook?", text: `Nothing is sent to ${url} any more. This cannot be undone.`, action: "Delete webhook", isDangerous: true },
    );
  };
  return (
    <>
      <div class="more" style={{ borderTop: 0 }}>
        <Button icon="plus" kind="main" onClick={() => setMaking(true)}>
          New webhook
        </Button>
      </div>
      <Shown of={hooks} rows={4}>
        {(data) => (
          <Table
            label="Webhooks"
            rows={data.subscriptions}
            keyOf={(one) => one.id}
            empty={<Empty icon="events" title="No webhooks">A webhook sends events to an address of yours, signed with a secret.</Empty>}
            columns={[
              {
                label: "Address",
                className: "grow",
                cell: (one) => (
                  <>
                    <code class="clip">{one.url}</code>
                    {one.failing && (
                      <span class="sub">
                        Accepts nothing since {exact(one.failing.since)}: <Line text={one.failing.error} /> {many(one.failing.waiting, "delivery", "deliveries")}{" "}
                        {one.failing.waiting === 1 ? "waits" : "wait"}.
                      </span>
                    )}
                  </>
                ),
              },
              { label: "Events", className: "wide", cell: (one) => one.events.join(", ") },
              { label: "State", cell: (one) => <State state={one.failing ? "failed" : one.active ? "on" : "off"} /> },
              { label: "Created", className: "num wide", cell: (one) => <Time at={one.created_at} /> },
              {
                label: "",
                className: "num nowrap",
                cell: (one) => (
                  <>
                    <Button isSmall aria-label={`Test webhook ${one.url}`} onClick={() => void test(one.id)}>
                      Test webhook
                    </Button>{" "}
                    <Button isSmall aria-label={`Turn webhook ${one.active ? "off" : "on"}: ${one.url}`} onClick={() => void turn(one)}>
                      Turn webhook {one.active ? "off" : "on"}
                    </Button>{" "}
                    <Button isSmall aria-label={`Replace secret of ${one.url}`} onClick={() => void rotate(one)}>
                      Replace secret
                    </Button>{" "}
                    <Button isSmall icon="trash" kind="danger" aria-label={`Delete webhook ${one.url}`} onClick={() => void remove(one)} />
                  </>
                ),
              },
            ]}
          />
        )}
      </Shown>
      {isMaking && (
        <NewWebhook
          close={() => setMaking(false)}
          made={(hook) => {
            setMaking(false);
            told(hook);
          }}
        />
      )}
      {secret !== null && <Secret label="The webhook's secret" text={secret} close={() => setSecret(null)} />}
    </>
  );
}

function NewWebhook({ close, made }: { close: () => void; made: (hook: Hook) => void }) {
  const [url, setUrl] = useState("");
  const [events, setEvents] = useState("*");
  const { act } = useDialogs();
  const save = async (): Promise<void> => {
    await act(async () => {
      const body = { url: url.trim(), events: events.split(",").map((one) => one.trim()), active: true };
      const answer = await accepted(client.POST("/ojs/v1/webhooks/subscriptions", { body }));
      made(answer.subscription);
    });
  };
  return (
    <NewDialog label="New webhook" action="Create webhook" close={close} save={save}>
      <label class="field">
        <span>Address</span>
        <input class="input" type="url" value={url} onInput={(event) => setUrl(event.currentTarget.value)} required />
      </label>
      <label class="field">
        <span>Events</span>
        <input class="input" value={events} onInput={(event) => setEvents(event.currentTarget.value)} required />
        <small>
          Names with commas between them: <code>job.failed, workflow.*</code>; <code>*</code> for all.
        </small>
      </label>
    </NewDialog>
  );
}

function Channels() {
  const channels = useData("channels", async () => {
    try {
      return await accepted(client.GET("/ojs/v1/channels"));
    } catch (error) {
      if (error instanceof ApiError && error.status === 403) return { channels: [] };
      throw error;
    }
  });
  return (
    <Shown of={channels} rows={4}>
      {(data) => (
        <Table
          label="Channels"
          rows={data.channels}
          keyOf={(one) => one.name}
          empty={<Empty icon="events" title="No channels">A channel is a name for a webhook or an e-mail address that reactions tell.</Empty>}
          columns={[
            { label: "Channel", className: "grow", cell: (one) => <b>{one.name}</b> },
            { label: "By", cell: (one) => one.method },
            { label: "To", cell: (one) => one.url ?? (one.to ?? []).join(", ") },
            { label: "Created", className: "num wide", cell: (one) => <Time at={one.created_at} /> },
          ]}
        />
      )}
    </Shown>
  );
}
