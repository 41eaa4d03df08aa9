// An answer as its tokens, coloured by surprise. One of them is in the order of Tab; arrow keys lead to the others.
import { h, percent, shown } from "./dom.js";
import { hideCard, showCard } from "./card.js";
import { STEPS, stepOf } from "./surprise.js";

export function makeTokens(app, node) {
  const element = h("div", {
    class: "tokens",
    role: "group",
    "aria-label": "The tokens of the answer. Arrow keys go from one to the next.",
  });
  const spans = [];
  let current = 0;

  const entries = () => app.details.get(node.id)?.explain ?? [];
  const indexOf = (target) => spans.indexOf(target.closest?.(".token"));

  function update() {
    const found = entries();
    for (let i = spans.length; i < found.length; i += 1) {
      spans.push(tokenOf(found[i], i === current));
      element.append(spans[i]);
    }
    if (found.length === 0)
      element.replaceChildren(
        h(
          "p",
          { class: "note" },
          app.stream ? "…" : "Nothing was asked about the tokens of this answer. ",
          !app.stream && "Ask for another one with “Ask why for each token” turned on.",
        ),
      );
  }

  function go(index, pick = true) {
    if (!spans[index]) return;
    spans[current].tabIndex = -1;
    current = index;
    spans[current].tabIndex = 0;
    spans[current].focus();
    if (pick) app.about(node, index);
  }

  function mark() {
    const picked = app.picked?.node === node ? app.picked.index : -1;
    element.querySelector("[aria-current]")?.removeAttribute("aria-current");
    spans[picked]?.setAttribute("aria-current", "true");
  }

  element.addEventListener("click", (event) => {
    const index = indexOf(event.target);
    if (index < 0) return;
    go(index);
    app.emit("panel", "why");
  });
  element.addEventListener("focusin", (event) => {
    const index = indexOf(event.target);
    if (index < 0) return;
    if (index !== app.picked?.index) app.about(node, index);
    if (spans[index].matches(":focus-visible") && document.getElementById("panel").hidden)
      showCard(spans[index], entries()[index]);
  });
  element.addEventListener("focusout", hideCard);
  element.addEventListener("pointerover", (event) => {
    const index = indexOf(event.target);
    if (index >= 0 && event.pointerType === "mouse") showCard(spans[index], entries()[index]);
  });
  element.addEventListener("pointerleave", hideCard);
  element.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: 10, ArrowUp: -10, Home: -Infinity, End: Infinity }[
      event.key
    ];
    if (step === undefined) {
      if (event.key === "Enter" || event.key === " ") {
        event.preventDefault();
        app.emit("panel", "why-focus");
      }
      return;
    }
    event.preventDefault();
    go(Math.max(0, Math.min(spans.length - 1, current + step)));
  });
  update();
  return { element, update, mark, go };
}

function tokenOf(entry, first) {
  const step = stepOf(entry.probability);
  const forced = entry.kept?.grammar === 1;
  const text = entry.text.trim() ? entry.text : shown(entry.text);
  const name = `${text}, ${percent(entry.probability)}, ${STEPS[step][1]}${entry.picked ? ", taken by you" : ""}`;
  const [, space, rest] = /^(\s*)([^]*)$/.exec(entry.text);
  return h(
    "span",
    {
      class: `token${forced ? " forced" : ""}${entry.picked ? " taken" : ""}`,
      role: "button",
      tabindex: first ? "0" : "-1",
      "aria-label": name,
    },
    space.includes("\n") && h("span", { class: "newline", "aria-hidden": "true" }, "↵"),
    rest && space,
    h("span", { class: `s${step}` }, rest || space),
  );
}
