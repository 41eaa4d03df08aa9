// Keys that do things, and the list of them. Keys of one sign work outside of text fields, unless they are turned off.
import { retry, turn } from "./acts.js";
import { button, h } from "./dom.js";
import { preferences } from "./settings.js";

const WRITING = "input:not([type=checkbox]), textarea, select"; // what keys of one sign write into
const LIST = [
  ["Enter", "Send the message"],
  ["Shift Enter", "A new line"],
  ["Escape", "Stop the answer; close what is open; leave the text box, so that keys work"],
  ["/", "Write a message"],
  ["n", "New conversation"],
  ["s", "Search conversations"],
  ["e", "Edit your last message"],
  ["r", "Another answer"],
  ["[  ]", "The branch before, after"],
  ["w", "Why: the last answer as tokens"],
  ["← → ↑ ↓", "From token to token"],
  ["Enter", "On a token: to its alternatives"],
  ["p", "Proof of the last answer"],
  ["l", "Live: what the server does"],
  [",", "Settings"],
  ["?", "This list"],
];

export function listenToKeys(app, { thread, panel, side, composer }) {
  const lastAnswer = () => app.conversation.path().findLast((node) => node.role === "assistant");
  const branching = () => app.conversation.path().findLast((node) => app.conversation.siblings(node).length > 1);
  const acts = {
    "/": () => composer.field.focus(),
    n: () => {
      app.fresh();
      composer.field.focus();
    },
    s: () => side.focusSearch(),
    e: () => thread.lastView("user")?.startEditing(),
    r: () => retry(app),
    "[": () => {
      const node = branching();
      if (node) turn(app, node, -1);
    },
    "]": () => {
      const node = branching();
      if (node) turn(app, node, 1);
    },
    w: () => why(),
    p: () => {
      if (lastAnswer()) app.about(lastAnswer());
      panel.toggle("proof");
    },
    l: () => panel.toggle("live"),
    ",": () => panel.toggle("settings"),
    "?": showShortcuts,
  };

  async function why() {
    const view = lastAnswer() && thread.viewOf(lastAnswer());
    if (!view || !app.abilities.explain) return;
    await view.unfold();
    view.tokens()?.go(app.picked?.node === view.node ? app.picked.index : 0, false);
  }

  addEventListener("keydown", (event) => {
    if (document.querySelector("dialog[open]")) return;
    if (event.key === "Escape") {
      escape();
      return;
    }
    const writing = event.target.closest?.(WRITING);
    if (writing || event.ctrlKey || event.metaKey || event.altKey || !preferences.keys) return;
    const act = acts[event.key];
    if (!act) return;
    event.preventDefault();
    act();
  });

  function escape() {
    if (app.stream) app.stream.stop();
    else if (side.isOpen()) side.close();
    else if (panel.close()) return;
    else if (document.activeElement.matches(WRITING)) document.activeElement.blur();
    else composer.field.focus();
  }
}

export function showShortcuts() {
  const dialog = h(
    "dialog",
    { class: "dialog shortcuts", "aria-labelledby": "keys-title" },
    h("h2", { id: "keys-title" }, "Shortcuts"),
    h(
      "dl",
      {},
      LIST.map(([keys, what]) =>
        h(
          "div",
          {},
          h(
            "dt",
            {},
            keys
              .split(" ")
              .filter(Boolean)
              .map((key) => h("kbd", {}, key)),
          ),
          h("dd", {}, what),
        ),
      ),
    ),
    h(
      "div",
      { class: "row end" },
      button("Close", () => dialog.close(), { class: "primary" }),
    ),
  );
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
}
