import type { ComponentChildren } from "preact";
import { useEffect, useState } from "preact/hooks";
import { Link, useLocation } from "wouter-preact";
import { accepted, client, query } from "../api/client";
import { lastHeard } from "../api/heard";
import { type LiveState, pause, reconnect, watchState } from "../api/live";
import { logOut, type Session, useOwnQueues } from "../api/session";
import { useData } from "../api/use";
import { useDialogs } from "./dialogs";
import { chooseZone, compact, localZone, timeOfDay, useZone, type Zone } from "./format";
import { Icon, type IconName } from "./icons";
import { Palette } from "./palette";
import { Button, Segments } from "./parts";
import { chooseTheme, useTheme } from "./theme";
import icon from "../icon.svg";

export const PAGES: { path: string; label: string; icon: IconName; needsAllQueues?: boolean }[] = [
  { path: "/", label: "Overview", icon: "overview" },
  { path: "/jobs", label: "Jobs", icon: "jobs" },
  { path: "/workflows", label: "Workflows", icon: "workflows", needsAllQueues: true },
  { path: "/errors", label: "Errors", icon: "errors" },
  { path: "/queues", label: "Queues", icon: "queues" },
  { path: "/workers", label: "Workers", icon: "workers" },
  { path: "/schedules", label: "Schedules", icon: "schedules", needsAllQueues: true },
  { path: "/events", label: "Events", icon: "events" },
  { path: "/collections", label: "Collections", icon: "collections" },
  { path: "/admin", label: "Settings", icon: "admin" },
];

/** The pages of those who may read nothing. */
const UNREAD: typeof PAGES = [
  { path: "/", label: "Enqueue jobs", icon: "jobs" },
  { path: "/admin", label: "Settings", icon: "admin" },
];

const LIVE: Record<LiveState, [string, string]> = {
  off: ["", "Not live"],
  connecting: ["off", "Connecting…"],
  on: ["on", "Live"],
  slow: ["on", "Every 5 s"],
  silent: ["off", "No answer"],
  paused: ["", "Paused"],
};

export function Shell(props: {
  session: Session;
  workspace: string | null;
  choose: (workspace: string | null) => void;
  end: (session: Session) => void;
  children: ComponentChildren;
}) {
  const [location] = useLocation();
  const [isOpen, setOpen] = useState(false);
  const [isFinding, setFinding] = useState(false);
  const [live, setLive] = useState<LiveState>("off");
  const theme = useTheme();
  const { act } = useDialogs();
  const server = useData("manifest", () => accepted(client.GET("/ojs/manifest")));
  const queue = useOwnQueues().join();
  const mayRead = props.session.operations.includes("inspect");
  const lost = useData(
    mayRead ? "discarded-count" : null,
    () => accepted(client.GET("/ojs/v1/jobs", { params: { query: query({ state: "discarded", queue, limit: "1" }) } })),
    { kinds: ["job"] },
  );
  useEffect(() => watchState(setLive), []);
  useEffect(() => setOpen(false), [location]);
  useEffect(() => {
    const press = (event: KeyboardEvent): void => {
      if (mayRead && (event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "k") {
        event.preventDefault();
        setFinding(true);
      }
    };
    window.addEventListener("keydown", press);
    return () => window.removeEventListener("keydown", press);
  }, [mayRead]);
  const pages = mayRead ? PAGES.filter((page) => !page.needsAllQueues || !props.session.queues.length) : UNREAD;
  const isHere = (path: string): boolean => (path === "/" ? location === "/" : `${location}/`.startsWith(`${path}/`));
  const [liveClass, liveText] = LIVE[live];
  const lostCount = lost.data?.pagination.total ?? 0;
  return (
    <div class="shell">
      <a class="skip" href="#content">
        Skip to the content
      </a>
      <nav class={`nav ${isOpen ? "open" : ""}`} aria-label="Pages" id="pages">
        <Link href="/" class="brand">
          <img src={icon} alt="" /> Ojster
        </Link>
        <ul>
          {pages.map((page) => (
            <li key={page.path}>
              <Link href={page.path} aria-current={isHere(page.path) ? "page" : undefined}>
                <Icon name={page.icon} /> {page.label}
                {page.path === "/errors" && lostCount > 0 && (
                  <span class="count">
                    {compact(lostCount)}
                    <span class="hidden"> jobs gave up</span>
                  </span>
                )}
              </Link>
            </li>
          ))}
        </ul>
        <div class="foot">
          <Workspace session={props.session} chosen={props.workspace} choose={props.choose} />
          {props.session.who && (
            <span>
              {props.session.who}{" "}
              <Button
                kind="plain"
                isSmall
                icon="exit"
                onClick={() => void act(async () => props.end(await logOut()))}
              >
                Log out
              </Button>
            </span>
          )}
          <Times />
          {server.data && (
            <span>
              {server.data.implementation.name} {server.data.implementation.version} on {server.data.backend}
            </span>
          )}
        </div>
      </nav>
      <div class="work">
        <header class="top">
          <Button
            kind="plain"
            icon="menu"
            class="button plain menu"
            aria-label="Pages"
            aria-expanded={isOpen}
            aria-controls="pages"
            onClick={() => setOpen(!isOpen)}
          />
          {mayRead && (
            <button type="button" class="find" onClick={() => setFinding(true)}>
              <Icon name="search" /> <span>Find a job, queue, workflow …</span>
              <kbd>Ctrl K</kbd>
            </button>
          )}
          <span class="space" />
          {mayRead && (
            <button
              type="button"
              class={`button plain live ${liveClass}`}
              title={live === "paused" ? "Follow changes again" : "Pause updates"}
              onClick={() => pause(live !== "paused")}
            >
              {liveText}
            </button>
          )}
          <Button
            kind="plain"
            icon="moon"
            aria-label={theme === "dark" ? "Light colours" : "Dark colours"}
            title={theme === "dark" ? "Light colours" : "Dark colours"}
            onClick={() => chooseTheme(theme === "dark" ? "light" : "dark")}
          />
        </header>
        {live === "silent" && <Silence />}
        <main id="content" tabIndex={-1} class={live === "silent" ? "stale" : ""}>
          {props.children}
        </main>
      </div>
      {isFinding && <Palette pages={pages} close={() => setFinding(false)} />}
    </div>
  );
}

/** Says since when the server does not answer, so that nobody takes old numbers for new ones. */
function Silence() {
  return (
    <div class="problem silence" role="status">
      <Icon name="alert" />
      <span>No answer since {timeOfDay(lastHeard())}. What is grey may have changed since then. The page tries again by itself.</span>
      <Button isSmall onClick={() => reconnect()}>
        Try now
      </Button>
    </div>
  );
}

/** In which zone all times are shown: the one place that says so, and changes it. */
function Times() {
  const zone = useZone();
  const name = localZone();
  return (
    <div class="zone">
      <span>Times: {zone === "utc" ? "UTC" : name}</span>
      <Segments<Zone> label="Time zone" of={[["local", "Local"], ["utc", "UTC"]]} chosen={zone} choose={chooseZone} />
    </div>
  );
}

/** The choice of a workspace: of all that there are, or of those that the token has. */
function Workspace({ session, chosen, choose }: { session: Session; chosen: string | null; choose: (name: string | null) => void }) {
  const mayList = session.is_global && session.needs_token && session.operations.includes("admin");
  const known = useData(mayList ? "workspaces" : null, () => accepted(client.GET("/ojs/v1/admin/tenants")));
  const names = session.tenants ?? (known.data?.tenants ?? []).map((one) => one.tenant_id);
  if (session.tenants?.length === 1) return <span>Workspace: {session.tenants[0]}</span>;
  if (!names.length) return null;
  return (
    <label class="field">
      <span>Workspace</span>
      <select class="input" value={chosen ?? ""} onChange={(event) => choose(event.currentTarget.value || null)}>
        {session.is_global && <option value="">All</option>}
        {names.map((name) => (
          <option key={name}>{name}</option>
        ))}
      </select>
    </label>
  );
}
