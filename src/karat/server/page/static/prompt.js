// The prompt as the model saw it; what was found in the cache is coloured, the rest was computed.
import { button, h, number } from "./dom.js";

export function makePrompt(app) {
  const body = h("div");
  const element = h("section", { class: "prompt" }, body);
  let shownId = null;

  function show(node) {
    const usage = node?.usage;
    if (!usage) {
      body.replaceChildren();
      shownId = null;
      return;
    }
    if (shownId === node.id) return;
    shownId = node.id;
    const cached = usage.prompt_tokens_details.cached_tokens;
    const text = h("div");
    body.replaceChildren(
      h("h3", {}, "The prompt"),
      h(
        "p",
        {},
        `${number(cached)} of ${number(usage.prompt_tokens)} tokens were in the cache; ` +
          `${number(usage.prompt_tokens - cached)} were computed.`,
      ),
      h(
        "div",
        { class: "parts", "aria-hidden": "true" },
        h("span", { style: { "--share": `${(100 * cached) / usage.prompt_tokens}%` } }),
      ),
      text,
      button(
        "Show it as the model saw it",
        async (event) => {
          const shown = event.currentTarget;
          shown.disabled = true;
          try {
            text.replaceChildren(await coloured(node, cached));
            shown.remove();
          } catch (error) {
            shown.disabled = false;
            text.replaceChildren(h("p", { class: "bad" }, error.message));
          }
        },
        { class: "small" },
      ),
    );
  }

  async function coloured(node, cached) {
    const { promptTokens } = await app.detailsOf(node);
    if (!promptTokens) return h("p", { class: "note" }, "The tokens of this prompt were not kept.");
    const text = async (part) =>
      part.length ? (await app.api.json("/detokenize", { tokens: part, skip_special_tokens: false })).prompt : "";
    const [found, computed] = await Promise.all([
      text(promptTokens.slice(0, cached)),
      text(promptTokens.slice(cached)),
    ]);
    return h(
      "pre",
      { class: "whole-prompt", tabindex: "0", role: "group", "aria-label": "The prompt" },
      found && h("mark", { class: "cached" }, h("span", { class: "hidden" }, "From the cache: "), found),
      computed && h("span", { class: "computed" }, h("span", { class: "hidden" }, "Computed: "), computed),
    );
  }

  return { element, show };
}
