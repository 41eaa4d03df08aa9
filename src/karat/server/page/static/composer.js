// The field in which messages are written.
import { send } from "./acts.js";
import { h, icon } from "./dom.js";

export function makeComposer(app, open) {
  const place = document.getElementById("composer");
  const field = h("textarea", {
    id: "message",
    rows: 1,
    placeholder: "Ask anything",
    "aria-label": "Message",
    on: { input: fit, keydown: onKey },
  });
  const act = h("button", { type: "submit", class: "send" });
  const settings = h("button", { type: "button", class: "summary", on: { click: () => open.panel("settings") } });
  place.append(
    h(
      "form",
      {
        on: {
          submit: (event) => {
            event.preventDefault();
            if (app.stream) app.stream.stop();
            else go();
          },
        },
      },
      field,
      h("div", { class: "under" }, settings, act),
    ),
  );

  function fit() {
    field.style.setProperty("height", "auto");
    field.style.setProperty("height", `${Math.min(field.scrollHeight, innerHeight * 0.4)}px`);
    act.disabled = !app.stream && !field.value.trim();
  }

  function onKey(event) {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    if (!app.stream) go();
  }

  function go() {
    const text = field.value.trim();
    if (!text) return;
    field.value = "";
    fit();
    send(app, text);
  }

  function render() {
    const busy = Boolean(app.stream);
    act.setAttribute("aria-label", busy ? "Stop" : "Send");
    act.title = busy ? "Stop (Escape)" : "Send (Enter)";
    act.classList.toggle("busy", busy);
    act.replaceChildren(icon(busy ? "stop" : "send"));
    fit();
  }

  function summarise() {
    const { sampling, n, form, system, tools } = app.conversation.settings;
    const parts = [app.abilities.model];
    const temperature = sampling.temperature ?? app.abilities.defaults.temperature;
    if (temperature !== undefined) parts.push(`temperature ${Number(temperature.toFixed(2))}`);
    if (n > 1) parts.push(`${n} answers`);
    if (system.trim()) parts.push("system message");
    if (form !== "text") parts.push(form === "regex" ? "regular expression" : form === "choice" ? "choice" : "JSON");
    if (tools.trim() && app.abilities.tools) parts.push("tools");
    settings.textContent = parts.join(" · ");
    settings.setAttribute("aria-label", `Settings: ${parts.join(", ")}`);
  }

  app.on("busy", render);
  app.on("settings", summarise);
  app.on("suggested", (text) => {
    field.value = text;
    fit();
    field.focus();
  });
  app.on("compose", () => field.focus());
  render();
  summarise();
  return { field };
}
