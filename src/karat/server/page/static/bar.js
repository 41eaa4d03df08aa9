// The bar above the messages: title, how full the context is, and what opens the panel.
import { h, iconButton, number } from "./dom.js";
import { menuButton } from "./menu.js";
import { exportMarkdown, exportOne } from "./transfer.js";

export function makeBar(app, open) {
  const bar = document.getElementById("bar");
  const title = h("input", {
    class: "title",
    "aria-label": "Title of the conversation",
    placeholder: "New conversation",
    maxlength: 120,
    on: {
      change: () => {
        app.conversation.record.title = title.value.trim();
        app.save();
      },
    },
  });
  const fill = h("span", { class: "fill" });
  const words = h("span", { class: "words" });
  const gauge = h(
    "div",
    {
      class: "gauge",
      role: "meter",
      "aria-label": "Context used",
      "aria-valuemin": 0,
      "aria-valuemax": app.abilities.maxLen,
    },
    h("span", { class: "track" }, fill),
    words,
  );
  const panels = [
    ["live", "Live"],
    ["settings", "Settings"],
  ].map(([name, label]) =>
    iconButton(name, label, () => open.panel(name), { "aria-pressed": "false", "data-panel": name }),
  );
  bar.append(
    iconButton("menu", "Conversations", open.side, { class: "only-narrow" }),
    title,
    gauge,
    menuButton("download", "Export this conversation", [
      ["As Markdown", () => exportMarkdown(app)],
      ["As JSON", () => exportOne(app)],
    ]),
    ...panels,
    iconButton("keys", "Shortcuts", open.shortcuts, { class: "only-wide" }),
  );

  function showGauge() {
    const last = app.conversation.path().findLast((node) => node.usage);
    const stream = app.stream;
    // Each answer has a context of its own.
    const growing = stream && Math.max(...stream.nodes.map((node) => stream.numTokensOf(node)));
    const used =
      (stream?.progress?.total ?? 0) + (growing ?? 0) || (last ? last.usage.prompt_tokens + (last.numTokens ?? 0) : 0);
    const share = Math.min(1, used / app.abilities.maxLen);
    fill.style.setProperty("--share", `${100 * share}%`);
    gauge.classList.toggle("full", share > 0.9);
    gauge.setAttribute("aria-valuenow", used);
    gauge.setAttribute("aria-valuetext", `${number(used)} of ${number(app.abilities.maxLen)} tokens`);
    gauge.title = `${number(used)} of ${number(app.abilities.maxLen)} tokens of context`;
    words.textContent = `${number(used)} / ${number(app.abilities.maxLen)}`;
  }

  app.on("shown grown busy", showGauge);
  app.on("shown list", () => {
    if (document.activeElement !== title) title.value = app.conversation.record.title;
    document.title = app.conversation.record.title ? `${app.conversation.record.title} · Karat` : "Karat";
  });
  app.on("panel-changed", (name) => {
    for (const panel of panels) panel.setAttribute("aria-pressed", String(panel.dataset.panel === name));
  });
  showGauge();
}
