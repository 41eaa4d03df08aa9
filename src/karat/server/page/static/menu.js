// A button that opens a short list of things to do.
import { button, h, iconButton } from "./dom.js";

export function menuButton(sign, label, entries) {
  const list = h(
    "div",
    { class: "list", role: "menu", "aria-label": label, hidden: true },
    entries.map(([name, act]) =>
      button(
        name,
        () => {
          close();
          act();
        },
        { role: "menuitem" },
      ),
    ),
  );
  const opener = iconButton(sign, label, () => (list.hidden ? open() : close()), {
    "aria-haspopup": "menu",
    "aria-expanded": "false",
  });
  const element = h("div", { class: "menu" }, opener, list);

  function open() {
    list.hidden = false;
    opener.setAttribute("aria-expanded", "true");
    list.firstElementChild.focus();
  }

  function close() {
    if (list.contains(document.activeElement)) opener.focus();
    list.hidden = true;
    opener.setAttribute("aria-expanded", "false");
  }

  element.addEventListener("keydown", (event) => {
    const at = [...list.children].indexOf(document.activeElement);
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (event.key === "Escape" && !list.hidden) {
      event.stopPropagation();
      close();
    }
    if (step && at >= 0) {
      event.preventDefault();
      list.children[(at + step + list.children.length) % list.children.length].focus();
    }
  });
  element.addEventListener("focusout", (event) => {
    if (!element.contains(event.relatedTarget)) {
      list.hidden = true;
      opener.setAttribute("aria-expanded", "false");
    }
  });
  return element;
}
