// Yes or no.
import { button, h } from "./dom.js";

export function confirm(question, note, yes) {
  return new Promise((resolve) => {
    const dialog = h(
      "dialog",
      { class: "dialog", "aria-labelledby": "confirm-title" },
      h("h2", { id: "confirm-title" }, question),
      h("p", { class: "note" }, note),
      h(
        "div",
        { class: "row end" },
        button("Leave it", () => dialog.close("")),
        button(yes, () => dialog.close("yes"), { class: "primary" }),
      ),
    );
    dialog.addEventListener("close", () => {
      dialog.remove();
      resolve(dialog.returnValue === "yes");
    });
    document.body.append(dialog);
    dialog.showModal();
  });
}
