/** The live picture of a workflow: fold, pan, zoom, search, follow, export. Only what can be seen is drawn. */
import { useCallback, useEffect, useMemo, useRef, useState } from "preact/hooks";
import type { Schemas } from "../api/client";
import { useData } from "../api/use";
import { useDialogs } from "../ui/dialogs";
import { compact } from "../ui/format";
import { pathOf } from "../ui/icons";
import { Button, Shown } from "../ui/parts";
import { colourOf, STATES } from "../ui/states";
import { savePng, saveSvg } from "./export";
import { Found } from "./Found";
import { type Arrow, type Box, layout, LEAF, type More } from "./layout";
import { Minimap } from "./Minimap";
import { ASKED, type Level, type Levels, mainSteps, readAgain, readAround, readLevel, stateOf, type Step, titleOf } from "./model";
import { fitted, widthOf } from "./text";

interface View {
  x: number;
  y: number;
  scale: number;
}

const MARGIN = 16;
const SCALES = { least: 0.05, most: 2.5 };
/** Size of the smallest text, in pixels: on the screen no text is smaller. */
const SMALLEST = 11;
const FONTS = { title: 13, under: 12 };
/** At this scale all texts can be read. */
const READABLE = SMALLEST / FONTS.under;
/** Below this scale a box has no room for a text that can be read. */
const TEXTLESS = 0.3;

/** What somebody who opens a picture looks for: the step to open it at, or one that waits for people, or runs. */
function whatMatters(boxes: Box[], first: string | null): Box | undefined {
  const leaves = boxes.filter((box) => !box.isOpen);
  const inState = (state: string): Box | undefined => leaves.find((box) => stateOf(box.step) === state);
  return boxes.find((box) => box.step.path === first) ?? inState("failed") ?? inState("blocked") ?? inState("active") ?? inState("retryable");
}

export function Graph(props: {
  id: string;
  job?: string;
  name: string;
  /** The path of a step to open the picture at. */
  first: string | null;
  chosen: string | null;
  choose: (step: Schemas["StepRow"]) => void;
}) {
  const levels = useRef<Levels | null>(null);
  const load = async (): Promise<Levels> => {
    const read = levels.current ? await readAgain(props.id, levels.current) : await readAround(props.id, props.first);
    // What was folded or unfolded meanwhile stays so.
    const known = levels.current ?? read;
    levels.current = new Map([...known].map(([number, level]) => [number, read.get(number) ?? level]));
    return levels.current;
  };
  const { act } = useDialogs();
  const data = useData(`graph ${props.id}`, load, { kinds: ["workflow", "job"], id: [props.id, props.job] });
  const set = (number: number, level: Level | null): void => {
    const next = new Map(levels.current ?? data.data);
    if (level) next.set(number, level);
    else next.delete(number);
    levels.current = next;
    data.reload();
  };
  const fold = async (step: Step): Promise<void> => {
    const number = step.number ?? 0;
    if (levels.current?.has(number)) set(number, null);
    else await act(async () => set(number, await readLevel(props.id, number)));
  };
  const more = async (of: number): Promise<void> => {
    const known = levels.current?.get(of);
    await act(async () => set(of, await readLevel(props.id, of, (known ? mainSteps(known) : 0) + 500)));
  };
  return (
    <Shown of={data} rows={8}>
      {(shown) => (
        <Canvas
          id={props.id}
          levels={shown}
          name={props.name}
          first={props.first}
          chosen={props.chosen}
          choose={props.choose}
          fold={(step) => void fold(step)}
          more={(of) => void more(of)}
        />
      )}
    </Shown>
  );
}

function Canvas(props: {
  id: string;
  levels: Levels;
  name: string;
  first: string | null;
  chosen: string | null;
  choose: (step: Schemas["StepRow"]) => void;
  fold: (step: Step) => void;
  more: (of: number) => void;
}) {
  const picture = useMemo(() => layout(props.levels), [props.levels]);
  const place = useRef<HTMLDivElement>(null);
  const svg = useRef<SVGSVGElement>(null);
  const [view, setView] = useState<View | null>(null);
  const [size, setSize] = useState({ width: 800, height: 480 });
  const [wanted, setWanted] = useState("");
  const [sought, setSought] = useState("");
  const [isFollowing, setFollowing] = useState(false);
  const [isWhole, setWhole] = useState(false);
  const drag = useRef<{ x: number; y: number; view: View; isMoving: boolean } | null>(null);

  /** Shows all, however small, or at a least scale as much as there is room for. */
  const fit = useCallback(
    (least = 0): void => {
      const box = place.current;
      if (!box) return;
      const { clientWidth: width, clientHeight: height } = box;
      const whole = Math.min((width - 2 * MARGIN) / picture.width, (height - 2 * MARGIN) / picture.height, 1);
      const scale = Math.max(least, whole);
      const x = Math.max(MARGIN, (width - picture.width * scale) / 2);
      const y = Math.max(MARGIN, (height - picture.height * scale) / 2);
      setView({ x, y, scale });
    },
    [picture.width, picture.height],
  );
  useEffect(() => {
    if (view || !picture.width) return;
    const { clientWidth: width, clientHeight: height } = place.current ?? { clientWidth: 0, clientHeight: 0 };
    const isSmall = picture.width * READABLE <= width - 2 * MARGIN && picture.height * READABLE <= height - 2 * MARGIN;
    const first = whatMatters(picture.boxes, props.first);
    if (first && !isSmall) show(first);
    else fit(READABLE);
  }, [view, picture, fit]);
  useEffect(() => {
    const box = place.current;
    if (!box) return;
    const watch = new ResizeObserver(() => setSize({ width: box.clientWidth, height: box.clientHeight }));
    watch.observe(box);
    const wheel = (event: WheelEvent): void => {
      if (!event.ctrlKey && !event.metaKey) return; // the page scrolls
      event.preventDefault();
      const area = box.getBoundingClientRect();
      zoom(Math.exp(-event.deltaY / 400), event.clientX - area.left, event.clientY - area.top);
    };
    box.addEventListener("wheel", wheel, { passive: false });
    return () => {
      watch.disconnect();
      box.removeEventListener("wheel", wheel);
    };
  }, []);
  const zoom = (factor: number, x = size.width / 2, y = size.height / 2): void => {
    setView((known) => {
      if (!known) return known;
      const scale = Math.min(SCALES.most, Math.max(Math.min(SCALES.least, known.scale), known.scale * factor));
      const ratio = scale / known.scale;
      return { scale, x: x - (x - known.x) * ratio, y: y - (y - known.y) * ratio };
    });
  };
  const show = (box: Box): void => {
    const { clientWidth: width, clientHeight: height } = place.current ?? { clientWidth: size.width, clientHeight: size.height };
    setView((known) => {
      const scale = Math.max(known?.scale ?? 1, READABLE);
      return { scale, x: width / 2 - (box.x + box.width / 2) * scale, y: height / 2 - (box.y + LEAF.height / 2) * scale };
    });
  };
  const unfolded = useRef<number | null>(null);
  const fold = (step: Step): void => {
    unfolded.current = step.number ?? 0;
    props.fold(step);
  };
  useEffect(() => {
    const box = picture.boxes.find((one) => one.step.number === unfolded.current);
    if (!box) return;
    unfolded.current = null;
    setView((known) => {
      if (!known) return known;
      const [x, y] = [box.x * known.scale + known.x, box.y * known.scale + known.y];
      const isSeenWhole = x >= 0 && y >= 0 && x < size.width - 100 && y < size.height - 60;
      return isSeenWhole ? known : { ...known, x: MARGIN - box.x * known.scale, y: MARGIN - box.y * known.scale };
    });
  }, [picture]);
  const active = isFollowing ? picture.boxes.find((box) => !box.isOpen && ["active", "blocked", "pending"].includes(box.step.state)) : undefined;
  useEffect(() => {
    if (active) show(active);
  }, [active?.step.number]);

  const looked = wanted.trim().toLowerCase();
  const isFound = (step: Step): boolean => looked !== "" && `${step.path} ${step.type}`.toLowerCase().includes(looked);
  const seek = (event: Event): void => {
    event.preventDefault();
    const hit = picture.boxes.find((box) => isFound(box.step));
    if (hit) show(hit);
    setSought(looked);
  };
  const down = (event: PointerEvent): void => {
    if (view) drag.current = { x: event.clientX, y: event.clientY, view, isMoving: false };
  };
  const move = (event: PointerEvent): void => {
    const begun = drag.current;
    if (!begun) return;
    const dx = event.clientX - begun.x;
    const dy = event.clientY - begun.y;
    if (!begun.isMoving && Math.hypot(dx, dy) < 4) return;
    if (!begun.isMoving) place.current?.setPointerCapture(event.pointerId);
    begun.isMoving = true;
    setView({ ...begun.view, x: begun.view.x + dx, y: begun.view.y + dy });
  };
  const press = (event: KeyboardEvent): void => {
    const steps: Record<string, [number, number]> = { ArrowLeft: [60, 0], ArrowRight: [-60, 0], ArrowUp: [0, 60], ArrowDown: [0, -60] };
    const step = steps[event.key];
    if (event.key === "+") zoom(1.25);
    else if (event.key === "-") zoom(0.8);
    else if (step) setView((known) => known && { ...known, x: known.x + step[0], y: known.y + step[1] });
    else return;
    event.preventDefault();
  };
  const shown = view ?? { x: MARGIN, y: MARGIN, scale: 1 };
  const isLarge = picture.width > 1.5 * size.width || picture.height > 1.5 * size.height;
  const scale = isWhole ? 1 : shown.scale;
  const isSeen = (x: number, y: number, width: number, height: number): boolean =>
    isWhole ||
    ((x + width) * shown.scale + shown.x > -50 &&
    x * shown.scale + shown.x < size.width + 50 &&
    (y + height) * shown.scale + shown.y > -50 &&
    y * shown.scale + shown.y < size.height + 50);
  const export_ = async (how: typeof saveSvg | typeof savePng): Promise<void> => {
    setWhole(true); // also what is outside of the window
    await new Promise((resolve) => requestAnimationFrame(() => requestAnimationFrame(resolve)));
    if (svg.current) await how(svg.current, picture.width + 2 * MARGIN, picture.height + 2 * MARGIN, props.name);
    setWhole(false);
  };
  return (
    <>
      <form class="more" style={{ borderTop: 0 }} onSubmit={seek} role="search">
        <label>
          <span class="hidden">Find a step</span>
          <input class="input" placeholder="Find a step" value={wanted} onInput={(event) => setWanted(event.currentTarget.value)} />
        </label>
        <label class="check">
          <input type="checkbox" checked={isFollowing} onChange={(event) => setFollowing(event.currentTarget.checked)} /> Follow what runs
        </label>
        <span style={{ marginLeft: "auto" }} />
        <Button isSmall icon="download" onClick={() => void export_(saveSvg)}>
          SVG
        </Button>
        <Button isSmall icon="download" onClick={() => void export_(savePng)}>
          PNG
        </Button>
      </form>
      {sought && sought === looked && <Found id={props.id} text={sought} choose={props.choose} />}
      <div
        class={`canvas ${drag.current?.isMoving ? "moving" : ""}`}
        ref={place}
        tabIndex={0}
        role="group"
        style={{ height: `${Math.max(220, Math.min(760, picture.height + 120))}px` }}
        aria-label="The workflow's graph. Arrow keys move it, plus and minus zoom, and so does the wheel with Ctrl."
        onPointerDown={down}
        onPointerMove={move}
        onPointerUp={() => (drag.current = null)}
        onPointerCancel={() => (drag.current = null)}
        onKeyDown={press}
      >
        <svg ref={svg}>
          <defs>
            <marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">
              <path d="M0 0L8 4L0 8z" style={{ fill: "var(--line-strong)" }} />
            </marker>
          </defs>
          <g data-view="" transform={`translate(${shown.x} ${shown.y}) scale(${shown.scale})`}>
            {picture.boxes
              .filter((box) => box.isOpen && isSeen(box.x, box.y, box.width, box.height))
              .map((box) => (
                <Node key={box.step.number} box={box} chosen={props.chosen} choose={props.choose} fold={fold} scale={scale} isFound={isFound(box.step) || box.step.path === props.first} />
              ))}
            {picture.arrows.map((arrow, number) => {
              const first = arrow.points[0];
              const last = arrow.points.at(-1);
              if (!first || !last || !isSeen(first.x, Math.min(first.y, last.y), last.x - first.x, Math.abs(last.y - first.y))) return null;
              return <path key={number} class={`graph-edge ${arrow.isSide ? "side" : ""}`} d={curve(arrow)} marker-end="url(#tip)" />;
            })}
            {picture.boxes
              .filter((box) => !box.isOpen && isSeen(box.x, box.y, box.width, box.height))
              .map((box) => (
                <Node key={box.step.number} box={box} chosen={props.chosen} choose={props.choose} fold={fold} scale={scale} isFound={isFound(box.step) || box.step.path === props.first} />
              ))}
            {picture.more.map((more) => (
              <MoreButton key={more.of} more={more} load={props.more} scale={scale} />
            ))}
          </g>
        </svg>
        {isLarge && (
          <Minimap
            picture={picture}
            area={{ x: -shown.x / shown.scale, y: -shown.y / shown.scale, width: size.width / shown.scale, height: size.height / shown.scale }}
            go={(x, y) => setView((known) => known && { ...known, x: size.width / 2 - x * known.scale, y: size.height / 2 - y * known.scale })}
          />
        )}
        <div class="graph-tools">
          <Button isSmall icon="plus" aria-label="Larger" onClick={() => zoom(1.25)} />
          <Button isSmall icon="minus" aria-label="Smaller" onClick={() => zoom(0.8)} />
          <Button isSmall icon="fit" aria-label="Show all" title="Show all" onClick={() => fit()} />
        </div>
      </div>
    </>
  );
}

function curve(arrow: Arrow): string {
  const [first, ...rest] = arrow.points;
  if (!first) return "";
  let path = `M${first.x} ${first.y}`;
  let from = first;
  for (const to of rest) {
    const bend = Math.max(6, (to.x - from.x) / 2);
    path += `C${from.x + bend} ${from.y} ${to.x - bend} ${to.y} ${to.x} ${to.y}`;
    from = to;
  }
  return path;
}

function Node(props: { box: Box; chosen: string | null; scale: number; isFound: boolean; choose: (step: Step) => void; fold: (step: Step) => void }) {
  const { box } = props;
  const { step } = box;
  const state = stateOf(step);
  const colour = colourOf(state);
  const icon = STATES[state]?.icon ?? "dot";
  const size = Math.max(FONTS.title, SMALLEST / props.scale);
  const name = titleOf(step);
  const hasText = props.scale >= TEXTLESS;
  const hasUnder = props.scale >= READABLE - 0.01;
  const kind = step.is_container
    ? `${step.kind}, ${compact(step.completed ?? 0)} of ${compact(step.total ?? 0)}`
    : (ASKED[step.kind] ?? (name !== step.type ? step.type : step.display_name && step.display_name !== step.type ? step.display_name : step.path));
  const room = box.width - 29 - 8;
  const under = fitted(kind, box.isOpen ? room / 2 : room, FONTS.under);
  const beside = box.isOpen && hasUnder ? widthOf(under, FONTS.under) + 8 : 0;
  const title = fitted(name, room - beside, size, 600);
  const share = step.total ? (step.completed ?? 0) / step.total : 0;
  const open = (): void => (step.is_container ? props.fold(step) : props.choose(step));
  const press = (event: KeyboardEvent): void => {
    if (event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    event.stopPropagation();
    open();
  };
  return (
    <g
      class={`graph-node ${props.chosen === step.path ? "chosen" : ""} ${props.isFound ? "found" : ""}`}
      transform={`translate(${box.x} ${box.y})`}
      tabindex={0}
      role="button"
      aria-label={`${name} ${kind}, ${state}${step.is_container ? (box.isOpen ? ", fold" : ", unfold") : ""}`}
      onClick={open}
      onKeyDown={press}
    >
      <rect
        class="box"
        width={box.width}
        height={box.height}
        rx={step.kind === "gate" ? 20 : 8}
        stroke-dasharray={box.isOpen ? "4 3" : undefined}
        style={{ fill: box.isOpen ? "transparent" : `var(--${colour}-soft)`, stroke: `var(--${colour})` }}
      />
      <g transform="translate(9 8) scale(0.9)" style={{ stroke: `var(--${colour})`, fill: "none", strokeWidth: 1.7 }}>
        <path d={pathOf(icon)} />
      </g>
      {hasText && (
        <text x="29" y={hasUnder || box.isOpen ? 19 : LEAF.height / 2 + size / 3} style={{ fill: "var(--ink)", fontSize: `${size}px`, fontWeight: 600 }}>
          {title}
        </text>
      )}{" "}
      {hasUnder && (
        <text x={box.isOpen ? box.width - 10 : 29} y={box.isOpen ? 19 : 36} text-anchor={box.isOpen ? "end" : "start"} style={{ fill: "var(--ink-2)", fontSize: `${FONTS.under}px` }}>
          {under}
        </text>
      )}
      {step.is_container && !box.isOpen && (
        <>
          <rect x="0" y={box.height - 4} width={box.width} height="4" style={{ fill: "var(--grey-soft)" }} />
          <rect x="0" y={box.height - 4} width={box.width * share} height="4" style={{ fill: `var(--${colour})` }} />
        </>
      )}
    </g>
  );
}

function MoreButton({ more, load, scale }: { more: More; load: (of: number) => void; scale: number }) {
  return (
    <g
      class="graph-node"
      transform={`translate(${more.x} ${more.y})`}
      tabindex={0}
      role="button"
      aria-label={`${compact(more.left)} more steps`}
      onClick={() => load(more.of)}
      onKeyDown={(event) => (event.key === "Enter" || event.key === " ") && load(more.of)}
    >
      <rect class="box" width={LEAF.width} height={30} rx={15} style={{ fill: "var(--surface)", stroke: "var(--accent)" }} />
      {scale >= TEXTLESS && (
        <text x={LEAF.width / 2} y={19} text-anchor="middle" style={{ fill: "var(--accent)", fontSize: `${Math.max(FONTS.under, SMALLEST / scale)}px` }}>
          {compact(more.left)} more
        </text>
      )}
    </g>
  );
}
