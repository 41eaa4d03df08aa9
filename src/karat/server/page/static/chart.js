// A small chart of the last minute, as inline SVG.
import { h, svg } from "./dom.js";

const NUM = 60;
const WIDTH = 240;
const HEIGHT = 44;

/** `value(now, was, seconds)` is a number, or null where there is none: then the last one stays. */
export function makeChart(name, value, { unit, most = null, whole = false }) {
  const values = [];
  const latest = h("span", { class: "latest" }, "–");
  const line = svg("path", { class: "line" });
  const area = svg("path", { class: "area" });
  const element = h(
    "figure",
    { class: "chart" },
    h("figcaption", {}, h("span", {}, name), latest),
    svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", "aria-hidden": "true" }, area, line),
  );

  function add(now, was, seconds) {
    const next = value(now, was, seconds);
    const shown = Number.isFinite(next) ? next : null;
    values.push(shown ?? values.at(-1) ?? null);
    if (values.length > NUM) values.shift();
    if (shown !== null) latest.textContent = `${format(shown, whole)}${unit}`;
    draw();
  }

  function draw() {
    const top = most ?? Math.max(1, ...values.filter((v) => v !== null)) * 1.15;
    const x = (i) => WIDTH - ((values.length - 1 - i) * WIDTH) / (NUM - 1);
    const y = (v) => HEIGHT - 2 - ((HEIGHT - 4) * Math.min(v, top)) / top;
    const points = values.map((v, i) => [x(i), y(v ?? 0)]);
    const path = points.map(([px, py], i) => `${i ? "L" : "M"}${px.toFixed(1)} ${py.toFixed(1)}`).join("");
    line.setAttribute("d", path);
    area.setAttribute("d", `${path}L${WIDTH} ${HEIGHT}L${points[0][0].toFixed(1)} ${HEIGHT}Z`);
  }

  return { element, add };
}

function format(value, whole) {
  if (whole) return String(Math.round(value));
  if (value === 0) return "0";
  return value >= 100 ? value.toFixed(0) : value >= 10 ? value.toFixed(1) : value.toFixed(2);
}
