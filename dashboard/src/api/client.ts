/** Calls of the public API, with the types of its own OpenAPI document. */
import createClient from "openapi-fetch";
import { compareClocks, hear } from "./heard";
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
    readonly details: Record<string, unknown> = {},
  ) {
    super(message);
  }
}

/** Time that the server has to answer: a question, and an order, which may be about many jobs. */
const LIMIT_MS = { read: 15_000, change: 60_000 };

/** A `fetch` that ends: a server that freezes, or a proxy that waits for one, would else never be noticed. */
async function limited(request: Request): Promise<Response> {
  const isRead = request.method === "GET";
  const limit = isRead ? LIMIT_MS.read : LIMIT_MS.change;
  const ended = new AbortController();
  const timer = window.setTimeout(() => ended.abort(), limit);
  try {
    if (!isRead) freshUntil = Date.now() + limit;
    else if (Date.now() >= freshUntil) request.headers.set("Cache-Control", "max-age=1");
    const sent = Date.now();
    const answer = await fetch(request, { signal: ended.signal });
    const { status, statusText, headers } = answer;
    compareClocks(headers.get("Date"), sent);
    const body = await answer.arrayBuffer();
    hear();
    if (headers.has("Age")) seconds += 1;
    return new Response(body.byteLength ? body : null, { status, statusText, headers });
  } catch (error) {
    if (!ended.signal.aborted) throw error;
    const advice = isRead ? "The page tries again by itself." : "It may have done it all the same: look before you try again.";
    throw new ApiError(0, "timeout", `The server has not answered within ${limit / 1000} s. ${advice}`);
  } finally {
    window.clearTimeout(timer);
    if (!isRead) freshUntil = Date.now() + FRESH_MS;
  }
}

/** Time after a change by this page in which, as during it, it accepts no answer of a second ago: it must see what it has done. */
const FRESH_MS = 1_500;
let freshUntil = 0;
let seconds = 0;

/** How many answers so far were some that others had got within the last second: what changed since is not in them. */
export const secondHandAnswers = (): number => seconds;

export const client = createClient<paths>({
  baseUrl: ROOT.href.replace(/\/$/, ""),
  headers: { Accept: "application/json" },
  fetch: limited,
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
  onError({ error }) {
    if (error instanceof ApiError) return error;
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
  const told = (error as Partial<Schemas["ErrorAnswer"]> | undefined)?.error as
    | { code: string; message: string; details?: Record<string, unknown> }
    | undefined;
  throw new ApiError(response.status, told?.code ?? "error", told?.message ?? `The server answered ${response.status}.`, told?.details);
}

/** Query parameters without those that are not set. */
export function query(given: Record<string, string | number | null | undefined>): Record<string, string> {
  const set = Object.entries(given).filter(([, value]) => value !== null && value !== undefined && value !== "");
  return Object.fromEntries(set.map(([name, value]) => [name, String(value)]));
}
