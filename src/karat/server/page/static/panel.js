// The panel at the side: Why, Proof, Live and Settings as tabs. On a phone it covers the page.
import { h, iconButton } from "./dom.js";
import { makeLive } from "./live.js";
import { makeProof } from "./proof.js";
import { makeSettingsPanel } from "./settings_panel.js";
import { makeWhy } from "./why.js";

export function makePanel(app) {
  const panel = document.getElementById("panel");
  const { abilities } = app;
  const tabs = [
    ["why", "Why", makeWhy(app)],
    abilities.receipt && ["proof", "Proof", makeProof(app)],
    ["live", "Live", makeLive(app)],
    ["settings", "Settings", makeSettingsPanel(app)],
  ]
    .filter(Boolean)
    .map(([name, label, view]) => {
      const tab = h(
        "button",
        {
          type: "button",
          role: "tab",
          id: `tab-${name}`,
          "aria-controls": `tabpanel-${name}`,
          on: { click: () => open(name) },
        },
        label,
      );
      const body = h(
        "div",
        {
          role: "tabpanel",
          id: `tabpanel-${name}`,
          "aria-labelledby": tab.id,
          tabindex: "0",
          class: `body ${name}`,
          hidden: true,
        },
        view.element,
      );
      return { name, tab, body, view };
    });
  let openName = null;
  let cameFrom = null;

  panel.append(
    h(
      "div",
      { class: "tabs" },
      h(
        "div",
        { role: "tablist", "aria-label": "Details", on: { keydown: arrows } },
        tabs.map(({ tab }) => tab),
      ),
      iconButton("close", "Close the panel", close),
    ),
    ...tabs.map(({ body }) => body),
  );

  function open(name, focus = false) {
    if (!tabs.some((tab) => tab.name === name)) return;
    if (panel.hidden) cameFrom = document.activeElement;
    openName = name;
    panel.hidden = false;
    document.body.classList.add("with-panel");
    for (const { name: other, tab, body, view } of tabs) {
      tab.setAttribute("aria-selected", String(other === name));
      tab.tabIndex = other === name ? 0 : -1;
      body.hidden = other !== name;
      if (other === name) view.open?.();
      else view.close?.();
    }
    if (focus)
      (tabs.find((tab) => tab.name === name).view.first?.() ?? tabs.find((tab) => tab.name === name).tab).focus();
    app.emit("panel-changed", name);
  }

  function close() {
    if (panel.hidden) return false;
    const inside = panel.contains(document.activeElement);
    panel.hidden = true;
    openName = null;
    document.body.classList.remove("with-panel");
    for (const { view } of tabs) view.close?.();
    if (inside && cameFrom?.isConnected) cameFrom.focus();
    app.emit("panel-changed", null);
    return true;
  }

  function arrows(event) {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const at = tabs.findIndex(({ name }) => name === openName);
    const next = tabs[(at + step + tabs.length) % tabs.length];
    open(next.name);
    next.tab.focus();
  }

  app.on("panel", (name) => {
    if (name === null) close();
    else if (name === "why-focus") open("why", true);
    else if (name === "prompt") open("why");
    else open(name);
  });
  return { open, close, toggle: (name) => (openName === name ? close() : open(name, true)) };
}
