/** The whole of a large graph in small, with what the window shows of it: a click or a drag moves the window. */
import { useMemo } from "preact/hooks";
import { colourOf } from "../ui/states";
import type { Box, Picture } from "./layout";
import { stateOf } from "./model";

const MAP = { width: 180, height: 110 };
/** A long chain is a line: the map has at least this size, to be hit. */
const LEAST = 16;

/** Width of the border and padding around the map. */
const EDGE = 5;

interface Area {
  x: number;
  y: number;
  width: number;
  height: number;
}

/** One path for all boxes of a colour: a thousand elements would be slow to move. */
function pathsOf(boxes: Box[]): [string, string][] {
  const paths = new Map<string, string>();
  for (const { step, x, y, width, height, isOpen } of boxes) {
    if (isOpen) continue;
    const colour = colourOf(stateOf(step));
    paths.set(colour, `${paths.get(colour) ?? ""}M${x} ${y}h${width}v${height}h${-width}z`);
  }
  return [...paths];
}

export function Minimap({ picture, area, go }: { picture: Picture; area: Area; go: (x: number, y: number) => void }) {
  const scale = Math.min(MAP.width / picture.width, MAP.height / picture.height);
  const [width, height] = [Math.max(LEAST, picture.width * scale), Math.max(LEAST, picture.height * scale)];
  const paths = useMemo(() => pathsOf(picture.boxes), [picture]);
  const move = (event: PointerEvent): void => {
    event.stopPropagation();
    if (event.type === "pointermove" && !event.buttons) return;
    const place = (event.currentTarget as Element).getBoundingClientRect();
    // The picture stands in the middle of its map.
    const at = (from: number, length: number, whole: number): number => (from - (length - whole * scale) / 2) / scale;
    go(at(event.clientX - place.left - EDGE, width, picture.width), at(event.clientY - place.top - EDGE, height, picture.height));
  };
  return (
    <div class="minimap" onPointerDown={move} onPointerMove={move}>
      <svg
        role="img"
        aria-label="Map of the whole graph"
        width={width}
        height={height}
        viewBox={`0 0 ${picture.width} ${picture.height}`}
      >
        {paths.map(([colour, path]) => (
          <path key={colour} d={path} vector-effect="non-scaling-stroke" style={{ fill: `var(--${colour})`, stroke: `var(--${colour})` }} />
        ))}
        <rect {...area} style={{ fill: "none", stroke: "var(--focus)", strokeWidth: 1.5 / scale }} />
      </svg>
    </div>
  );
}
