/** Ctrl-K: jump to an id, a queue, a type, a workflow or a page, or do something, from anywhere. */
import { useEffect, useState } from "preact/hooks";
import { useLocation } from "wouter-preact";
import { accepted, client, query } from "../api/client";
import { useData } from "../api/use";
import { useMay, useOwnQueues } from "../api/session";
import { switchQueue } from "../pages/Queues";
import { runSchedule } from "../pages/Schedules";
import { Dialog, useDialogs } from "./dialogs";
import { Icon, type IconName } from "./icons";
import { chooseTheme } from "./theme";

interface Hit {
  key: string;
  label: string;
  kind: string;
  icon: IconName;
  go: () => void;
}

interface Visited {
  label: string;
  kind: string;
  icon: IconName;
  path: string;
}

const MAX_HITS = 12;
const MAX_RECENT = 5;
/** Kept for a window alone: the next one who uses the browser does not see them. */
const RECENT = "ojster-recent";

function recent(): Visited[] {
  try {
    return JSON.parse(sessionStorage.getItem(RECENT) ?? "[]") as Visited[];
  } catch {
    return [];
  }
}

function remember(visited: Visited): void {
  const others = recent().filter((one) => one.path !== visited.path);
  sessionStorage.setItem(RECENT, JSON.stringify([visited, ...others].slice(0, MAX_RECENT)));
}

const ID = /^[0-9a-f]{8}-[0-9a-f-]{27,}$|^wf_/i;
/** The beginning or the end of an id, as lists print it. */
const PART_OF_ID = /^…?([0-9a-f-]{6,35})$/;

export function Palette(props: { pages: { path: string; label: string; icon: IconName }[]; close: () => void }) {
  const [text, setText] = useState("");
  const [chosen, setChosen] = useState(0);
  const [, navigate] = useLocation();
  const queues = useData("palette-queues", () => accepted(client.GET("/ojs/v1/queues", { params: { query: { limit: "200" } } })));
  const facets = useData("palette-facets", () => accepted(client.GET("/ojs/v1/job-facets")));
  const own = useOwnQueues();
  const queue = own.join();
  const workflows = useData(own.length ? null : "palette-workflows", () =>
    accepted(client.GET("/ojs/v1/workflows", { params: { query: { limit: "50" } } })),
  );
  const wanted = text.trim().toLowerCase();
  const isType = facets.data?.facets.type?.some((type) => type.value === wanted) ?? false; // `facade` could be a part of an id, too
  const part = isType ? undefined : PART_OF_ID.exec(wanted)?.[1];
  const jobs = useData(part ? `palette-id ${part}` : null, () =>
    accepted(client.GET("/ojs/v1/jobs", { params: { query: query({ id: part ?? "", queue, internal: "true", limit: "5" }) } })),
  );
  const may = useMay();
  const dialogs = useDialogs();
  const crons = useData(own.length ? null : "palette-crons", () => accepted(client.GET("/ojs/v1/crons")));
  const go = (path: string) => (): void => {
    props.close();
    navigate(path);
  };
  const hits: Hit[] = [];
  if (ID.test(wanted)) {
    const given = text.trim();
    hits.push({ key: "job", label: `Job ${given}`, kind: "id", icon: "jobs", go: go(`/jobs/${given}`) });
    hits.push({ key: "wf", label: `Workflow ${given}`, kind: "id", icon: "workflows", go: go(`/workflows/${given}`) });
  }
  for (const job of part ? (jobs.data?.jobs ?? []) : []) {
    hits.push({ key: job.id, label: `${job.type} ${job.id}`, kind: "id", icon: "jobs", go: go(`/jobs/${job.id}`) });
  }
  for (const one of part ? (workflows.data?.workflows ?? []) : []) {
    if (!one.id.toLowerCase().startsWith(part ?? "") && !one.id.toLowerCase().endsWith(part ?? "")) continue;
    const label = `${one.name ?? one.definition ?? one.type} ${one.id}`;
    hits.push({ key: one.id, label, kind: "id", icon: "workflows", go: go(`/workflows/${one.id}`) });
  }
  const add = (label: string, kind: string, icon: IconName, path: string): void => {
    const open = (): void => {
      remember({ label, kind, icon, path });
      go(path)();
    };
    hits.push({ key: `${kind} ${path}`, label, kind, icon, go: open });
  };
  const addAction = (label: string, icon: IconName, act: () => unknown): void => {
    const run = (): void => {
      props.close();
      void act();
    };
    hits.push({ key: label, label, kind: "action", icon, go: run });
  };
  const openLastFailure = (): Promise<boolean> =>
    dialogs.act(async () => {
      const failures = await accepted(client.GET("/ojs/v1/jobs", { params: { query: query({ state: "discarded", queue, limit: "1" }) } }));
      const last = failures.jobs[0];
      if (!last) return "No job has failed.";
      navigate(`/jobs/${last.id}`);
    });
  if (!wanted) for (const one of recent()) add(one.label, one.kind, one.icon, one.path);
  for (const page of props.pages) add(page.label, "page", page.icon, page.path);
  for (const queue of queues.data?.queues ?? []) {
    add(queue.name, "queue", "queues", `/queues/${encodeURIComponent(queue.name)}`);
  }
  for (const type of facets.data?.facets.type ?? []) {
    add(type.value, "type", "jobs", `/jobs?${new URLSearchParams(query({ type: type.value }))}`);
  }
  for (const one of workflows.data?.workflows ?? []) {
    add(one.name ?? one.definition ?? one.id, `workflow, ${one.state}`, "workflows", `/workflows/${one.id}`);
  }
  addAction("Open the last failure", "errors", openLastFailure);
  for (const queue of may("admin") ? (queues.data?.queues ?? []) : []) {
    const isPaused = queue.status === "paused";
    addAction(`${isPaused ? "Resume" : "Pause"} the queue ${queue.name}`, isPaused ? "play" : "pause", () =>
      switchQueue(dialogs, queue.name, isPaused, queues.reload),
    );
  }
  for (const cron of may("enqueue") ? (crons.data?.crons ?? []) : []) {
    addAction(`Run the schedule ${cron.name} now`, "play", () => runSchedule(dialogs, cron));
  }
  for (const theme of ["light", "dark", "system"] as const) {
    addAction(`Colours: ${theme}`, "moon", () => chooseTheme(theme));
  }
  const words = wanted.split(/\s+/);
  const keys = new Set<string>();
  const found = hits
    .filter((hit) => hit.kind === "id" || words.every((word) => hit.label.toLowerCase().includes(word)))
    .filter((hit) => !keys.has(hit.key) && keys.add(hit.key))
    .slice(0, MAX_HITS);
  const place = Math.min(chosen, Math.max(0, found.length - 1));
  useEffect(() => {
    document.getElementById(`hit-${place}`)?.scrollIntoView({ block: "nearest" });
  }, [place]);
  const press = (event: KeyboardEvent): void => {
    if (event.key === "ArrowDown") setChosen(Math.min(place + 1, found.length - 1));
    else if (event.key === "ArrowUp") setChosen(Math.max(place - 1, 0));
    else if (event.key === "Enter") found[place]?.go();
    else return;
    event.preventDefault();
  };
  return (
    <Dialog label="Find" close={props.close} className="palette">
      <input
        role="combobox"
        aria-expanded="true"
        aria-controls="hits"
        aria-activedescendant={found.length ? `hit-${place}` : undefined}
        aria-label="Find a page, an id, a queue, a type, a workflow or an action"
        placeholder="A page, an id, a queue, a type, a workflow, an action …"
        value={text}
        onInput={(event) => {
          setText(event.currentTarget.value);
          setChosen(0);
        }}
        onKeyDown={press}
      />
      {!found.length && (
        <p class="quiet none" role="status">
          Nothing found for “{text.trim()}”. A job or workflow is found by its id, its beginning or its end, others by a part of their name.
        </p>
      )}
      <ul role="listbox" id="hits" aria-label="Found" hidden={!found.length}>
        {found.map((hit, position) => (
          <li
            key={hit.key}
            id={`hit-${position}`}
            role="option"
            aria-selected={position === place}
            onMouseMove={() => setChosen(position)}
            onClick={hit.go}
          >
            <Icon name={hit.icon} />
            {hit.label}
            <span class="quiet">{hit.kind}</span>
          </li>
        ))}
      </ul>
    </Dialog>
  );
}
