/** Icons of 16 by 16, drawn with lines. */
const PATHS = {
  overview: "M2 9l6-6 6 6M4 8v6h8V8",
  jobs: "M3 4h10M3 8h10M3 12h6",
  workflows: "M4 3.5h3v3H4zM10 9.5h3v3h-3zM7 5h3.5v4.5",
  queues: "M2.5 4h11M2.5 8h11M2.5 12h11M5 2.5v3M9 6.5v3M12 10.5v3",
  workers: "M3 4h10v7H3zM6 14h4M8 11v3",
  schedules: "M8 2.5a5.5 5.5 0 100 11 5.5 5.5 0 000-11zM8 5v3l2 1.5",
  errors: "M8 2.5L14 13H2zM8 6.5v3M8 11.3v.2",
  events: "M2 8h3l1.5-4 3 8L11 8h3",
  collections: "M2.5 5L8 2.5 13.5 5 8 7.5zM2.5 8L8 10.5 13.5 8M2.5 11L8 13.5l5.5-2.5",
  admin: "M8 6a2 2 0 100 4 2 2 0 000-4zM8 2v2M8 12v2M2 8h2M12 8h2M3.8 3.8l1.4 1.4M10.8 10.8l1.4 1.4M3.8 12.2l1.4-1.4M10.8 5.2l1.4-1.4",
  search: "M7 3a4 4 0 100 8 4 4 0 000-8zM10 10l3.5 3.5",
  clock: "M8 2.5a5.5 5.5 0 100 11 5.5 5.5 0 000-11zM8 5v3.2l2 1.3",
  dot: "M8 6a2 2 0 100 4 2 2 0 000-4z",
  hand: "M5 8V4.5M8 8V3M11 8V4.5M5 8v3c0 2 1.5 3 3 3s3-1 3-3V8",
  play: "M5 3.5l7 4.5-7 4.5z",
  pause: "M5.5 3.5v9M10.5 3.5v9",
  check: "M3 8.5l3.5 3.5L13 5",
  retry: "M13 8a5 5 0 11-1.6-3.6M13 2.5v3h-3",
  stop: "M8 2.5a5.5 5.5 0 100 11 5.5 5.5 0 000-11zM4.2 4.2l7.6 7.6",
  cross: "M4 4l8 8M12 4l-8 8",
  skip: "M3 4l5 4-5 4zM11 4v8",
  branch: "M5 2.5v11M5 9h2.5A3.5 3.5 0 0011 5.5v-3M9 4.5l2-2 2 2",
  undo: "M3 6h6.5a3.5 3.5 0 010 7H6M3 6l3-3M3 6l3 3",
  trash: "M3 4.5h10M6 4.5V3h4v1.5M4.5 4.5l.7 9h5.6l.7-9",
  copy: "M5.5 5.5h7v8h-7zM3.5 10.5v-8h7",
  menu: "M2.5 4.5h11M2.5 8h11M2.5 11.5h11",
  moon: "M13 9.5A5.5 5.5 0 016.5 3a5.5 5.5 0 106.5 6.5z",
  download: "M8 2.5v8M4.5 7L8 10.5 11.5 7M3 13.5h10",
  plus: "M8 3v10M3 8h10",
  minus: "M3 8h10",
  fit: "M3 6V3h3M13 6V3h-3M3 10v3h3M13 10v3h-3",
  next: "M6 3.5L10.5 8 6 12.5",
  info: "M8 2.5a5.5 5.5 0 100 11 5.5 5.5 0 000-11zM8 7.5V11M8 5.2v.2",
  alert: "M8 3v6M8 11.6v.2",
  exit: "M6 3H3v10h3M7 8h6M10.5 5.5L13 8l-2.5 2.5",
} as const;

export type IconName = keyof typeof PATHS;

export function Icon({ name }: { name: IconName }) {
  return (
    <svg class="icon" viewBox="0 0 16 16" aria-hidden="true">
      <path d={PATHS[name]} />
    </svg>
  );
}

export const pathOf = (name: IconName): string => PATHS[name];
