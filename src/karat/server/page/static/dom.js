// DOM nodes from values. Text becomes text nodes, never markup.

const SVG = "http://www.w3.org/2000/svg";

/** An element. `props`: `on` holds listeners, `class` and all others are attributes; null and false leave one out. */
export function h(tag, props = {}, ...children) {
  return fill(document.createElement(tag), props, children);
}

/** The same for SVG. */
export function svg(tag, props = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), props, children);
}

function fill(element, props, children) {
  for (const [name, value] of Object.entries(props)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "on") for (const [kind, listener] of Object.entries(value)) element.addEventListener(kind, listener);
    else if (name === "style") for (const [key, part] of Object.entries(value)) element.style.setProperty(key, part);
    else if (name === "value") element.value = value;
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(
    ...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false),
  );
  return element;
}

export function button(label, act, props = {}) {
  return h("button", { type: "button", ...props, on: { click: act } }, label);
}

/** A button that shows a sign; `label` is its name for all who do not see it. */
export function iconButton(name, label, act, props = {}) {
  return h(
    "button",
    {
      type: "button",
      title: label,
      "aria-label": label,
      ...props,
      class: `icon ${props.class ?? ""}`,
      on: { click: act },
    },
    icon(name),
  );
}

const PATHS = {
  plus: "M8 3v10M3 8h10",
  menu: "M2.5 4.5h11M2.5 8h11M2.5 11.5h11",
  close: "M4 4l8 8M12 4l-8 8",
  send: "M8 13V3.5M4 7.2 8 3.2l4 4",
  stop: "M5 5h6v6H5z",
  edit: "M3 13l.7-2.8 7-7 2.1 2.1-7 7zM9.4 4.5l2.1 2.1",
  retry: "M12.8 7A5 5 0 1 0 12 11M13 3.5V7H9.5",
  copy: "M6 6h7v7H6zM3.5 10H3V3h7v.5",
  left: "M9.5 4 6 8l3.5 4",
  right: "M6.5 4 10 8l-3.5 4",
  why: "M6 6.2a2 2 0 1 1 2.9 1.8c-.6.3-.9.7-.9 1.4v.3M8 12.2v.1",
  proof: "M8 2l5 2v4c0 3-2.2 5-5 6-2.800-1-5-3-5-6V4zM5.800 8l1.600 1.600L10.400 6.500",
  live: "M2 9h2.500L6 4.500 9 12l1.800-4.500L11.800 9H14",
  settings: "M2.500 5h6M11.500 5h2M2.500 11h2M7.500 11h6M10 3.500v3M6 9.500v3",
  search: "M7 3a4 4 0 1 0 0 8 4 4 0 0 0 0-8zM10 10l3.500 3.500",
  trash: "M3.500 4.500h9M6 4.500V3h4v1.500M4.500 4.500l.6 8.500h5.800l.6-8.500",
  download: "M8 3v7M5 7.200 8 10.200l3-3M3 13h10",
  upload: "M8 10V3M5 5.800 8 2.800l3 3M3 13h10",
  check: "M3.500 8.500 6.500 11.500 12.500 4.500",
  moon: "M12.500 9.500A5 5 0 0 1 6.500 3.500a5 5 0 1 0 6 6z",
  keys: "M2 4.500h12v7H2zM4.500 7h.1M7 7h.1M9.500 7h.1M12 7h-.1M5 9.500h6",
  down: "M4 6.500 8 10l4-3.500",
};

export function icon(name) {
  return svg("svg", { viewBox: "0 0 16 16", "aria-hidden": "true", class: "sign" }, svg("path", { d: PATHS[name] }));
}

export function number(value) {
  return Number(value).toLocaleString("en");
}

/** A share as people read it: 42 %, 3.1 %, 0.02 %. */
export function percent(share) {
  if (share >= 0.9995) return "100 %";
  const points = share * 100;
  if (points >= 10) return `${points.toFixed(0)} %`;
  if (points >= 0.1) return `${points.toFixed(1)} %`;
  return points === 0 ? "0 %" : points < 0.001 ? "< 0.001 %" : `${points.toPrecision(1)} %`;
}

/** A token's text with its white space made visible. */
export function shown(text) {
  return text.replaceAll(" ", "␣").replaceAll("\n", "↵").replaceAll("\t", "⇥") || "∅";
}
