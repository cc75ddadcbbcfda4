import { useEffect, useState } from "preact/hooks";

export type Theme = "system" | "light" | "dark";

const KEY = "ojster-theme";
const dark = window.matchMedia("(prefers-color-scheme: dark)");
const watchers = new Set<() => void>();

const stored = (): Theme => {
  const known = localStorage.getItem(KEY);
  return known === "light" || known === "dark" ? known : "system";
};

function apply(): void {
  const theme = stored();
  if (theme === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  watchers.forEach((tell) => tell());
}

dark.addEventListener("change", apply);
apply();

export function chooseTheme(theme: Theme): void {
  localStorage.setItem(KEY, theme);
  apply();
}

const shown = (): "light" | "dark" => {
  const theme = stored();
  return theme === "system" ? (dark.matches ? "dark" : "light") : theme;
};

/** The theme that is shown, whoever chose it. */
export function useTheme(): "light" | "dark" {
  const [theme, setTheme] = useState(shown);
  useEffect(() => {
    const tell = (): void => setTheme(shown());
    watchers.add(tell);
    return () => void watchers.delete(tell);
  }, []);
  return theme;
}
