/** Saves a picture as it is shown, as SVG or PNG. */
import { save } from "../ui/export";

const STYLES = ["fill", "stroke", "stroke-width", "stroke-dasharray", "font-family", "font-size", "font-weight", "opacity", "text-anchor"];

function standalone(svg: SVGSVGElement, width: number, height: number): string {
  const copy = svg.cloneNode(true) as SVGSVGElement;
  const from = svg.querySelectorAll<SVGElement>("*");
  copy.querySelectorAll<SVGElement>("*").forEach((element, place) => {
    const original = from[place];
    if (!original) return;
    const computed = getComputedStyle(original);
    for (const name of STYLES) {
      const value = computed.getPropertyValue(name);
      if (value) element.setAttribute(name, value);
    }
    element.removeAttribute("class");
    element.removeAttribute("tabindex");
  });
  copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  copy.setAttribute("width", String(width));
  copy.setAttribute("height", String(height));
  copy.setAttribute("viewBox", `0 0 ${width} ${height}`);
  copy.querySelector("[data-view]")?.setAttribute("transform", "translate(16 16)");
  const ground = getComputedStyle(document.documentElement).backgroundColor;
  copy.insertAdjacentHTML("afterbegin", `<rect width="100%" height="100%" fill="${ground}"/>`);
  return new XMLSerializer().serializeToString(copy);
}


export function saveSvg(svg: SVGSVGElement, width: number, height: number, name: string): void {
  save(new Blob([standalone(svg, width, height)], { type: "image/svg+xml" }), `${name}.svg`);
}

const LARGEST_SIDE = 8_192;

export async function savePng(svg: SVGSVGElement, width: number, height: number, name: string): Promise<void> {
  const scale = Math.min(2, LARGEST_SIDE / Math.max(width, height));
  const image = new Image();
  const source = URL.createObjectURL(new Blob([standalone(svg, width, height)], { type: "image/svg+xml" }));
  try {
    image.src = source;
    await image.decode();
    const canvas = document.createElement("canvas");
    canvas.width = Math.ceil(width * scale);
    canvas.height = Math.ceil(height * scale);
    canvas.getContext("2d")?.drawImage(image, 0, 0, canvas.width, canvas.height);
    const blob = await new Promise<Blob | null>((resolve) => canvas.toBlob(resolve));
    if (blob) save(blob, `${name}.png`);
  } finally {
    URL.revokeObjectURL(source);
  }
}
