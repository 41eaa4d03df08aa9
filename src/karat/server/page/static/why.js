// Why this token: what the model held likely at a place, what became of it, and what else could have stood there.
import { branch } from "./acts.js";
import { button, h, number, percent, shown } from "./dom.js";
import { makePrompt } from "./prompt.js";
import { bits, STEPS, stepOf } from "./surprise.js";
import { fitsBeside } from "./width.js";

const CUTS = {
  grammar: "cut by the form",
  min_tokens: "too early to end",
  allowed_token_ids: "not allowed",
  bad_words: "a bad word",
  no_repeat_ngram_size: "would repeat",
  top_n_sigma: "cut by top n sigma",
  typical_p: "cut by typical p",
  xtc: "cut by XTC",
  top_k: "cut by top k",
  top_p: "cut by top p",
  min_p: "cut by min p",
};

export function makeWhy(app) {
  const place = h("div");
  const prompt = makePrompt(app);
  const element = h("div", {}, place, prompt.element, legend());
  let shownKey = null;

  async function render() {
    const { picked, subject } = app;
    const node = picked?.node ?? subject;
    const details = node && (await app.detailsOf(node));
    const entry = picked && details?.explain?.[picked.index];
    const key = `${node?.id}/${picked?.index}/${details?.explain?.length}/${app.streams.size}`;
    if (key === shownKey) return;
    shownKey = key;
    if (entry) place.replaceChildren(...tokenView(node, picked.index, entry, details));
    else place.replaceChildren(...overview(node, details?.explain ?? []));
    prompt.show(node);
  }

  function overview(node, entries) {
    if (!node)
      return [h("p", { class: "note" }, "Ask something. Each word of the answer can then say why it was chosen.")];
    if (!entries.length) return [h("p", { class: "note" }, "Nothing was asked about the tokens of this answer.")];
    const mean = entries.reduce((sum, entry) => sum + Math.min(bits(entry.probability), 40), 0) / entries.length;
    const rarest = entries
      .map((entry, index) => ({ entry, index }))
      .sort((a, b) => a.entry.probability - b.entry.probability)
      .slice(0, 8);
    return [
      h("h2", {}, "This answer"),
      h(
        "p",
        {},
        `${number(entries.length)} tokens, ${mean.toFixed(2)} bits of surprise each: ` +
          `as if the model had hesitated between ${(2 ** mean).toFixed(1)} words each time.`,
      ),
      h("h3", {}, "Most surprising"),
      h(
        "ul",
        { class: "alternatives" },
        rarest.map(({ entry, index }) =>
          h(
            "li",
            {},
            button(
              [
                h("span", { class: "word" }, shown(entry.text)),
                bar(entry.probability),
                h("span", { class: "share" }, percent(entry.probability)),
              ],
              () => app.about(node, index),
              {
                class: `alternative s${stepOf(entry.probability)}`,
                "aria-label": `${entry.text}, ${percent(entry.probability)}: show why`,
              },
            ),
          ),
        ),
      ),
    ];
  }

  function tokenView(node, index, entry, details) {
    const step = stepOf(entry.probability);
    const greedy = entry.draw === null;
    return [
      h(
        "div",
        { class: "chosen-token" },
        h("span", { class: `word s${step}` }, shown(entry.text)),
        h("span", { class: "note" }, `token ${entry.token} · position ${number(entry.position)}`),
      ),
      h("p", { class: "sentence" }, ...sentence(entry, step, greedy)),
      ...funnel(entry),
      h("h3", {}, "What else could stand here"),
      h(
        "p",
        { class: "note" },
        app.abilities.resume && !node.edited ? "Take one, and the answer goes on from it." : "",
      ),
      h(
        "ul",
        { class: "alternatives" },
        entry.alternatives.map((other) => h("li", {}, alternative(node, index, entry, other))),
      ),
      h(
        "div",
        { class: "row" },
        button("Before", () => app.about(node, index - 1), { class: "small", disabled: index === 0 }),
        button("After", () => app.about(node, index + 1), {
          class: "small",
          disabled: index >= details.explain.length - 1,
        }),
        button("Whole answer", () => app.about(node), { class: "small" }),
      ),
    ];
  }

  function alternative(node, index, entry, other) {
    const chosen = other.token === entry.token;
    const state = chosen
      ? entry.picked
        ? "taken by you"
        : entry.draw === null
          ? "chosen"
          : `chosen, drawn with ${percent(other.drawn)}`
      : other.cut_by
        ? CUTS[other.cut_by]
        : entry.temperature > 0
          ? `drawn with ${percent(other.drawn)}`
          : "";
    const penalty =
      other.dry === other.penalty && other.dry
        ? `DRY −${Math.abs(other.dry).toFixed(2)}`
        : other.penalty
          ? `penalty ${other.penalty > 0 ? "+" : "−"}${Math.abs(other.penalty).toFixed(2)}`
          : "";
    const parts = [
      h("span", { class: "word" }, shown(other.text)),
      bar(other.probability),
      h("span", { class: "share" }, percent(other.probability)),
      h("span", { class: "state" }, [state, penalty].filter(Boolean).join(", ")),
    ];
    const idle = !app.stream && app.abilities.resume && !node.edited;
    if (chosen) return h("div", { class: "alternative chosen" }, parts);
    const take = () => {
      if (!fitsBeside()) app.emit("panel", null);
      branch(app, node, index, other).catch((error) => app.emit("notice", error.message));
    };
    return button(parts, take, {
      class: `alternative ${other.cut_by ? "cut" : ""}`,
      disabled: !idle,
      "aria-label": `${shown(other.text)}, ${percent(other.probability)}, ${state}: branch from it`,
    });
  }

  app.on("picked busy", render);
  app.on("grown", (nodes) => {
    if (nodes.includes(app.subject) && !app.picked && !element.closest("[hidden]")) render();
  });
  return { element, open: render, first: () => place.querySelector("button:not([disabled])") };
}

function sentence(entry, step, greedy) {
  const model = `The model gave it ${percent(entry.probability)}: ${STEPS[step][1]}, rank ${number(entry.rank)}.`;
  if (entry.picked) return [model, " You took it."];
  if (greedy) return [model, " At temperature 0 the best score wins; nothing was drawn."];
  return [
    model,
    ` After all settings it was drawn with ${percent(entry.drawn)}, by the number ${entry.draw.toFixed(4)}.`,
  ];
}

/** What each step of the settings left of the candidates. */
function funnel({ kept = {}, temperature, draw }) {
  const rows = [
    ["grammar", "Form of the answer"],
    ["top_n_sigma", "Top n sigma"],
    ["top_k", "Top k"],
    ["typical_p", "Typical p"],
    ["top_p", "Top p"],
    ["min_p", "Min p"],
    ["xtc", "XTC"],
  ]
    .filter(([name]) => kept[name] !== null && kept[name] !== undefined)
    .map(([name, label]) => [label, `${number(kept[name])} ${kept[name] === 1 ? "token" : "tokens"} left`]);
  if (draw !== null) rows.unshift(["Temperature", String(Number(temperature.toFixed(3)))]);
  return rows.length > 0
    ? [
        h(
          "dl",
          { class: "facts-list" },
          rows.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))),
        ),
      ]
    : [];
}

function bar(share) {
  return h(
    "span",
    { class: "bar", "aria-hidden": "true" },
    h("span", { style: { "--share": `${Math.max(share * 100, 0.5)}%` } }),
  );
}

function legend() {
  return h(
    "section",
    { class: "legend" },
    h("h3", {}, "Colours"),
    h(
      "ul",
      {},
      STEPS.map(([, name, range], i) =>
        h(
          "li",
          {},
          h("span", { class: `token` }, h("span", { class: `s${i}` }, name)),
          h("span", { class: "note" }, range),
        ),
      ),
    ),
    h("p", { class: "note" }, "Underlined with dots: the form of the answer left no choice. Framed: taken by you."),
  );
}
