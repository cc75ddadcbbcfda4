/** When each step of a workflow ran. */
import { useRef } from "preact/hooks";
import type { Schemas } from "../api/client";
import { duration, many } from "../ui/format";
import { Button, Empty } from "../ui/parts";
import { colourOf } from "../ui/states";
import { ASKED, spansOf, titleOf } from "./model";
import { savePng, saveSvg } from "./export";
import { fitted } from "./text";

type Row = Schemas["StepRow"];

const ROW = 24;
const LABELS = 240;
const WIDTH = 1_040;
const TOP = 30;

/** What a step is called, with its type if that is all it is called by. */
function labelOf(row: Row): string {
  return ASKED[row.kind] ? `${row.type}, ${ASKED[row.kind]}` : titleOf(row) === row.type ? `${row.path} ${row.type}` : row.path;
}

/** What the bars of a timeline mean. */
export function Legend() {
  return (
    <span class="legend">
      <i class="waits" /> waits
      <i class="runs" /> runs
      <i class="t-stop" /> stops
    </span>
  );
}

export function Gantt({ rows, name }: { rows: Row[]; name: string }) {
  const svg = useRef<SVGSVGElement>(null);
  const begun = rows.map((row) => ({ row, ...spansOf(row) })).filter(({ waited, ran }) => waited ?? ran);
  if (!begun.length) return <Empty icon="clock" title="No step has begun" />;
  const moments = begun.flatMap(({ waited, ran, stopped }) => [...(waited ?? []), ...(ran ?? []), ...(stopped ?? [])]);
  const start = Math.min(...moments);
  const end = Math.max(...moments, start + 1);
  const x = (at: number): number => LABELS + ((at - start) / (end - start)) * (WIDTH - LABELS - 80);
  const height = TOP + begun.length * ROW + 8;
  const ticks = [0, 0.25, 0.5, 0.75, 1].map((share) => start + share * (end - start));
  const save = (how: typeof saveSvg | typeof savePng): void => {
    if (svg.current) void how(svg.current, WIDTH, height, `${name} timeline`);
  };
  return (
    <>
      <div class="more" style={{ borderTop: 0 }}>
        <span>
          {many(begun.length, "step")} in {duration(end - start)}
        </span>
        <Legend />
        <span style={{ marginLeft: "auto" }} />
        <Button isSmall icon="download" onClick={() => save(saveSvg)}>
          SVG
        </Button>
        <Button isSmall icon="download" onClick={() => save(savePng)}>
          PNG
        </Button>
      </div>
      <div class="gantt" tabIndex={0} role="group" aria-label="Timeline">
        <svg ref={svg} width={WIDTH} height={height} role="img" aria-label={`Timeline of ${begun.length} steps`}>
          <g>
            {ticks.map((at) => (
              <g key={at}>
                <line x1={x(at)} x2={x(at)} y1={TOP - 6} y2={height} style={{ stroke: "var(--line)" }} />
                <text x={x(at)} y={16} text-anchor="middle" style={{ fill: "var(--ink-3)", fontSize: "11px" }}>
                  {duration(at - start)}
                </text>
              </g>
            ))}
            {begun.map(({ row, waited, ran, stopped }, place) => {
              const to = (stopped ?? ran ?? waited)?.[1] ?? start;
              const y = TOP + place * ROW;
              const [top, height] = ["job", ...Object.keys(ASKED)].includes(row.kind) ? [y + 4, 14] : [y + 8, 6];
              const fill = `var(--${colourOf(row.state)})`;
              const said = [
                waited && `waited ${duration(waited[1] - waited[0])}`,
                ran && `ran ${duration(ran[1] - ran[0])}`,
                stopped && `stopped for ${duration(stopped[1] - stopped[0])}`,
              ];
              const depth = row.path && !ASKED[row.kind] ? row.path.split(".").length - 1 : 0;
              const left = 8 + Math.min(depth, 6) * 12;
              return (
                <g key={row.path}>
                  <title>{[`${row.path}: ${row.state}`, ...said.filter(Boolean)].join(", ")}</title>
                  <text x={left} y={y + 15} style={{ fill: "var(--ink)", fontSize: "12px" }}>
                    {fitted(labelOf(row), LABELS - left - 8, 12)}
                  </text>
                  {waited && (
                    <rect x={x(waited[0])} y={top} width={Math.max(1, x(waited[1]) - x(waited[0]))} height={height} rx={3} style={{ fill, opacity: 0.3 }} />
                  )}
                  {ran && <rect x={x(ran[0])} y={top} width={Math.max(2, x(ran[1]) - x(ran[0]))} height={height} rx={3} style={{ fill }} />}
                  {stopped && (
                    <rect
                      x={x(stopped[0])}
                      y={top}
                      width={Math.max(2, x(stopped[1]) - x(stopped[0]))}
                      height={height}
                      rx={3}
                      style={{ fill: "var(--orange-soft)", stroke: "var(--orange)", strokeDasharray: "3 2" }}
                    />
                  )}
                  <text x={Math.min(x(to) + 6, WIDTH - 72)} y={y + 15} style={{ fill: "var(--ink-3)", fontSize: "11px" }}>
                    {ran ? duration(ran[1] - ran[0]) : ""}
                  </text>
                </g>
              );
            })}
          </g>
        </svg>
      </div>
    </>
  );
}
