import { createContext } from "preact";
import { useContext } from "preact/hooks";
import { accepted, client, type Schemas } from "./client";

export type Session = Schemas["SessionAnswer"];
export type Operation = "enqueue" | "dequeue" | "cancel" | "inspect" | "admin" | "code";

export const SessionContext = createContext<Session | null>(null);

export const readSession = (): Promise<Session> => accepted(client.GET("/ojs/v1/session")).then(withQueueNames);
export const logIn = (token: string): Promise<Session> =>
  accepted(client.POST("/ojs/v1/session", { body: { token } })).then(withQueueNames);
export const logOut = (): Promise<Session> => accepted(client.DELETE("/ojs/v1/session"));

/** Whether the caller may do something: what would be refused is not shown. */
export function useMay(): (operation: Operation) => boolean {
  const session = useContext(SessionContext);
  return (operation) => session?.operations.includes(operation) ?? false;
}

/** The queues that the caller is limited to; empty: all. Their lists of jobs and events have to name them. */
export const useOwnQueues = (): string[] => useContext(SessionContext)?.queues ?? [];

/** The session with the names of queues in place of patterns such as `shop.*`, as far as these queues have jobs. */
async function withQueueNames(session: Session): Promise<Session> {
  const patterns = session.queues.filter((one) => one.endsWith("*"));
  if (!patterns.length || !session.operations.includes("inspect")) return session;
  const found = await accepted(client.GET("/ojs/v1/job-facets")).catch(() => undefined);
  const names = (found?.facets.queue ?? []).map((one) => one.value);
  if (!names.length) return session;
  return { ...session, queues: [...new Set([...session.queues.filter((one) => !patterns.includes(one)), ...names])] };
}

/** Whether the caller sees what concerns all tenants, such as queues, workers and settings. */
export function useIsGlobal(): boolean {
  return useContext(SessionContext)?.is_global ?? false;
}
