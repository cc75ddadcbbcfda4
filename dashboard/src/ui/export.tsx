/** Files that the server writes, or the page, for spreadsheets and scripts. */
import { ROOT, workspaceHeader } from "../api/client";
import { useDialogs } from "./dialogs";
import { Button } from "./parts";

export type Format = "csv" | "json";

/** Hands a file to the browser. */
export function save(blob: Blob, name: string): void {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  window.setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

/** Fetches an export of the server, however long it takes, and saves it. A link could not name the workspace. */
async function fetchExport(path: string, query: Record<string, string>, name: string): Promise<void> {
  const address = new URL(`ojs/v1/${path}?${new URLSearchParams(query).toString()}`, ROOT);
  const answer = await fetch(address, { headers: path.startsWith("admin/") ? {} : workspaceHeader() });
  if (!answer.ok) {
    const told = (await answer.json().catch(() => null)) as { error?: { message?: string } } | null;
    throw new Error(told?.error?.message ?? `The server answered ${answer.status}.`);
  }
  save(await answer.blob(), name);
}

/** What a spreadsheet would take for the beginning of a formula. */
const FORMULA = /^[=+\-@\t\r\n＝＋－＠]/;

function cell(value: string | number | null): string {
  if (value === null) return "";
  if (typeof value === "number") return String(value);
  const text = FORMULA.test(value) ? `'${value}` : value;
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

/** Saves rows that the page has as CSV; a text that a spreadsheet would take for a formula has an apostrophe in front. */
export function saveRows(rows: (string | number | null)[][], name: string): void {
  save(new Blob([rows.map((row) => `${row.map(cell).join(",")}\r\n`).join("")], { type: "text/csv" }), name);
}

/** Buttons that save what a list shows, all of it and not one page alone, as CSV and as JSON. */
export function ExportButtons(props: { path: string; query?: Record<string, string>; name: string; what: string }) {
  const { act } = useDialogs();
  const start = (format: Format): void => {
    const file = `${props.name}.${format}`;
    void act(async () => {
      await fetchExport(props.path, { ...props.query, format }, file);
      return `${file} is saved.`;
    });
  };
  return (
    <>
      {(["csv", "json"] as const).map((format) => (
        <Button isSmall icon="download" key={format} aria-label={`Export ${props.what} as ${format.toUpperCase()}`} onClick={() => start(format)}>
          {format.toUpperCase()}
        </Button>
      ))}
    </>
  );
}
