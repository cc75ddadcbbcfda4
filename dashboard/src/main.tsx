import { type ComponentChildren, render } from "preact";
import { useCallback, useContext, useEffect, useState } from "preact/hooks";
import { Route, Router, Switch } from "wouter-preact";
import { BASE, chooseWorkspace, onUnknownCaller } from "./api/client";
import { restart } from "./api/live";
import { readSession, type Session, SessionContext } from "./api/session";
import { forgetAll } from "./api/use";
import { Login } from "./pages/Login";
import { AdminPage } from "./pages/Admin";
import { CollectionPage, CollectionsPage } from "./pages/Collections";
import { EnqueuePage } from "./pages/Enqueue";
import { ErrorsPage } from "./pages/Errors";
import { EventsPage } from "./pages/Events";
import { JobPage } from "./pages/job/JobPage";
import { JobsPage } from "./pages/Jobs";
import { OverviewPage } from "./pages/Overview";
import { QueuePage } from "./pages/Queue";
import { QueuesPage } from "./pages/Queues";
import { SchedulesPage } from "./pages/Schedules";
import { WorkersPage } from "./pages/Workers";
import { ComparePage } from "./pages/workflow/ComparePage";
import { WorkflowPage } from "./pages/workflow/WorkflowPage";
import { WorkflowsPage } from "./pages/Workflows";
import { DialogHost } from "./ui/dialogs";
import { useZone } from "./ui/format";
import { Empty, Page, Problem } from "./ui/parts";
import { Shell } from "./ui/shell";
import "./styles/tokens.css";
import "./styles/base.css";
import "./styles/parts.css";

/** Workflows and schedules may push to any queue: whoever is limited to some cannot change them, and sees no buttons for it. */
function OfAllQueues({ children }: { children: ComponentChildren }) {
  const session = useContext(SessionContext);
  if (!session?.queues.length) return <>{children}</>;
  const operations = session.operations.filter((one) => one === "inspect");
  return <SessionContext.Provider value={{ ...session, operations }}>{children}</SessionContext.Provider>;
}

function App() {
  const [session, setSession] = useState<Session | null>(null);
  const [error, setError] = useState<Error | null>(null);
  const [workspace, setWorkspace] = useState<string | null>(null);
  useZone(); // all times are drawn again when another zone is chosen
  const enter = useCallback((name: string | null, who: Session | null): void => {
    chooseWorkspace(name);
    setWorkspace(name);
    forgetAll();
    restart(JSON.stringify([who, name]));
  }, []);
  const begin = useCallback(
    (found: Session): void => {
      const [first, second] = found.is_global ? [] : (found.tenants ?? []);
      enter(second === undefined ? null : (first ?? null), found); // a token of several workspaces has to name one
      setSession(found);
      if (second !== undefined) void readSession().then(setSession);
    },
    [enter],
  );
  const read = useCallback(() => {
    readSession().then(
      (found) => {
        setError(null);
        begin(found);
      },
      (problem: Error) => {
        setError(problem);
        window.setTimeout(read, 3_000);
      },
    );
  }, [begin]);
  useEffect(() => {
    read();
    onUnknownCaller(() => setSession((known) => known && { ...known, is_known: false }));
  }, [read]);
  const choose = (name: string | null): void => {
    enter(name, session);
    void readSession().then(setSession); // what one may do differs from workspace to workspace
  };
  if (!session) return <div class="login">{error ? <Problem error={error} retry={read} /> : null}</div>;
  if (!session.is_known) return <Login provider={session.provider} begin={begin} />;
  return (
    <SessionContext.Provider value={workspace === null ? session : { ...session, is_global: false }}>
      <DialogHost>
        <Router base={BASE.pathname.replace(/\/$/, "")}>
          <Shell session={session} workspace={workspace} choose={choose} end={begin}>
            <Switch key={workspace}>
              {!session.operations.includes("inspect") && [
                <Route path="/admin" component={AdminPage} key="admin" />,
                <Route component={EnqueuePage} key="enqueue" />,
              ]}
              <Route path="/" component={OverviewPage} />
              <Route path="/jobs" component={JobsPage} />
              <Route path="/jobs/:id">{({ id }) => <JobPage id={id} key={id} />}</Route>
              <Route path="/workflows">{() => <OfAllQueues><WorkflowsPage /></OfAllQueues>}</Route>
              <Route path="/workflows/:id/compare/:other">
                {({ id, other }) => <ComparePage id={id} other={other} key={id + other} />}
              </Route>
              <Route path="/workflows/:id">{({ id }) => <OfAllQueues><WorkflowPage id={id} key={id} /></OfAllQueues>}</Route>
              <Route path="/queues" component={QueuesPage} />
              <Route path="/queues/:name">{({ name }) => <QueuePage name={name} key={name} />}</Route>
              <Route path="/workers" component={WorkersPage} />
              <Route path="/schedules">{() => <OfAllQueues><SchedulesPage /></OfAllQueues>}</Route>
              <Route path="/errors" component={ErrorsPage} />
              <Route path="/events" component={EventsPage} />
              <Route path="/collections" component={CollectionsPage} />
              <Route path="/collections/:name">
                {({ name }) => <CollectionPage name={name} key={name} />}
              </Route>
              <Route path="/admin" component={AdminPage} />
              <Route>
                <Page title="No such page">
                  <Empty title="There is nothing at this address" icon="search">
                    Press Ctrl-K to find a job, a queue or a workflow.
                  </Empty>
                </Page>
              </Route>
            </Switch>
          </Shell>
        </Router>
      </DialogHost>
    </SessionContext.Provider>
  );
}

const place = document.getElementById("app");
if (place) render(<App />, place);
