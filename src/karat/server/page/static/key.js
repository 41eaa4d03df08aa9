// The key of a server that wants one: asked for once, kept for this tab alone.
import { h } from "./dom.js";

/** Ask for the key in a dialog; `wrong` says that the last one was refused. */
export function askKey(wrong) {
  return new Promise((resolve) => {
    const input = h("input", {
      type: "password",
      id: "key",
      autocomplete: "off",
      required: true,
      "aria-describedby": "key-note",
      "aria-invalid": wrong,
    });
    const dialog = h(
      "dialog",
      { class: "dialog", "aria-labelledby": "key-title" },
      h(
        "form",
        {
          on: {
            submit: (event) => {
              event.preventDefault();
              if (input.value) dialog.close(input.value.trim());
            },
          },
        },
        h("h2", { id: "key-title" }, "This server wants a key"),
        wrong && h("p", { class: "bad", role: "alert" }, "That key was refused. Try another."),
        h("label", { for: "key" }, "API key"),
        input,
        h(
          "p",
          { id: "key-note", class: "note" },
          "It is kept in this tab until you close it, and sent to this server alone.",
        ),
        h("div", { class: "row end" }, h("button", { class: "primary", type: "submit" }, "Go on")),
      ),
    );
    dialog.addEventListener("cancel", (event) => event.preventDefault());
    dialog.addEventListener("close", () => {
      dialog.remove();
      resolve(dialog.returnValue);
    });
    document.body.append(dialog);
    dialog.showModal();
    input.focus();
  });
}
