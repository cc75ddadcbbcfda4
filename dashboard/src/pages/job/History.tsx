/** The history of a job. */
import type { Schemas } from "../../api/client";
import { exact } from "../../ui/format";

export type Entry = Schemas["HistoryEntryBody"];

export function Log({ events }: { events: Entry[] }) {
  return (
    <ol class="log">
      {events.map((event) => {
        const data = event.data as Record<string, unknown>;
        const what = event.event_type === "job.state_changed" ? `${String(data.from)} → ${String(data.to)}` : event.event_type;
        const actor = event.actor as { type?: string; id?: string };
        return (
          <li key={event.id}>
            <span class="quiet nowrap">{exact(event.timestamp)}</span>
            <span>
              <b>{what}</b> <span class="quiet">by {actor.id ?? actor.type}</span>
            </span>
          </li>
        );
      })}
    </ol>
  );
}
