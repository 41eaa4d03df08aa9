// Two answers to one request: the first token that differs, and by how much each run preferred its own.
import { h, number, percent, shown } from "./dom.js";

/** Each run: {tokens, explain, seed}. Nodes that say where they part. */
export function compared(here, there) {
  const num = Math.min(here.tokens.length, there.tokens.length);
  let index = 0;
  while (index < num && here.tokens[index] === there.tokens[index]) index += 1;
  if (index === num && here.tokens.length === there.tokens.length)
    return h("p", { class: "good" }, `✓ identical, ${number(num)} tokens`);
  const a = here.explain[index];
  const b = there.explain[index];
  const lines = [
    h(
      "p",
      {},
      index === 0
        ? "They differ from the first token on."
        : `The same up to token ${number(index)}. They part at token ${number(index + 1)}:`,
    ),
  ];
  if (index > 0 && here.explain.length)
    lines.push(
      h(
        "p",
        { class: "context" },
        "…",
        here.explain
          .slice(Math.max(0, index - 12), index)
          .map((entry) => entry.text)
          .join(""),
      ),
    );
  if (a && b) lines.push(h("dl", { class: "facts-list two" }, side(here, a, b), side(there, b, a)));
  else
    lines.push(
      h(
        "p",
        {},
        index >= num ? "One of them ends there." : `token ${here.tokens[index]} and token ${there.tokens[index]}`,
      ),
    );
  return lines;
}

function side({ seed }, own, other) {
  const text = [
    `${percent(own.probability)}`,
    own.draw === null ? "the best score" : `drawn by ${own.draw.toFixed(4)}`,
    marginOf(own, other),
  ].join(" · ");
  return h("div", {}, h("dt", {}, h("span", { class: "word" }, shown(own.text)), ` seed ${seed}`), h("dd", {}, text));
}

/** Where an answer goes on otherwise with other activations, as /v1/receipts/compare says it. */
export function parted({ activations, other, tokens, seconds, parting }) {
  if (!parting)
    return h("p", { class: "good" }, `✓ the same ${number(tokens)} tokens with ${other}, ${seconds.toFixed(1)} s`);
  const { index, receipt_text, other_text, margin, other_margin } = parting;
  const side = (text, name, by) =>
    h(
      "div",
      {},
      h("dt", {}, h("span", { class: "word" }, shown(text)), ` ${name}`),
      h("dd", {}, `margin ${signed(by)}`),
    );
  return [
    h(
      "p",
      {},
      index === 0
        ? "They differ from the first token on."
        : `The same up to token ${number(index)} of ${number(tokens)}. They part at token ${number(index + 1)}:`,
    ),
    h(
      "dl",
      { class: "facts-list two" },
      side(receipt_text, activations, margin),
      side(other_text, other, other_margin),
    ),
  ];
}

/** By how much the logit of its own token is above that of the other's. Where they part, both saw the same tokens. */
export function marginOf(own, other) {
  const rival = own.alternatives.find(({ token }) => token === other.token) ?? other;
  return `margin ${signed(Math.log(own.probability / rival.probability))}`;
}

const signed = (value) => `${value < 0 ? "−" : "+"}${Math.abs(value).toFixed(3)}`;
