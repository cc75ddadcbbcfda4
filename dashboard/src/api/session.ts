import { createContext } from "preact";
import { useContext } from "preact/hooks";
import { accepted, client, type Schemas } from "./client";

export type Session = Schemas["SessionAnswer"];
export type Operation = "enqueue" | "dequeue" | "cancel" | "inspect" | "admin" | "code";

export const SessionContext = createContext<Session | null>(null);

export const readSession = (): Promise<Session> => accepted(client.GET("/ojs/v1/session"));
export const logIn = (token: string): Promise<Session> =>
  accepted(client.POST("/ojs/v1/session", { body: { token } }));
export const logOut = (): Promise<Session> => accepted(client.DELETE("/ojs/v1/session"));

/** Whether the caller may do something: what would be refused is not shown. */
export function useMay(): (operation: Operation) => boolean {
  const session = useContext(SessionContext);
  return (operation) => session?.operations.includes(operation) ?? false;
}

/** Whether the caller sees what concerns all tenants, such as queues, workers and settings. */
export function useIsGlobal(): boolean {
  return useContext(SessionContext)?.is_global ?? false;
}
