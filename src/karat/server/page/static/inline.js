// The inline part of Markdown: emphasis, code, links. Links lead to web and mail addresses alone. Pictures become
// links.
import { h } from "./dom.js";

const MAX_DEPTH = 6;
const SPECIAL = /[`*_~[\]!\\<]|https?:\/\//g;
const ADDRESS = /^https?:\/\/[^\s<>"'`]*[^\s<>"'`.,;:!?)\]*_]/;
const LABEL = /\[((?:[^[\]\\]|\\.|\[[^[\]]*\])*)\]/;
const TARGET = /\(\s*<?([^\s<>()]*(?:\([^\s<>()]*\)[^\s<>()]*)*)>?(?:\s+["'(][^"')]*["')])?\s*\)/;
const LINK = new RegExp(`^!?${LABEL.source}${TARGET.source}`);
const SAFE = /^(?:https?:\/\/|mailto:)/i;
const TAGS = {
  "***": ["strong", "em"],
  ___: ["strong", "em"],
  "**": ["strong"],
  __: ["strong"],
  "*": ["em"],
  _: ["em"],
  "~~": ["s"],
};

/** Nodes of a text. */
export function inline(text, depth = 0) {
  const nodes = [];
  const none = new Set(); // delimiters that have no end in the rest
  let plain = "";
  let at = 0;
  const flush = () => {
    if (plain) nodes.push(...broken(plain));
    plain = "";
  };
  while (at < text.length) {
    SPECIAL.lastIndex = at;
    const found = SPECIAL.exec(text);
    if (!found) break;
    plain += text.slice(at, found.index);
    at = found.index;
    const piece = depth < MAX_DEPTH ? pieceAt(text, at, depth, none) : null;
    if (piece) {
      if (piece.text === undefined) {
        flush();
        nodes.push(piece.node);
      } else plain += piece.text;
      at = piece.end;
    } else {
      plain += found[0];
      at += found[0].length;
    }
  }
  plain += text.slice(at);
  flush();
  return nodes;
}

function pieceAt(text, at, depth, none) {
  const sign = text[at];
  if (sign === "\\") return /[!-/:-@[-`{-~]/.test(text[at + 1] ?? "") ? { text: text[at + 1], end: at + 2 } : null;
  if (sign === "`") return code(text, at, none);
  if (sign === "h") return address(text, at);
  if (sign === "<") {
    const inner = ADDRESS.exec(text.slice(at + 1, at + 2000));
    return inner && text[at + 1 + inner[0].length] === ">"
      ? { node: link(inner[0], [inner[0]]), end: at + inner[0].length + 2 }
      : null;
  }
  if (sign === "[" || (sign === "!" && text[at + 1] === "[")) {
    const found = LINK.exec(text.slice(at, at + 4000));
    return found
      ? {
          node: SAFE.test(found[2]) ? link(found[2], inline(found[1], depth + 1)) : h("span", {}, found[0]),
          end: at + found[0].length,
        }
      : null;
  }
  return emphasis(text, at, depth, none);
}

function code(text, at, none) {
  const [ticks] = /^`+/.exec(text.slice(at));
  const end = none.has(ticks) ? -1 : text.indexOf(ticks, at + ticks.length);
  if (end < 0) {
    none.add(ticks);
    return { text: ticks, end: at + ticks.length };
  }
  const inner = text.slice(at + ticks.length, end);
  return { node: h("code", {}, /^ .*[^ ].* $/s.test(inner) ? inner.slice(1, -1) : inner), end: end + ticks.length };
}

function emphasis(text, at, depth, none) {
  const [run] = /^(?:\*+|_+|~+|.)/s.exec(text.slice(at, at + 200));
  const open = run in TAGS ? run : run.slice(0, 3) in TAGS ? run.slice(0, 3) : null;
  const skipped = { text: run, end: at + run.length };
  if (!open || run.length > 3 || none.has(open) || /\s/.test(text[at + open.length] ?? " ")) return skipped;
  if (open[0] === "_" && /\w/.test(text[at - 1] ?? "")) return skipped;
  for (let end = text.indexOf(open, at + open.length + 1); end >= 0; end = text.indexOf(open, end + 1)) {
    const after = text[end + open.length] ?? " ";
    if (
      /\s/.test(text[end - 1]) ||
      after === open[0] ||
      text[end - 1] === open[0] ||
      (open[0] === "_" && /\w/.test(after))
    )
      continue;
    const inner = inline(text.slice(at + open.length, end), depth + 1);
    return { node: TAGS[open].reduceRight((nodes, tag) => [h(tag, {}, nodes)], inner)[0], end: end + open.length };
  }
  none.add(open);
  return skipped;
}

function address(text, at) {
  const found = ADDRESS.exec(text.slice(at, at + 2000));
  return found ? { node: link(found[0], [found[0]]), end: at + found[0].length } : null;
}

function link(to, nodes) {
  return h("a", { href: to, target: "_blank", rel: "noopener noreferrer nofollow" }, nodes);
}

/** Text with its line ends as breaks. */
function broken(text) {
  return text.split("\n").flatMap((line, i) => (i ? [h("br"), line.trimStart()] : [line]));
}
