// Proof: the receipt of an answer, computing it again, and where another draw would have left it.
import { bodyOf } from "./answering.js";
import { compared, parted } from "./compare.js";
import { button, h, number } from "./dom.js";
import { save } from "./transfer.js";

export function makeProof(app) {
  const element = h("div");
  let shown = null;
  let busy = false;

  async function render() {
    if (element.closest("[hidden]")) return;
    const node = app.subject;
    const key = `${node?.id}/${app.stream?.nodes.includes(node)}`;
    if (key === shown) return;
    shown = key;
    if (!node || node.edited) {
      element.replaceChildren(
        h("p", { class: "note" }, "Ask something. Every answer can then be computed again, to the last bit."),
      );
      return;
    }
    if (app.stream?.nodes.includes(node)) {
      element.replaceChildren(h("p", { class: "note" }, "The answer is not at its end yet."));
      return;
    }
    const { receipt, tokens = [] } = await app.detailsOf(node);
    if (key !== shown) return;
    element.replaceChildren(
      ...(receipt
        ? proofOf(receipt, tokens)
        : [
            h("h2", {}, "Receipt"),
            h(
              "p",
              { class: "note" },
              node.resumed
                ? "A branch from a token has no receipt: a receipt is of an answer that was drawn whole."
                : "This answer has no receipt: it was stopped, or receipts were turned off.",
            ),
          ]),
      ...comparing(node, tokens),
      ...otherNumbers(receipt),
    );
  }

  function proofOf(receipt, tokens) {
    const said = h("div", { class: "verdict", role: "status" });
    const replay = () =>
      run(said, "Computing it again…", async () => verdictOf(await app.api.json("/v1/receipts/verify", { receipt })));
    return [
      h("h2", {}, "Receipt"),
      h(
        "p",
        {},
        "It holds the request with all settings, the fingerprint of the weights, and the tokens. " +
          "Anyone with the model can compute the answer again.",
      ),
      h(
        "dl",
        { class: "facts-list" },
        factsOf(receipt, tokens).map(([name, value]) =>
          h("div", {}, h("dt", {}, name), h("dd", {}, h("code", {}, value))),
        ),
      ),
      h(
        "div",
        { class: "row" },
        button("Replay", replay, { class: "primary" }),
        button("Save the receipt", () => save("receipt.json", JSON.stringify(receipt), "application/json")),
      ),
      said,
    ];
  }

  function comparing(node, tokens) {
    const said = h("div", { class: "verdict", role: "status" });
    const seed = h("input", {
      type: "number",
      id: "compare-seed",
      min: 0,
      step: 1,
      value: String(((node.seed ?? 0) + 1) % Number.MAX_SAFE_INTEGER),
    });
    return [
      h("h2", {}, "Compare"),
      h("p", {}, "The same request with another seed, and the first token that differs."),
      h(
        "div",
        { class: "row" },
        h("label", { for: seed.id }, "Seed"),
        seed,
        button(
          "Compare",
          () => run(said, "Answering with the other seed…", () => compareWith(node, tokens, Number(seed.value))),
          { class: "primary" },
        ),
      ),
      said,
    ];
  }

  /** The same tokens, chosen again with activations of another width: the receipt has all that this takes. */
  function otherNumbers(receipt) {
    const others = receipt ? app.abilities.comparable.filter((name) => name !== receipt.fingerprint.activations) : [];
    if (others.length === 0) return [];
    const said = h("div", { class: "verdict", role: "status" });
    const choice = h(
      "select",
      { id: "compare-activations" },
      others.map((name) => h("option", { value: name }, name)),
    );
    const compare = () =>
      run(said, `Choosing its tokens again with ${choice.value}…`, async () =>
        parted(await app.api.json("/v1/receipts/compare", { receipt, activations: choice.value })),
      );
    return [
      h("h2", {}, "Compare activations"),
      h(
        "p",
        {},
        `This answer was computed with ${receipt.fingerprint.activations}. ` +
          "The same weights and seed with other numbers, and the first token that they choose otherwise.",
      ),
      h(
        "div",
        { class: "row" },
        h("label", { for: choice.id }, "Activations"),
        choice,
        button("Compare activations", compare, { class: "primary" }),
      ),
      said,
    ];
  }

  async function compareWith(node, tokens, seed) {
    const { conversation } = app;
    const parent = conversation.nodes.get(node.parent);
    const asked = {
      ...bodyOf(
        app,
        { ...conversation, settings: node.settings ?? conversation.settings, pathTo: (at) => conversation.pathTo(at) },
        parent,
      ),
      n: 1,
      seed,
      return_token_ids: true,
      max_completion_tokens: Math.max(tokens.length, 1),
    };
    delete asked.karat;
    const other = await app.api.json("/v1/chat/completions", asked);
    const [choice] = other.choices;
    const here = await app.detailsOf(node);
    return compared(
      { tokens, explain: here.explain ?? [], seed: node.seed },
      { tokens: choice.token_ids, explain: choice.karat?.explain ?? [], seed },
    );
  }

  async function run(said, words, work) {
    if (busy) return;
    busy = true;
    said.className = "verdict";
    said.replaceChildren(h("p", { class: "note" }, words));
    try {
      said.replaceChildren(...[await work()].flat());
    } catch (error) {
      said.classList.add("bad");
      said.replaceChildren(h("p", {}, error.message));
    } finally {
      busy = false;
    }
  }

  app.on("picked busy", render);
  return { element, open: render, first: () => element.querySelector("button") };
}

function verdictOf(verdict) {
  const confirmed = ["identical", "agrees"].includes(verdict.verdict);
  return h("p", { class: confirmed ? "good" : "bad" }, confirmed ? "✓ " : "✗ ", verdict.text);
}

function factsOf(receipt, tokens) {
  const { weights, numeric_contract, executor, dtype, activations } = receipt.fingerprint ?? {};
  const facts = [
    ["Weights", weights],
    ["Numeric contract", numeric_contract],
    ["Executor", executor],
    ["Numbers", dtype],
    ["Activations", activations],
    ["Seed", receipt.seed],
    ["Tokens", number(tokens.length)],
    ["SHA-256 of the receipt", receipt.sha256],
  ];
  return facts
    .filter(([, value]) => value !== undefined && value !== null)
    .map(([name, value]) => [name, shorten(String(value))]);
}

const shorten = (text) => (text.length > 28 ? `${text.slice(0, 12)}…${text.slice(-8)}` : text);
