/** Charts over time, by uPlot. */
import { useEffect, useRef } from "preact/hooks";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import { compact } from "./format";
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

export function Chart(props: { times: number[]; series: Series[]; label: string; unit?: string; theme: string; height?: number }) {
  const place = useRef<HTMLDivElement>(null);
  const { times, series, label, unit = "", theme, height = 220 } = props;
  const plot = useRef<uPlot | null>(null);
  const shape = `${theme}|${series.map((one) => one.label).join()}|${height}|${unit}`;
  useEffect(() => {
    const parent = place.current;
    if (!parent) return;
    const ink = resolved("ink-3");
    const axis = { stroke: ink, grid: { stroke: resolved("line"), width: 1 }, ticks: { show: false }, font: "12px system-ui" };
    const shown = (value: number | null): string => (value === null ? "–" : `${Math.round(value * 100) / 100}${unit}`);
    const made = new uPlot(
      {
        width: parent.clientWidth,
        height,
        cursor: { points: { size: 6 }, y: false },
        scales: { y: { range: (_, low, high) => [Math.min(0, low ?? 0), Math.max(high ?? 1, 1) * 1.08] } },
        axes: [axis, { ...axis, size: 64, values: (_, ticks) => ticks.map((tick) => compact(tick)) }],
        series: [
          {},
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
