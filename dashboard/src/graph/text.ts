/** Texts in pictures, where no text wraps: each is cut to the width that there is for it. */
import { cut } from "../ui/plain";

/** No room of a picture is wider, in characters. */
const LONGEST = 300;

const pen = document.createElement("canvas").getContext("2d");

/** Width of a text in the font of the page, in pixels. */
export function widthOf(text: string, size: number, weight = 400): number {
  if (!pen) return 0;
  pen.font = `${weight} ${size}px ${getComputedStyle(document.documentElement).fontFamily}`;
  return pen.measureText(text).width;
}

/** A text, or as much of its beginning as a width in pixels has room for. */
export function fitted(text: string, width: number, size: number, weight?: number): string {
  const ended = (length: number): string => (length < text.length ? `${cut(text, length)}…` : text);
  let [fits, most] = [0, Math.min(text.length, LONGEST)];
  if (widthOf(ended(most), size, weight) <= width) return ended(most);
  while (most - fits > 1) {
    const middle = (fits + most) >> 1;
    if (widthOf(ended(middle), size, weight) <= width) fits = middle;
    else most = middle;
  }
  return ended(fits);
}
