// The editors of settings: system message, sampling, form of the answer, tools, and the page itself.
import { h, number } from "./dom.js";
import { FIELDS, FORMS, jsonOf, keepPreferences, preferences, toolsOf } from "./settings.js";

const NAMES = { max_completion_tokens: "max_tokens" }; // of defaults, where theirs differ
const THEMES = [
  ["auto", "As the system"],
  ["light", "Light"],
  ["dark", "Dark"],
];

export function makeSettingsPanel(app) {
  const element = h("div");

  function render() {
    const { settings } = app.conversation;
    element.replaceChildren(
      h("h2", {}, "This conversation"),
      labelled(
        "system",
        "System message",
        h("textarea", {
          id: "system",
          rows: 3,
          value: settings.system,
          placeholder: "How the model is to answer",
          on: { change: (event) => app.changeSettings({ system: event.target.value }) },
        }),
      ),
      labelled(
        "n",
        "Answers side by side",
        h("input", {
          id: "n",
          type: "number",
          min: 1,
          max: 8,
          step: 1,
          value: settings.n,
          on: { change: (event) => app.changeSettings({ n: whole(event.target, 1, 8) }) },
        }),
      ),
      h("h3", {}, "Sampling"),
      h("p", { class: "note" }, "An empty field is the model's own setting, which is shown in it."),
      h(
        "div",
        { class: "fields" },
        FIELDS.map((field) => samplingField(settings, field)),
      ),
      labelled(
        "stop",
        "Stop texts, one a line",
        h("textarea", {
          id: "stop",
          rows: 1,
          value: settings.stop,
          on: { change: (event) => app.changeSettings({ stop: event.target.value }) },
        }),
      ),
      ...formEditor(settings),
      ...(app.abilities.tools ? toolsEditor(settings) : []),
      h("h2", {}, "This page"),
      labelled(
        "theme",
        "Colours",
        h(
          "select",
          { id: "theme", on: { change: (event) => prefer({ theme: event.target.value }) } },
          THEMES.map(([value, name]) => h("option", { value, selected: preferences.theme === value }, name)),
        ),
      ),
      app.abilities.explain && switched("why", "Ask why for each token"),
      app.abilities.receipt && switched("receipts", "Ask for a receipt of each answer"),
      switched("keys", "Shortcuts of one key"),
    );
  }

  function samplingField(settings, [name, label, min, max, step, what]) {
    const usual = app.abilities.defaults[NAMES[name] ?? name];
    const fallback = { seed: "drawn anew", max_completion_tokens: "as long as it fits" }[name] ?? "";
    const set = (event) => {
      const sampling = { ...settings.sampling };
      const { value, validity } = event.target;
      event.target.setAttribute("aria-invalid", String(!validity.valid));
      if (!validity.valid) return;
      if (value === "") delete sampling[name];
      else sampling[name] = Number(value);
      app.changeSettings({ sampling });
    };
    return h(
      "div",
      { class: "field" },
      h("label", { for: name }, label),
      h("input", {
        id: name,
        type: "number",
        min,
        max,
        step: step < 1 ? "any" : 1,
        value: settings.sampling[name] ?? "",
        placeholder: usual === undefined || usual === null ? fallback : number(usual),
        "aria-describedby": `${name}-what`,
        on: { change: set },
      }),
      h("p", { class: "note", id: `${name}-what` }, what),
    );
  }

  function formEditor(settings) {
    const said = h("p", { class: "note", id: "form-said", role: "status" });
    const text = h("textarea", {
      id: "form-text",
      rows: 8,
      spellcheck: "false",
      class: "mono",
      value: settings.formText,
      "aria-label": "Form of the answer, written out",
      "aria-describedby": "form-said",
      hidden: ["text", "json_object"].includes(settings.form),
      on: {
        change: () => {
          check();
          app.changeSettings({ formText: text.value });
        },
      },
    });
    const check = () =>
      checked(text, said, () => {
        if (settings.form === "json_schema" && text.value) jsonOf(text.value, "The JSON schema");
      });
    const select = h(
      "select",
      {
        id: "form",
        on: {
          change: () => {
            const [, , example] = FORMS.find(([form]) => form === select.value);
            app.changeSettings({ form: select.value, formText: example });
            text.value = example;
            text.hidden = !example;
            check();
          },
        },
      },
      FORMS.map(([value, name]) => h("option", { value, selected: settings.form === value }, name)),
    );
    return [h("h3", {}, "Form of the answer"), labelled("form", "The answer is", select), text, said];
  }

  function toolsEditor(settings) {
    const said = h(
      "p",
      { class: "note", id: "tools-said", role: "status" },
      "Functions with a name, a description and parameters as a JSON Schema, or custom tools. You give the results.",
    );
    const example =
      '[{"name": "weather", "description": "The weather in a town", "parameters": {"type": "object", ' +
      '"properties": {"town": {"type": "string"}}, "required": ["town"]}}]';
    const text = h("textarea", {
      id: "tools",
      rows: 5,
      spellcheck: "false",
      class: "mono",
      value: settings.tools,
      placeholder: example,
      "aria-describedby": "tools-said",
      on: {
        change: () => {
          checked(text, said, () => text.value.trim() && toolsOf(text.value));
          app.changeSettings({ tools: text.value });
        },
      },
    });
    return [h("h3", {}, "Tools"), labelled("tools", "Tools as JSON", text), said];
  }

  function switched(name, label) {
    const box = h("input", {
      type: "checkbox",
      id: `prefer-${name}`,
      on: { change: () => prefer({ [name]: box.checked }) },
    });
    box.checked = preferences[name];
    return h("div", { class: "switch" }, box, h("label", { for: box.id }, label));
  }

  let shownId = null;
  const renderOther = () => {
    if (app.conversation.id !== shownId) {
      shownId = app.conversation.id;
      render();
    }
  };
  app.on("settings", renderOther);
  renderOther();
  return { element, first: () => element.querySelector("textarea") };
}

function labelled(id, label, control) {
  return h("div", { class: "field" }, h("label", { for: id }, label), control);
}

function prefer(change) {
  Object.assign(preferences, change);
  keepPreferences();
}

function whole(input, least, most) {
  const value = Math.max(least, Math.min(most, Math.round(Number(input.value)) || least));
  input.value = value;
  return value;
}

function checked(text, said, check) {
  try {
    check();
    text.setAttribute("aria-invalid", "false");
    said.textContent = "";
  } catch (error) {
    text.setAttribute("aria-invalid", "true");
    said.textContent = error.message;
  }
}
