// Markdown to blocks, and blocks to DOM nodes. There is no way from a text to markup: every piece ends as a text node.
import { inline } from "./inline.js";
import { copyButton } from "./copy.js";
import { h } from "./dom.js";

const MAX_DEPTH = 6; // of quotes and lists in each other; what is deeper is text
const FENCE = /^ {0,3}(`{3,}|~{3,})\s*([^\s`]*)[^`]*$/;
const HEADING = /^ {0,3}(#{1,6})\s+(.*?)\s*#*$/;
const RULE = /^ {0,3}(?:(?:-\s*){3,}|(?:\*\s*){3,}|(?:_\s*){3,})$/;
const ITEM = /^( {0,6})([-*+]|\d{1,9}[.)])\s+(?=\S)/;
const QUOTE = /^ {0,3}> ?/;
const DASHES = /^\s*\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*$/;

/** Blocks of a text: {kind, source, …}. */
export function parse(text, depth = 0) {
  const lines = text.split("\n");
  const blocks = [];
  let at = 0;
  while (at < lines.length) {
    if (!lines[at].trim()) {
      at += 1;
      continue;
    }
    const [block, next] = blockAt(lines, at, depth);
    blocks.push({ ...block, source: lines.slice(at, next).join("\n") });
    at = next;
  }
  return blocks;
}

function blockAt(lines, at, depth) {
  const line = lines[at];
  const fence = FENCE.exec(line);
  if (fence) return fenced(lines, at, fence);
  const heading = HEADING.exec(line);
  if (heading) return [{ kind: "heading", level: heading[1].length, text: heading[2] }, at + 1];
  if (RULE.test(line)) return [{ kind: "rule" }, at + 1];
  if (depth < MAX_DEPTH && QUOTE.test(line)) return quoted(lines, at, depth);
  if (depth < MAX_DEPTH && ITEM.test(line)) return listed(lines, at, depth);
  if (line.includes("|") && at + 1 < lines.length && lines[at + 1].includes("-") && DASHES.test(lines[at + 1]))
    return table(lines, at);
  let end = at + 1;
  while (end < lines.length && lines[end].trim() && !begins(lines[end], depth)) end += 1;
  return [{ kind: "paragraph", text: lines.slice(at, end).join("\n") }, end];
}

const begins = (line, depth) =>
  FENCE.test(line) ||
  HEADING.test(line) ||
  RULE.test(line) ||
  (depth < MAX_DEPTH && (QUOTE.test(line) || ITEM.test(line)));

function fenced(lines, at, [, fence, language]) {
  let end = at + 1;
  const closes = (line) => line.trim().startsWith(fence) && /^[`~]+$/.test(line.trim());
  while (end < lines.length && !closes(lines[end])) end += 1;
  return [{ kind: "code", language, text: lines.slice(at + 1, end).join("\n") }, Math.min(end + 1, lines.length)];
}

function quoted(lines, at, depth) {
  let end = at;
  while (end < lines.length && QUOTE.test(lines[end])) end += 1;
  const inner = lines
    .slice(at, end)
    .map((line) => line.replace(QUOTE, ""))
    .join("\n");
  return [{ kind: "quote", blocks: parse(inner, depth + 1) }, end];
}

function listed(lines, at, depth) {
  const [, , mark] = ITEM.exec(lines[at]);
  const ordered = /\d/.test(mark);
  const items = [];
  let end = at;
  let indent = 0;
  let base = ITEM.exec(lines[at])[1].length;
  while (end < lines.length) {
    const line = lines[end];
    const item = ITEM.exec(line);
    if (item && item[1].length <= base + 1 && /\d/.test(item[2]) === ordered) {
      indent = item[0].length;
      base = item[1].length;
      items.push([line.slice(indent)]);
    } else if (!line.trim()) {
      const after = lines[end + 1] ?? "";
      if (!/^ {2,}\S/.test(after) && !(ITEM.test(after) && /\d/.test(ITEM.exec(after)[2]) === ordered)) break;
      items.at(-1).push("");
    } else if (/^ {2,}/.test(line)) {
      items.at(-1).push(line.slice(Math.min(indent, line.length - line.trimStart().length)));
    } else if (begins(line, depth) || !lines[end - 1].trim()) break;
    else items.at(-1).push(line);
    end += 1;
  }
  const start = ordered ? Number.parseInt(mark, 10) : null;
  return [{ kind: "list", start, items: items.map((item) => parse(item.join("\n"), depth + 1)) }, end];
}

function table(lines, at) {
  let end = at + 2;
  while (end < lines.length && lines[end].includes("|") && lines[end].trim()) end += 1;
  const rows = [lines[at], ...lines.slice(at + 2, end)].map(cells);
  return [{ kind: "table", head: rows[0], rows: rows.slice(1) }, end];
}

const cells = (line) =>
  line
    .trim()
    .replace(/^\||\|$/g, "")
    .split("|")
    .map((cell) => cell.trim());

function block(of) {
  switch (of.kind) {
    case "heading":
      return h(`h${Math.min(of.level + 2, 6)}`, {}, inline(of.text));
    case "rule":
      return h("hr");
    case "code":
      return code(of);
    case "quote":
      return h("blockquote", {}, of.blocks.map(block));
    case "list":
      return list(of);
    case "table":
      return h(
        "div",
        { class: "wide", tabindex: "0", role: "group", "aria-label": "Table" },
        h(
          "table",
          {},
          h(
            "thead",
            {},
            h(
              "tr",
              {},
              of.head.map((cell) => h("th", { scope: "col" }, inline(cell))),
            ),
          ),
          h(
            "tbody",
            {},
            of.rows.map((row) =>
              h(
                "tr",
                {},
                of.head.map((_, i) => h("td", {}, inline(row[i] ?? ""))),
              ),
            ),
          ),
        ),
      );
    default:
      return h("p", {}, inline(of.text));
  }
}

function list({ start, items }) {
  const entry = (blocks) =>
    h("li", {}, blocks.length === 1 && blocks[0].kind === "paragraph" ? inline(blocks[0].text) : blocks.map(tight));
  return start === null
    ? h("ul", {}, items.map(entry))
    : h("ol", { start: start === 1 ? null : start }, items.map(entry));
}

const tight = (of) => (of.kind === "paragraph" ? h("p", { class: "tight" }, inline(of.text)) : block(of));

function code({ language, text }) {
  return h(
    "figure",
    { class: "code" },
    h(
      "figcaption",
      {},
      h("span", {}, language || "text"),
      copyButton(() => text, "Copy code"),
    ),
    h(
      "pre",
      { tabindex: "0", role: "group", "aria-label": language ? `Code in ${language}` : "Code" },
      h("code", {}, text),
    ),
  );
}

/** Show `text` in `element`. Blocks that have not changed since the last call keep their nodes. */
export function renderInto(element, text) {
  const blocks = parse(text);
  const old = element.blocks ?? [];
  let same = 0;
  while (same < blocks.length && same < old.length && blocks[same].source === old[same] && element.children[same])
    same += 1;
  while (element.children.length > same) element.lastElementChild.remove();
  element.append(...blocks.slice(same).map(block));
  element.blocks = blocks.map((of) => of.source);
}
