/** The notes of a job. */
import { accepted, client, type Schemas } from "../../api/client";
import { useMay } from "../../api/session";
import { useData } from "../../api/use";
import { useDialogs } from "../../ui/dialogs";
import { exact } from "../../ui/format";
import { Json, Long } from "../../ui/json";
import { Button, Empty, Shown } from "../../ui/parts";

export function NoteList({ notes }: { notes: Schemas["Note"][] }) {
  if (!notes.length) return <Empty title="No notes" />;
  return (
    <ol class="log">
      {notes.map((note) => (
        <li key={`${note.at} ${note.step ?? ""}`}>
          <span class="quiet">{exact(note.at)}</span>
          <span>{typeof note.note === "string" ? <Long text={note.note} /> : <Json value={note.note} label="the note" />}</span>
        </li>
      ))}
    </ol>
  );
}

export function Notes({ id }: { id: string }) {
  const path = { params: { path: { id } } };
  const notes = useData(`notes of ${id}`, () => accepted(client.GET("/ojs/v1/jobs/{id}/info", path)), { kinds: ["job"], id });
  const may = useMay();
  const { act } = useDialogs();
  const add = async (): Promise<void> => {
    await act(
      async (text) => {
        await accepted(client.POST("/ojs/v1/jobs/{id}/info", { ...path, body: { note: text } as unknown as Schemas["NoteBody"] }));
        return "The note was added.";
      },
      { title: "Add a note", text: "It stays with the job.", action: "Add note", field: { label: "Note", isRequired: true } },
    );
    notes.reload();
  };
  return (
    <Shown of={notes}>
      {(data) => (
        <div class="stack">
          <NoteList notes={data.notes} />
          {may("cancel") && (
            <div>
              <Button icon="plus" isSmall onClick={() => void add()}>
                Add a note
              </Button>
            </div>
          )}
        </div>
      )}
    </Shown>
  );
}
