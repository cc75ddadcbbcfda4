/** Calls of the public API, with the types of its own OpenAPI document. */
import createClient from "openapi-fetch";
import type { components, paths } from "./schema";

export type Schemas = components["schemas"];

/** Where the dashboard is: the page's base. The API is beside it, whatever prefix both are served under. */
export const BASE = new URL(document.baseURI);
export const ROOT = new URL("..", BASE);

export class ApiError extends Error {
  constructor(
    readonly status: number,
    readonly code: string,
    message: string,
  ) {
    super(message);
  }
}

export const client = createClient<paths>({
  baseUrl: ROOT.href.replace(/\/$/, ""),
  headers: { Accept: "application/json" },
});

let tenant: string | null = null;
const unknown = new Set<() => void>();

/** Limits all further calls to one workspace; `null`: to none. */
export function chooseWorkspace(name: string | null): void {
  tenant = name;
}

/** The header that names the chosen workspace. */
export const workspaceHeader = (): Record<string, string> => (tenant === null ? {} : { "X-OJS-Tenant": tenant });

/** Calls a function when the server no longer knows who calls. */
export function onUnknownCaller(tell: () => void): void {
  unknown.add(tell);
}

client.use({
  onRequest({ request }) {
    const isNamed = request.headers.has("X-OJS-Tenant");
    if (tenant !== null && !isNamed && !request.url.includes("/ojs/v1/admin/")) request.headers.set("X-OJS-Tenant", tenant);
    return request;
  },
  onError() {
    return new ApiError(0, "unreachable", "The server does not answer. The page tries again by itself.");
  },
});

/** The header that says whose cron job or worker is meant: several workspaces may have one of the same name. */
export const ofTenant = (id: string | undefined): { headers?: Record<string, string> } =>
  id !== undefined && id !== "_default" ? { headers: { "X-OJS-Tenant": id } } : {};

interface Outcome<T> {
  data?: T;
  error?: unknown;
  response: Response;
}

/** The data of an answer; throws an `ApiError` with the server's own words if it was refused. */
export async function accepted<T>(call: Promise<Outcome<T>>): Promise<T> {
  const { data, error, response } = await call;
  if (response.ok) return data as T;
  if (response.status === 401) unknown.forEach((tell) => tell());
  const told = (error as Partial<Schemas["ErrorAnswer"]> | undefined)?.error;
  throw new ApiError(response.status, told?.code ?? "error", told?.message ?? `The server answered ${response.status}.`);
}

/** Query parameters without those that are not set. */
export function query(given: Record<string, string | number | null | undefined>): Record<string, string> {
  const set = Object.entries(given).filter(([, value]) => value !== null && value !== undefined && value !== "");
  return Object.fromEntries(set.map(([name, value]) => [name, String(value)]));
}
