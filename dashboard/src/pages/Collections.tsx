import { useState } from "preact/hooks";
import { Link } from "wouter-preact";
import { accepted, client, query } from "../api/client";
import { useMay, useOwnQueues } from "../api/session";
import { useData } from "../api/use";
import { useDialogs } from "../ui/dialogs";
import { bytes, number, tail, Time } from "../ui/format";
import { Json } from "../ui/json";
import { Button, Card, Empty, JobLink, Page, Shown, Table } from "../ui/parts";
import { Line } from "../ui/plain";
import { FileLink } from "./job/Left";

const FILES = 100;

export function CollectionsPage() {
  const collections = useData("collections", () => accepted(client.GET("/ojs/v1/collections")), { kinds: ["job"] });
  const server = useData("manifest", () => accepted(client.GET("/ojs/manifest")));
  const details = server.data?.capability_details as { files?: { store?: boolean } } | undefined;
  const isLimited = useOwnQueues().length > 0; // a list of files is one of all queues
  const hasStore = (details?.files?.store ?? false) && !isLimited;
  const files = useData(hasStore ? "files" : null, () => accepted(client.GET("/ojs/v1/files", { params: { query: { limit: String(FILES) } } })), { kinds: ["job"] });
  return (
    <Page title="Collections and files">
      <Card title="Collections" isBare>
        <Shown of={collections} rows={4}>
          {(data) => (
            <Table
              label="Collections"
              rows={data.collections}
              keyOf={(one) => one.name}
              empty={<Empty icon="collections" title="No collections">Jobs put items into collections, which outlive them.</Empty>}
              columns={[
                {
                  label: "Collection",
                  className: "grow",
                  cell: (one) => (
                    <>
                      <Link href={`/collections/${encodeURIComponent(one.name)}`}>
                        <b>{one.name}</b>
                      </Link>
                      {one.description && <span class="sub clip"><Line text={one.description} /></span>}
                    </>
                  ),
                },
                { label: "Items", className: "num", cell: (one) => number(one.items) },
                { label: "Created", className: "num", cell: (one) => <Time at={one.created_at} /> },
              ]}
            />
          )}
        </Shown>
      </Card>
      {hasStore && (
      <Card title={files.data?.files.length === FILES ? `The newest ${FILES} files` : "Files"} isBare>
        <Shown of={files} rows={4}>
          {(data) => (
            <Table
              label="Files"
              rows={data.files}
              keyOf={(file) => file.id}
              empty={<Empty icon="download" title="No files" />}
              columns={[
                {
                  label: "File",
                  className: "grow",
                  cell: (file) =>
                    file.complete ? <FileLink id={file.id} name={file.filename ?? tail(file.id)} size={file.size ?? 0} /> : (file.filename ?? tail(file.id)),
                },
                { label: "Type", className: "wide", cell: (file) => file.content_type ?? "" },
                { label: "Uploaded", className: "num", cell: (file) => (file.complete ? "all" : bytes(file.offset)) },
                { label: "Created", className: "num", cell: (file) => <Time at={file.created_at} /> },
              ]}
            />
          )}
        </Shown>
      </Card>
      )}
    </Page>
  );
}

export function CollectionPage({ name }: { name: string }) {
  const [hasHistory, setHistory] = useState(false);
  const [beginning, setBeginning] = useState("");
  const may = useMay();
  const { act } = useDialogs();
  const filter = query({ history: hasHistory ? "true" : null, name_startswith: beginning });
  const items = useData(
    `collection ${name} ${hasHistory} ${beginning}`,
    () => accepted(client.GET("/ojs/v1/collections/{name}/items", { params: { path: { name }, query: filter } })),
    { kinds: ["job"] },
  );
  const remove = async (item: string): Promise<void> => {
    await act(
      async () => {
        await accepted(client.DELETE("/ojs/v1/collections/{name}/items/{item}", { params: { path: { name, item } } }));
        return `${item} was removed.`;
      },
      { title: `Remove ${item}?`, text: "Look-ups no longer find it. Its history stays.", action: "Remove item", isDangerous: true },
    );
    items.reload();
  };
  return (
    <Page title={name} sub="A collection of items that jobs leave and look up.">
      <div class="filters">
        <label>
          <span class="hidden">Beginning of the name</span>
          <input class="input" placeholder="Beginning of the name" value={beginning} onInput={(event) => setBeginning(event.currentTarget.value)} />
        </label>
        <label class="check">
          <input type="checkbox" checked={hasHistory} onChange={(event) => setHistory(event.currentTarget.checked)} /> With earlier values
        </label>
      </div>
      <Card isBare>
        <Shown of={items} rows={6}>
          {(data) => (
            <Table
              label="Items"
              rows={data.items}
              keyOf={(item) => String(item.id)}
              empty={<Empty icon="collections" title="No items" />}
              columns={[
                { label: "Item", cell: (item) => <b><Line text={item.name} /></b> },
                {
                  label: "Content",
                  className: "grow",
                  cell: (item) =>
                    item.file ? <FileLink id={item.file.id} name={item.file.filename ?? item.name} size={item.file.size} /> : <Json value={item.data} label={item.name} />,
                },
                { label: "Kind", className: "wide", cell: (item) => item.kind },
                { label: "By", className: "wide", cell: (item) => (item.job_id ? <JobLink id={item.job_id} /> : (item.created_by ?? "")) },
                { label: "Made", className: "num", cell: (item) => <Time at={item.created_at} /> },
                { label: "Removed", className: "num wide", cell: (item) => (item.removed_at ? <Time at={item.removed_at} /> : "") },
                {
                  label: "",
                  className: "num",
                  cell: (item) =>
                    may("cancel") &&
                    !item.removed_at && (
                      <Button isSmall icon="trash" kind="danger" aria-label={`Remove ${item.name}`} onClick={() => void remove(item.name)} />
                    ),
                },
              ]}
            />
          )}
        </Shown>
      </Card>
    </Page>
  );
}
