/** Ctrl-K: jump to an id, a queue, a type, a workflow, a page or an action from anywhere. */
import { useEffect, useState } from "preact/hooks";
import { useLocation } from "wouter-preact";
import { accepted, client, query } from "../api/client";
import { useData } from "../api/use";
import { Dialog } from "./dialogs";
import { Icon, type IconName } from "./icons";
import { chooseTheme } from "./theme";

interface Hit {
  key: string;
  label: string;
  kind: string;
  icon: IconName;
  go: () => void;
}

const MAX_HITS = 12;
const ID = /^[0-9a-f]{8}-[0-9a-f-]{27,}$|^wf_/i;

export function Palette(props: { pages: { path: string; label: string; icon: IconName }[]; close: () => void }) {
  const [text, setText] = useState("");
  const [chosen, setChosen] = useState(0);
  const [, navigate] = useLocation();
  const queues = useData("palette-queues", () => accepted(client.GET("/ojs/v1/queues", { params: { query: { limit: "200" } } })));
  const facets = useData("palette-facets", () => accepted(client.GET("/ojs/v1/job-facets")));
  const workflows = useData("palette-workflows", () =>
    accepted(client.GET("/ojs/v1/workflows", { params: { query: { limit: "50" } } })),
  );
  const go = (path: string) => (): void => {
    props.close();
    navigate(path);
  };
  const wanted = text.trim().toLowerCase();
  const hits: Hit[] = [];
  if (ID.test(wanted)) {
    const given = text.trim();
    hits.push({ key: "job", label: `Job ${given}`, kind: "id", icon: "jobs", go: go(`/jobs/${given}`) });
    hits.push({ key: "wf", label: `Workflow ${given}`, kind: "id", icon: "workflows", go: go(`/workflows/${given}`) });
  }
  const add = (label: string, kind: string, icon: IconName, path: string): void => {
    hits.push({ key: `${kind} ${path}`, label, kind, icon, go: go(path) });
  };
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
  for (const theme of ["light", "dark", "system"] as const) {
    hits.push({
      key: theme,
      label: `Colours: ${theme}`,
      kind: "action",
      icon: "moon",
      go: () => {
        chooseTheme(theme);
        props.close();
      },
    });
  }
  const found = hits
    .filter((hit) => hit.kind === "id" || !wanted || hit.label.toLowerCase().includes(wanted))
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
        aria-label="Find a page, an id, a queue, a type or a workflow"
        placeholder="A page, an id, a queue, a type, a workflow …"
        value={text}
        onInput={(event) => {
          setText(event.currentTarget.value);
          setChosen(0);
        }}
        onKeyDown={press}
      />
      <ul role="listbox" id="hits" aria-label="Found">
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
