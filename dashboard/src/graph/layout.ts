/** Places of steps: each level by dagre, or as a grid if nothing in it follows anything. */
import * as dagre from "@dagrejs/dagre";
import type { Level, Levels, Step } from "./model";

export interface Box {
  step: Step;
  x: number;
  y: number;
  width: number;
  height: number;
  depth: number;
  isOpen: boolean;
}

export interface Arrow {
  points: { x: number; y: number }[];
  isSide: boolean;
}

export interface More {
  of: number;
  x: number;
  y: number;
  left: number;
}

export interface Picture {
  width: number;
  height: number;
  boxes: Box[];
  arrows: Arrow[];
  more: More[];
}

export const LEAF = { width: 196, height: 46 };
const PADDING = 14;
const TITLE = 30;
const GAP = 16;
const MORE_HEIGHT = 34;

export function layout(levels: Levels): Picture {
  const root = levels.get(0);
  return root ? arrange(root, 0, levels, 0) : { width: 0, height: 0, boxes: [], arrows: [], more: [] };
}

function arrange(level: Level, number: number, levels: Levels, depth: number): Picture {
  const inner = new Map<number, Picture>();
  for (const step of level.steps) {
    const own = step.is_container ? levels.get(step.number ?? 0) : undefined;
    if (own) inner.set(step.number ?? 0, arrange(own, step.number ?? 0, levels, depth + 1));
  }
  const sizeOf = (step: Step): { width: number; height: number } => {
    const picture = inner.get(step.number ?? 0);
    if (!picture) return LEAF;
    return { width: Math.max(LEAF.width, picture.width + 2 * PADDING), height: picture.height + TITLE + PADDING };
  };
  const hasArrows = level.steps.some((step) => (step.after ?? []).length > 0);
  const placed = hasArrows ? byDagre(level.steps, sizeOf) : asGrid(level.steps, sizeOf);
  const picture: Picture = { width: placed.width, height: placed.height, boxes: [], arrows: placed.arrows, more: [] };
  level.steps.forEach((step, place) => {
    const at = placed.at[place];
    if (!at) return;
    const inside = inner.get(step.number ?? 0);
    picture.boxes.push({ step, ...at, ...sizeOf(step), depth, isOpen: inside !== undefined });
    if (!inside) return;
    const dx = at.x + PADDING;
    const dy = at.y + TITLE;
    picture.boxes.push(...inside.boxes.map((box) => ({ ...box, x: box.x + dx, y: box.y + dy })));
    picture.more.push(...inside.more.map((more) => ({ ...more, x: more.x + dx, y: more.y + dy })));
    picture.arrows.push(
      ...inside.arrows.map((arrow) => ({ ...arrow, points: arrow.points.map(({ x, y }) => ({ x: x + dx, y: y + dy })) })),
    );
  });
  const shown = level.steps.filter((step) => !step.is_branch).length;
  if (level.cursor !== null) {
    picture.more.push({ of: number, x: 0, y: picture.height + GAP, left: level.total - shown });
    picture.height += GAP + MORE_HEIGHT;
    picture.width = Math.max(picture.width, LEAF.width);
  }
  return picture;
}

type Placed = { width: number; height: number; at: { x: number; y: number }[]; arrows: Arrow[] };
type Middle = { x: number; y: number; width: number; height: number };
type SizeOf = (step: Step) => { width: number; height: number };

function byDagre(steps: Step[], sizeOf: SizeOf): Placed {
  const graph = new dagre.graphlib.Graph();
  graph.setGraph({ rankdir: "LR", nodesep: GAP, ranksep: 44, marginx: 0, marginy: 0 });
  graph.setDefaultEdgeLabel(() => ({}));
  for (const step of steps) graph.setNode(String(step.number), { ...sizeOf(step) });
  for (const step of steps) for (const before of step.after ?? []) graph.setEdge(String(before), String(step.number));
  dagre.layout(graph);
  const at = steps.map((step) => {
    const node = graph.node(String(step.number)) as Middle;
    return { x: node.x - node.width / 2, y: node.y - node.height / 2 };
  });
  const branches = new Set(steps.filter((step) => step.is_branch).map((step) => String(step.number)));
  const arrows = graph.edges().map((edge: { v: string; w: string }): Arrow => {
    const from = graph.node(edge.v) as Middle;
    const to = graph.node(edge.w) as Middle;
    const { points: way } = graph.edge(edge) as { points: { x: number; y: number }[] };
    const around = way.length > 3 ? way.slice(1, -1) : []; // the way of a long arrow past the steps between
    const points = [{ x: from.x + from.width / 2, y: from.y }, ...around, { x: to.x - to.width / 2, y: to.y }];
    return { points, isSide: branches.has(edge.w) };
  });
  const { width, height } = graph.graph() as { width: number; height: number };
  return { width, height, at, arrows };
}

/** Steps beside each other, in rows and columns that make about a landscape. */
function asGrid(steps: Step[], sizeOf: SizeOf): Placed {
  const columns = Math.max(1, Math.min(10, Math.round(Math.sqrt(steps.length / 2.5))));
  const at: { x: number; y: number }[] = [];
  let y = 0;
  let width = 0;
  for (let first = 0; first < steps.length; first += columns) {
    const row = steps.slice(first, first + columns);
    let x = 0;
    let height = 0;
    for (const step of row) {
      const size = sizeOf(step);
      at.push({ x, y });
      x += size.width + GAP;
      height = Math.max(height, size.height);
    }
    width = Math.max(width, x - GAP);
    y += height + GAP;
  }
  return { width: Math.max(0, width), height: Math.max(0, y - GAP), at, arrows: [] };
}
