import { useState } from "preact/hooks";
import { BASE, ROOT } from "../api/client";
import { logIn, type Session } from "../api/session";
import { Button, Problem } from "../ui/parts";
import icon from "../icon.svg";

/** The page that is shown now, as an address relative to the dashboard. */
const here = (): string => location.pathname.slice(BASE.pathname.length) + location.search;

export function Login({ provider, begin }: { provider: string | null | undefined; begin: (session: Session) => void }) {
  const [token, setToken] = useState("");
  const [error, setError] = useState<Error | null>(null);
  const [isBusy, setBusy] = useState(false);
  document.title = "Log in · Ojster";
  const submit = async (event: Event): Promise<void> => {
    event.preventDefault();
    setBusy(true);
    try {
      begin(await logIn(token.trim()));
    } catch (problem) {
      setError(problem as Error);
    }
    setBusy(false);
  };
  return (
    <main class="login">
      <form onSubmit={(event) => void submit(event)}>
        <h1 class="brand">
          <img src={icon} alt="" /> Ojster
        </h1>
        {error && <Problem error={error} />}
        {provider && (
          <>
            <a class="button main" href={`${ROOT.href}ojs/v1/session/login?then=${encodeURIComponent(here())}`}>
              Log in with {provider}
            </a>
            <div class="or">or</div>
          </>
        )}
        <label class="field">
          <span>Token</span>
          <input
            class="input"
            type="password"
            autocomplete="current-password"
            value={token}
            onInput={(event) => setToken(event.currentTarget.value)}
            required
          />
          <small>
            An owner of the server creates one with <code>ojster tokens create NAME --role viewer</code>.
          </small>
        </label>
        <Button type="submit" kind={provider ? undefined : "main"} disabled={isBusy}>
          Log in
        </Button>
      </form>
    </main>
  );
}
