/** Charts over time, by uPlot. */
import { useEffect, useRef } from "preact/hooks";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import { compact, dayOfYear, exact, fraction, minuteOfDay, useZone, wallClock } from "./format";
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
}

export function Chart(props: Properties) {
  const place = useRef<HTMLDivElement>(null);
  const { times, series, label, show = fraction, tick = compact, distances, theme, height = 220 } = props;
  const zone = useZone();
  const plot = useRef<uPlot | null>(null);
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
        cursor: { points: { size: 6 }, y: false },
        scales: { y: { range: (_, low, high) => [Math.min(0, low ?? 0), Math.max(high ?? 1, 1) * 1.08] } },
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
  return <div class="chart" ref={place} role="img" aria-label={label} style={{ minHeight: `${height + 30}px` }} />;
}
