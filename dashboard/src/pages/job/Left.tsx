/** What a job has left: items, files and a checkpoint. */
import { accepted, ApiError, client } from "../../api/client";
import { useData } from "../../api/use";
import { bytes, Time } from "../../ui/format";
import { Json } from "../../ui/json";
import { Empty, Shown, Table } from "../../ui/parts";
import { Line } from "../../ui/plain";

export function Items({ id }: { id: string }) {
  const items = useData(`items of ${id}`, () => accepted(client.GET("/ojs/v1/jobs/{job}/items", { params: { path: { job: id } } })), {
    kinds: ["job"],
    id,
  });
  return (
    <Shown of={items}>
      {(data) => (
        <Table
          label="Items"
          rows={data.items}
          keyOf={(item) => String(item.id)}
          empty={<Empty icon="collections" title="It has left no items or files" />}
          columns={[
            { label: "Name", className: "grow", cell: (item) => item.name },
            { label: "Kind", cell: (item) => item.kind },
            {
              label: "Content",
              cell: (item) =>
                item.file ? <FileLink id={item.file.id} name={item.file.filename ?? item.name} size={item.file.size} /> : <code class="clip">{JSON.stringify(item.data)}</code>,
            },
            { label: "Made", className: "num", cell: (item) => <Time at={item.created_at} /> },
          ]}
        />
      )}
    </Shown>
  );
}

export function FileLink({ id, name, size }: { id: string; name: string; size: number }) {
  return (
    <a href={new URL(`../ojs/v1/files/${encodeURIComponent(id)}/content`, document.baseURI).href} download={name}>
      <Line text={name} /> <span class="quiet">({bytes(size)})</span>
    </a>
  );
}

export function Checkpoint({ id }: { id: string }) {
  const checkpoint = useData(`checkpoint of ${id}`, async () => {
    try {
      return await accepted(client.GET("/ojs/v1/jobs/{id}/checkpoint", { params: { path: { id } } }));
    } catch (error) {
      if (error instanceof ApiError && error.status === 404) return null;
      throw error;
    }
  });
  return (
    <Shown of={checkpoint}>
      {(found) =>
        found ? (
          <div class="stack">
            <span>
              Number {found.sequence}, saved <Time at={found.created_at} />
            </span>
            <Json value={found.state} label="the checkpoint" />
          </div>
        ) : (
          <Empty title="It has saved no checkpoint" />
        )
      }
    </Shown>
  );
}
