/** Charts over time, by uPlot. */
import { useEffect, useRef } from "preact/hooks";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import { compact, dayOfYear, exact, fraction, instant, minuteOfDay, useZone, wallClock } from "./format";
import { saveRows } from "./export";
import { Button } from "./parts";
import type { Colour } from "./states";

export interface Series {
  label: string;
  colour: Colour;
  values: (number | null)[];
  isFilled?: boolean;
}

const resolved = (name: string): string => {
  const probe = document.createElement("span");
  probe.style.color = `var(--${name})`;
  document.body.append(probe);
  const colour = getComputedStyle(probe).color;
  probe.remove();
  return colour;
};

/** A colour with another opacity; computed colours are `rgb(…)`. */
const faint = (colour: string): string => colour.replace(/^rgb\((.*)\)$/, "rgba($1, 0.14)");

const DAY = 86_400;

/** What stands below the lines of a chart: the time of day, or the day where a day begins or lines are days apart. */
const timeLabels = (_: uPlot, lines: number[], __: number, ___: number, step: number): string[] =>
  lines.map((at, place) => {
    const day = dayOfYear(at * 1000);
    const isNewDay = place > 0 && day !== dayOfYear((lines[place - 1] ?? at) * 1000);
    return step >= DAY || isNewDay ? day : minuteOfDay(at * 1000);
  });

interface Properties {
  times: number[];
  series: Series[];
  label: string;
  /** Makes the text of a value in the legend, and the one at a line. */
  show?: (value: number) => string;
  tick?: (value: number) => string;
  /** Distances that lines may have. */
  distances?: number[];
  theme: string;
  height?: number;
  /** Moments to mark by a vertical line with a word, in seconds. */
  marks?: Mark[];
}

export interface Mark {
  at: number;
  label: string;
}

/** Draws the marks of a chart, the last first: a broken line, and the word beside it where there is room. */
function drawMarks(plot: uPlot, marks: Mark[], ink: string): void {
  const { ctx, bbox } = plot;
  ctx.save();
  ctx.strokeStyle = ctx.fillStyle = ink;
  ctx.lineWidth = devicePixelRatio;
  ctx.font = `${11 * devicePixelRatio}px system-ui`;
  ctx.textBaseline = "top";
  ctx.textAlign = "left";
  const right = bbox.left + bbox.width;
  let free = right;
  for (const { at, label } of [...marks].reverse()) {
    // What came since the last step began is at the edge.
    const x = Math.min(right, Math.round(plot.valToPos(at, "x", true)));
    if (x < bbox.left) continue;
    ctx.setLineDash([4 * devicePixelRatio, 3 * devicePixelRatio]);
    ctx.beginPath();
    ctx.moveTo(x, bbox.top);
    ctx.lineTo(x, bbox.top + bbox.height);
    ctx.stroke();
    const width = ctx.measureText(label).width + 6 * devicePixelRatio;
    const gap = 3 * devicePixelRatio;
    const isRight = x + width <= free;
    const isLeft = !isRight && x <= free && x - width >= bbox.left;
    if (isRight) ctx.fillText(label, x + gap, bbox.top);
    if (isLeft) ctx.fillText(label, x - width + gap, bbox.top);
    free = Math.min(free, isLeft ? x - width : x);
  }
  ctx.restore();
}

export function Chart(props: Properties) {
  const place = useRef<HTMLDivElement>(null);
  const { times, series, label, show = fraction, tick = compact, distances, theme, height = 220, marks = [] } = props;
  const zone = useZone();
  const plot = useRef<uPlot | null>(null);
  const marked = useRef(marks);
  marked.current = marks;
  const shape = `${theme}|${series.map((one) => one.label).join()}|${height}|${zone}`;
  useEffect(() => {
    const parent = place.current;
    if (!parent) return;
    const ink = resolved("ink-3");
    const axis = { stroke: ink, grid: { stroke: resolved("line"), width: 1 }, ticks: { show: false }, font: "12px system-ui" };
    const shown = (value: number | null | undefined): string => (value === null || value === undefined ? "–" : show(value));
    const made = new uPlot(
      {
        width: parent.clientWidth,
        height,
        padding: [null, 28, null, null], // half of a time at the right end
        cursor: { points: { size: 6 }, y: false },
        scales: { y: { range: (_, low, high) => [Math.min(0, low ?? 0), Math.max(high ?? 1, 1) * 1.08] } },
        hooks: { draw: [(drawn) => drawMarks(drawn, marked.current, resolved("ink-2"))] },
        tzDate: (at) => wallClock(at * 1000, (date) => uPlot.tzDate(date, "Etc/UTC")),
        axes: [
          { ...axis, values: timeLabels, space: 72 },
          { ...axis, size: 72, incrs: distances, values: (_, ticks) => ticks.map(tick) },
        ],
        series: [
          { value: (_, at) => (at ? exact(at * 1000) : "–") },
          ...series.map((one): uPlot.Series => {
            const colour = resolved(one.colour);
            return {
              label: one.label,
              stroke: colour,
              fill: one.isFilled ? faint(colour) : undefined,
              width: 1.6,
              points: { show: times.length < 3 },
              value: (_, value) => shown(value),
            };
          }),
        ],
      },
      [times, ...series.map((one) => one.values)],
      parent,
    );
    plot.current = made;
    const resize = new ResizeObserver(() => made.setSize({ width: parent.clientWidth, height }));
    resize.observe(parent);
    return () => {
      resize.disconnect();
      made.destroy();
      plot.current = null;
    };
  }, [shape]);
  useEffect(() => {
    plot.current?.setData([times, ...series.map((one) => one.values)]);
  });
  const saveNumbers = (): void => {
    const rows = times.map((at, step) => [instant(at * 1000), ...series.map((one) => one.values[step] ?? null)]);
    saveRows([["time", ...series.map((one) => one.label)], ...rows], "chart.csv");
  };
  return (
    <>
      <div class="chart" ref={place} role="img" aria-label={label} style={{ minHeight: `${height + 30}px` }} />
      <div class="more bare">
        <Button isSmall kind="plain" icon="download" aria-label={`Export the numbers of ${label} as CSV`} onClick={saveNumbers}>
          CSV
        </Button>
      </div>
    </>
  );
}
