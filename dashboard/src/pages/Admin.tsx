import { useContext, useState } from "preact/hooks";
import { useLocation, useSearch } from "wouter-preact";
import { accepted, client, type Schemas } from "../api/client";
import { SessionContext, useMay } from "../api/session";
import { useData } from "../api/use";
import { NewDialog, useDialogs } from "../ui/dialogs";
import { bytes, compact, duration, number, period, Time } from "../ui/format";
import { Button, Empty, Facts, Page, Shown, Table, Tabs } from "../ui/parts";
import { Line } from "../ui/plain";
import { Secret } from "../ui/secret";
import { Audit } from "./Audit";

type Tab = "tenants" | "tokens" | "audit" | "system";

const ROLES = ["viewer", "contributor", "producer", "worker", "coder", "owner"] as const;

/** Whether the caller's token is for all workspaces, whichever is chosen: settings are those of the server. */
const useIsEverywhere = (): boolean => useContext(SessionContext)?.tenants === null;

export function AdminPage() {
  const may = useMay();
  const [path, go] = useLocation();
  const asked = new URLSearchParams(useSearch()).get("tab") as Tab | null;

  const isEverywhere = useIsEverywhere();
  const tabs: [Tab, string][] = [["system", "Server"]];
  if (may("admin") && isEverywhere) tabs.push(["tenants", "Workspaces"], ["tokens", "Tokens"], ["audit", "Audit log"]);
  const tab = tabs.some(([one]) => one === asked) ? (asked as Tab) : "system";
  return (
    <Page title="Settings">
      <section class="card">
        <Tabs label="Settings" tabs={tabs} chosen={tab} choose={(next) => go(`${path}?tab=${next}`)} />
        {tab === "system" && <System />}
        {tab === "tenants" && <Tenants />}
        {tab === "tokens" && <Tokens />}
        {tab === "audit" && <Audit />}
      </section>
    </Page>
  );
}

/** What each operation lets the caller do. */
const RIGHTS: Record<string, string> = {
  inspect: "read jobs, workflows and queues",
  enqueue: "enqueue jobs and start workflows",
  cancel: "cancel, retry and answer",
  dequeue: "run jobs as a worker",
  admin: "change settings, limits and tokens",
  code: "enqueue jobs that carry code",
};

/** Who is here, and what the server is: also those who may change nothing see it. */
function You() {
  const session = useContext(SessionContext);
  const server = useData("manifest", () => accepted(client.GET("/ojs/manifest")));
  if (!session) return null;
  return (
    <div>
      <h2>You</h2>
      <Facts
        facts={[
          ["Token", session.who ?? (session.needs_token ? null : "none: this server asks for no token")],
          ["Workspaces", session.tenants?.join(", ") ?? "all"],
          ["Queues", session.queues.join(", ") || "all"],
          ["You may", session.operations.map((one) => RIGHTS[one] ?? one).join("; ")],
          ["Server", server.data && `${server.data.implementation.name} ${server.data.implementation.version} on ${server.data.backend}`],
        ]}
      />
      {!session.operations.includes("admin") && <p class="quiet">Workspaces, tokens and the audit log are for owners. Ask one for a token with the role owner.</p>}
    </div>
  );
}

function System() {
  const may = useMay();
  const { act } = useDialogs();
  const isEverywhere = useIsEverywhere();
  const seesServer = may("inspect") && isEverywhere;
  const maintenance = useData(seesServer ? "maintenance" : null, () => accepted(client.GET("/ojs/v1/admin/system/maintenance")), { kinds: ["system"] });
  const settings = useData(may("admin") && isEverywhere ? "settings" : null, () => accepted(client.GET("/ojs/v1/admin/system/config")));
  const set = (enabled: boolean, reason?: string): Promise<unknown> =>
    accepted(client.POST("/ojs/v1/admin/system/maintenance", { body: { enabled, reason: reason || null } })).then(maintenance.reload);
  const change = async (isOn: boolean): Promise<void> => {
    await act(
      async (reason) => {
        await set(!isOn, reason);
        return isOn ? "Workers get jobs again." : "Workers get no jobs until you turn maintenance off.";
      },
      isOn
        ? undefined
        : {
            title: "Turn maintenance on?",
            text: "Workers get no jobs, and schedules create none, until you turn it off. Jobs can still be pushed, and running jobs continue.",
            action: "Turn maintenance on",
            isDangerous: true,
            field: { label: "Reason, for others" },
          },
      () => set(isOn),
    );
  };
  return (
    <div class="body stack">
      <You />
      {seesServer && <Shown of={maintenance} rows={1}>
        {(data) => (
          <div class="head">
            <h2>Maintenance</h2>
            <span>{data.enabled ? `On${data.reason ? `: ${data.reason}` : ""}` : "Off"}</span>
            {may("admin") && (
              <Button icon={data.enabled ? "play" : "pause"} kind={data.enabled ? "main" : undefined} onClick={() => void change(data.enabled)}>
                {data.enabled ? "Turn maintenance off" : "Turn maintenance on"}
              </Button>
            )}
          </div>
        )}
      </Shown>}
      {may("admin") && isEverywhere && (
        <Shown of={settings}>
          {(data) => (
            <Facts
              facts={[
                ["Database", `${data.backend}, schema ${data.schema_version}`],
                ["Lists are read from", source(data.replica)],
                ["Lease of a job", period(data.default_visibility_timeout)],
                ["Silence of a worker", period(data.heartbeat_timeout)],
                ["Largest job", bytes(data.max_job_bytes)],
                ["Largest batch", compact(data.max_batch_size)],
                ...Object.entries(data.retention).map(keeping),
              ]}
            />
          )}
        </Shown>
      )}
    </div>
  );
}

/** What is kept for a time, in words. */
const KEPT: Record<string, string> = {
  completed: "completed jobs",
  cancelled: "cancelled jobs",
  discarded: "discarded jobs",
  dead_letter: "dead letters",
  audit: "the audit log",
  logs: "logs of jobs",
};

/** How long something is kept; of dead letters also how many. */
function keeping([what, kept]: [string, string | number | null]): [string, string] {
  if (what === "most_dead_letters") return ["Most dead letters", kept === null ? "no limit" : number(Number(kept))];
  return [`Keeps ${KEPT[what] ?? what}`, typeof kept === "string" ? period(kept) : "for ever"];
}

function source(replica: Schemas["ReplicaBody"] | null | undefined): string {
  if (!replica) return "the database";
  const lag = replica.lag_seconds === null ? "its lag is unknown" : `it is ${duration(replica.lag_seconds * 1000)} behind`;
  return replica.is_used ? `a replica: ${lag}` : `the database, not the replica: ${lag}`;
}

function Tenants() {
  const tenants = useData("tenants", () => accepted(client.GET("/ojs/v1/admin/tenants", { params: { query: { per_page: "100" } } })), {
    kinds: ["job"],
  });
  const { act } = useDialogs();
  const limit = async (tenant: Schemas["TenantInfo"]): Promise<void> => {
    const isDone = await act(
      async (text) => {
        const most = text.trim() === "" ? null : Number(text);
        if (most !== null && !Number.isInteger(most)) throw new Error(`${text} is no whole number.`);
        const body = { ...tenant.limits, max_concurrency: most } as Schemas["TenantLimitsBody"];
        await accepted(client.PUT("/ojs/v1/admin/tenants/{id}/limits", { params: { path: { id: tenant.tenant_id } }, body }));
        return `The limit of ${tenant.tenant_id} was changed.`;
      },
      {
        title: `Limit ${tenant.tenant_id}`,
        text: `So many of its jobs run at once, in all queues. Now: ${tenant.limits.max_concurrency ?? "no limit"}.`,
        action: "Change limit",
        field: { label: "Jobs at once; empty: no limit" },
      },
    );
    if (isDone) tenants.reload();
  };
  return (
    <Shown of={tenants} rows={6}>
      {(data) => (
        <Table
          label="Workspaces"
          rows={data.tenants}
          keyOf={(tenant) => tenant.tenant_id}
          empty={<Empty title="No workspaces">A tenant begins with its first job: the header X-OJS-Tenant names it.</Empty>}
          columns={[
            { label: "Workspace", className: "grow", cell: (tenant) => <b>{tenant.tenant_id}</b> },
            { label: "Waiting", className: "num", cell: (tenant) => compact(tenant.jobs.available ?? 0) },
            { label: "Running", className: "num", cell: (tenant) => `${compact(tenant.jobs.active ?? 0)}${tenant.limits.max_concurrency ? ` of ${tenant.limits.max_concurrency}` : ""}` },
            { label: "Gave up", className: "num wide", cell: (tenant) => compact(tenant.jobs.discarded ?? 0) },
            { label: "Done in 24 h", className: "num wide", cell: (tenant) => compact(tenant.jobs.completed_24h) },
            { label: "Weight", className: "num wide", cell: (tenant) => tenant.fairness_weight },
            {
              label: "",
              className: "num",
              cell: (tenant) => tenant.tenant_id !== "_default" && (
                <Button isSmall aria-label={`Change limit of ${tenant.tenant_id}`} onClick={() => void limit(tenant)}>
                  Change limit
                </Button>
              ),
            },
          ]}
        />
      )}
    </Shown>
  );
}

function Tokens() {
  const tokens = useData("tokens", () => accepted(client.GET("/ojs/v1/admin/tokens")));
  const [secret, setSecret] = useState<string | null>(null);
  const [isMaking, setMaking] = useState(false);
  const { act } = useDialogs();
  const rotate = async (id: string, name: string): Promise<void> => {
    await act(
      async () => {
        const made = await accepted(client.POST("/ojs/v1/admin/tokens/{id}/rotate", { params: { path: { id } } }));
        setSecret(made.token.secret ?? null);
      },
      { title: `Rotate ${name}?`, text: "It gets a new secret. The old one stays valid for one day.", action: "Rotate token" },
    );
    tokens.reload();
  };
  const revoke = async (id: string, name: string): Promise<void> => {
    await act(
      async () => {
        await accepted(client.DELETE("/ojs/v1/admin/tokens/{id}", { params: { path: { id } } }));
        return `${name} was revoked.`;
      },
      { title: `Revoke ${name}?`, text: "Whoever uses it is refused at once. This cannot be undone.", action: "Revoke token", isDangerous: true },
    );
    tokens.reload();
  };
  return (
    <>
      <div class="more" style={{ borderTop: 0 }}>
        <Button icon="plus" kind="main" onClick={() => setMaking(true)}>
          New token
        </Button>
      </div>
      <Shown of={tokens} rows={4}>
        {(data) => (
          <Table
            label="Tokens"
            rows={data.tokens}
            keyOf={(token) => token.id}
            empty={<Empty title="No tokens">Without any, only callers on this machine are served, and need none.</Empty>}
            columns={[
              { label: "Token", className: "grow", cell: (token) => (
                <>
                  <b><Line text={token.name} /></b> {token.is_session && <small>logged in</small>}
                </>
              ) },
              { label: "May", cell: (token) => token.grants.map((one) => `${one.role}${one.tenant && one.tenant !== "*" ? ` in ${one.tenant}` : ""}`).join(", ") },
              { label: "Queues", className: "wide", cell: (token) => token.queues.join(", ") || "all" },
              { label: "Used", className: "num wide", cell: (token) => <Time at={token.last_used_at} /> },
              { label: "Expires", className: "num wide", cell: (token) => (token.expires_at ? <Time at={token.expires_at} /> : "never") },
              {
                label: "",
                className: "num nowrap",
                cell: (token) => (
                  <>
                    <Button isSmall aria-label={`Rotate token ${token.name}`} onClick={() => void rotate(token.id, token.name)}>
                      Rotate token
                    </Button>{" "}
                    <Button isSmall kind="danger" aria-label={`Revoke token ${token.name}`} onClick={() => void revoke(token.id, token.name)}>
                      Revoke token
                    </Button>
                  </>
                ),
              },
            ]}
          />
        )}
      </Shown>
      {isMaking && (
        <NewToken
          close={() => setMaking(false)}
          made={(shown) => {
            setMaking(false);
            setSecret(shown);
            tokens.reload();
          }}
        />
      )}
      {secret !== null && <Secret label="The token's secret" text={secret} close={() => setSecret(null)} />}
    </>
  );
}

function NewToken({ close, made }: { close: () => void; made: (secret: string) => void }) {
  const [name, setName] = useState("");
  const [role, setRole] = useState<(typeof ROLES)[number]>("viewer");
  const [tenant, setTenant] = useState("");
  const { act } = useDialogs();
  const save = async (): Promise<void> => {
    await act(async () => {
      const grants = [{ role, tenant: tenant.trim() || "*" }];
      const done = await accepted(client.POST("/ojs/v1/admin/tokens", { body: { name, grants, queues: [] } }));
      made(done.token.secret ?? "");
    });
  };
  return (
    <NewDialog label="New token" action="Create token" close={close} save={save}>
      <label class="field">
        <span>Name</span>
        <input class="input" value={name} onInput={(event) => setName(event.currentTarget.value)} required />
      </label>
      <label class="field">
        <span>Role</span>
        <select class="input" value={role} onChange={(event) => setRole(event.currentTarget.value as typeof role)}>
          {ROLES.map((one) => (
            <option key={one}>{one}</option>
          ))}
        </select>
      </label>
      <label class="field">
        <span>Workspace; empty: all</span>
        <input class="input" value={tenant} onInput={(event) => setTenant(event.currentTarget.value)} />
      </label>
    </NewDialog>
  );
}
