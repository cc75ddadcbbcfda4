/** The limits of keys that jobs share, with their present use; an operator may replace them for a while. */
import { useState } from "preact/hooks";
import { accepted, client, type Schemas } from "../api/client";
import { useMay } from "../api/session";
import { useData } from "../api/use";
import { NewDialog, useDialogs } from "../ui/dialogs";
import { compact, Time, timestamp } from "../ui/format";
import { numberIn, NumberField, rateIn, RateField, rateInWords, rateOf, type RateDraft } from "../ui/limit-fields";
import { Button, Card, Table } from "../ui/parts";

type Limit = Schemas["LimitAnswer"];

const ENDS: [string, string][] = [
  ["3600", "for an hour"],
  ["86400", "for a day"],
  ["604800", "for a week"],
  ["", "until it is taken back"],
];

export function RateLimits() {
  const may = useMay();
  const { act } = useDialogs();
  const [changed, setChanged] = useState<Limit | null>(null);
  const limits = useData("limits", () => accepted(client.GET("/ojs/v1/rate-limits", { params: { query: { per_page: "100" } } })), {
    kinds: ["job"],
  });
  if (!limits.data?.items.length) return null;
  const restore = async (key: string): Promise<void> => {
    const isDone = await act(async () => {
      await accepted(client.DELETE("/ojs/v1/rate-limits/{key}", { params: { path: { key } } }));
      return `The limits in its jobs hold for ${key} again.`;
    });
    if (isDone) limits.reload();
  };
  return (
    <Card title="Rate limits" isBare>
      <Table<Limit>
        label="Rate limits"
        rows={limits.data.items}
        keyOf={(limit) => limit.key}
        columns={[
          { label: "Key", className: "grow", cell: (limit) => <code>{limit.key}</code> },
          { label: "Running", className: "num", cell: (limit) => limit.concurrency && `${compact(limit.concurrency.active)} of ${compact(limit.concurrency.limit)}` },
          { label: "Starts", className: "num", cell: starts },
          { label: "Waiting", className: "num", cell: (limit) => compact(limit.waiting_count) },
          { label: "When reached", className: "wide", cell: (limit) => limit.on_limit },
          { label: "Replaced", className: "wide", cell: (limit) => limit.override && (limit.override.expires_at ? <>ends <Time at={limit.override.expires_at} /></> : "until taken back") },
          {
            label: "",
            className: "num nowrap",
            cell: (limit) =>
              may("admin") && (
                <>
                  <Button isSmall aria-label={`Replace limits of ${limit.key}`} onClick={() => setChanged(limit)}>
                    Replace limits
                  </Button>{" "}
                  {limit.override && (
                    <Button isSmall aria-label={`Remove override of ${limit.key}`} onClick={() => void restore(limit.key)}>
                      Remove override
                    </Button>
                  )}
                </>
              ),
          },
        ]}
      />
      {changed && (
        <Replace
          limit={changed}
          close={() => setChanged(null)}
          done={() => {
            setChanged(null);
            limits.reload();
          }}
        />
      )}
    </Card>
  );
}

function starts({ rate, throttle }: Limit) {
  if (rate) return `${compact(rate.current_count)} of ${rateInWords(rate)}`;
  return throttle && <>{rateInWords(throttle)}, next <Time at={throttle.next_allowed_at} /></>;
}

/** The limits that a form says, as a request takes them: those that are left empty are as the jobs say. */
const limitsIn = (form: { concurrency: string; rate: RateDraft; throttle: RateDraft }) => ({
  concurrency: numberIn(form.concurrency, "Jobs at once"),
  rate: rateIn(form.rate, "Starts"),
  throttle: rateIn(form.throttle, "Starts, evenly spread"),
});

type Limits = ReturnType<typeof limitsIn>;

const LIMITS = ["concurrency", "rate", "throttle"] as const;

/**
 * The limits that replace those of the jobs: those that were changed here, and those that are replaced already.
 *
 * The others stay out, so that what later jobs say of them has an effect.
 */
function replacing(limit: Limit, before: Limits, after: Limits): Partial<Limits> {
  const own = limit.override?.original;
  const says = (name: (typeof LIMITS)[number], limits: Partial<Limits> | undefined): string => JSON.stringify(limits?.[name] ?? null);
  const original = own && limitsIn({ concurrency: String(own.concurrency ?? ""), rate: rateOf(own.rate), throttle: rateOf(own.throttle) });
  const isMeant = (name: (typeof LIMITS)[number]): boolean =>
    after[name] !== null && (says(name, after) !== says(name, before) || (original !== undefined && says(name, before) !== says(name, original)));
  return Object.fromEntries(LIMITS.filter(isMeant).map((name) => [name, after[name]]));
}

function Replace({ limit, close, done }: { limit: Limit; close: () => void; done: () => void }) {
  const { act } = useDialogs();
  const [begun] = useState({
    concurrency: limit.concurrency ? String(limit.concurrency.limit) : "",
    rate: rateOf(limit.rate),
    throttle: rateOf(limit.throttle),
  });
  const [concurrency, setConcurrency] = useState(begun.concurrency);
  const [rate, setRate] = useState(begun.rate);
  const [throttle, setThrottle] = useState(begun.throttle);
  const [span, setSpan] = useState("3600");
  const save = async (): Promise<void> => {
    const isDone = await act(async () => {
      const ends = span ? timestamp(-1000 * Number(span)) : null;
      const limits = replacing(limit, limitsIn(begun), limitsIn({ concurrency, rate, throttle }));
      if (!Object.keys(limits).length) throw new Error("Nothing would be replaced. A field that is empty stands for what the jobs say.");
      const body = { ...limits, expires_at: ends };
      await accepted(client.PUT("/ojs/v1/rate-limits/{key}", { params: { path: { key: limit.key } }, body }));
      return `The limits of ${limit.key} were replaced.`;
    });
    if (isDone) done();
  };
  const active = limit.concurrency?.active;
  const most = concurrency.trim() && /^\d+$/.test(concurrency.trim()) ? Number(concurrency) : null;
  const isTight = active !== undefined && most !== null && active >= most;
  return (
    <NewDialog label={`Replace the limits of ${limit.key}`} action="Replace limits" close={close} save={save}>
      <NumberField
        label="Jobs at once"
        value={concurrency}
        set={setConcurrency}
        now={active === undefined ? undefined : `${compact(active)} run now${isTight ? `: none starts until fewer than ${compact(most)} do` : ""}`}
      />
      <RateField label="Starts" value={rate} set={setRate} now={limit.rate && `${compact(limit.rate.current_count)} used now; ${compact(limit.waiting_count)} wait`} />
      <RateField label="Starts, evenly spread" value={throttle} set={setThrottle} />
      <label class="field">
        <span>How long</span>
        <select class="input" value={span} onChange={(event) => setSpan(event.currentTarget.value)}>
          {ENDS.map(([seconds, words]) => (
            <option key={seconds} value={seconds}>
              {words}
            </option>
          ))}
        </select>
      </label>
    </NewDialog>
  );
}
