// What a person must know: that something went wrong, or that conversations are not kept.
import { button, h } from "./dom.js";
import { exportAll } from "./transfer.js";

export function makeNotices(app) {
  const place = document.getElementById("notices");
  const said = document.getElementById("said");
  let storage = null;

  function note(text, ...acts) {
    const made = h(
      "div",
      { class: "notice" },
      h("p", {}, text),
      acts,
      button("Close", () => made.remove(), { class: "small" }),
    );
    place.append(made);
    return made;
  }

  app.on("notice", (text) => note(text));
  app.on("said", (text) => {
    said.textContent = text;
  });
  return {
    /** What keeps the browser from keeping conversations; null once it does. */
    storage(problem) {
      if (problem === null) {
        storage?.remove();
        storage = null;
        return;
      }
      if (storage?.isConnected) return;
      storage = note(
        `${problem} Conversations are kept in this tab alone, until it is closed. ` +
          "Export what you need; deleting others makes room.",
        button("Export all", () => exportAll(app), { class: "small" }),
      );
    },
  };
}
