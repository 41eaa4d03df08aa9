// Settings of a conversation, and of the page itself; and what of them a request says.

export const FIELDS = [
  // name in requests, label, smallest, largest, step, what it does
  ["temperature", "Temperature", 0, 5, 0.05, "0 always takes the likeliest token; higher is bolder"],
  ["top_p", "Top p", 0.01, 1, 0.01, "The fewest likeliest tokens that hold this share"],
  ["top_k", "Top k", 0, 1000, 1, "This number of likeliest tokens; 0 is all"],
  ["min_p", "Min p", 0, 1, 0.01, "Those at least this part as likely as the likeliest"],
  ["repetition_penalty", "Repetition penalty", 0.5, 2, 0.01, "Above 1: less of what prompt and answer have"],
  ["presence_penalty", "Presence penalty", -2, 2, 0.1, "Above 0: less of what the answer has"],
  ["frequency_penalty", "Frequency penalty", -2, 2, 0.1, "The same, for each time"],
  ["max_completion_tokens", "Longest answer", 1, 1048576, 1, "In tokens"],
  ["seed", "Seed", 0, 9007199254740991, 1, "The same seed draws the same answer"],
];

export const FORMS = [
  ["text", "Free text", ""],
  ["json_object", "Any JSON object", ""],
  [
    "json_schema",
    "JSON of a schema",
    '{\n  "type": "object",\n  "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},\n' +
      '  "required": ["name", "age"],\n  "additionalProperties": false\n}',
  ],
  ["regex", "Regular expression", "(yes|no), because [a-z ]{3,60}\\."],
  ["choice", "One of these lines", "yes\nno"],
];

export const emptySettings = () => ({
  system: "",
  sampling: {},
  stop: "",
  n: 1,
  form: "text",
  formText: "",
  tools: "",
});

/** The part of a request that settings make. An error names the editor at fault. */
export function requestOf(settings, abilities) {
  const body = { ...settings.sampling };
  if (settings.stop) body.stop = settings.stop.split("\n").filter(Boolean);
  if (settings.n > 1) body.n = settings.n;
  if (settings.form !== "text") Object.assign(body, formOf(settings));
  if (settings.tools.trim() && abilities.tools) body.tools = toolsOf(settings.tools);
  return body;
}

function formOf({ form, formText }) {
  if (form === "json_object") return { response_format: { type: "json_object" } };
  if (form === "json_schema")
    return {
      response_format: {
        type: "json_schema",
        json_schema: { name: "answer", schema: jsonOf(formText, "The JSON schema") },
      },
    };
  if (form === "choice") return { structured_outputs: { choice: formText.split("\n").filter(Boolean) } };
  return { structured_outputs: { [form]: formText } };
}

/** Tools as chats have them; functions alone, and tools as in /v1/responses, are wrapped. */
export function toolsOf(text) {
  const tools = jsonOf(text, "The list of tools");
  if (!Array.isArray(tools)) throw new Error("The list of tools is no JSON list: write [ … ]");
  if (!tools.every((tool) => tool !== null && typeof tool === "object"))
    throw new Error("The list of tools has what is no object: write [{ … }]");
  return tools.map((tool) => {
    const { type = "function", ...inner } = tool;
    return inner[type] ? tool : { type, [type]: inner };
  });
}

export function jsonOf(text, name) {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new Error(`${name} is no JSON: ${error.message}`);
  }
}

const PREFERENCES = "karat.preferences";
const LATEST = "karat.settings";

export const preferences = { theme: "auto", keys: true, why: true, receipts: true, ...read(PREFERENCES) };
export const latestSettings = () => ({ ...emptySettings(), ...read(LATEST) });

export function keepPreferences() {
  write(PREFERENCES, preferences);
  applyTheme();
}
export function keepSettings(settings) {
  write(LATEST, settings);
}

export function applyTheme() {
  if (preferences.theme === "auto") document.documentElement.removeAttribute("data-theme");
  else document.documentElement.setAttribute("data-theme", preferences.theme);
}

function read(name) {
  try {
    return JSON.parse(localStorage.getItem(name)) ?? {};
  } catch {
    return {};
  }
}

function write(name, value) {
  try {
    localStorage.setItem(name, JSON.stringify(value));
  } catch {
    // A preference that is not kept: the next visit has the usual one.
  }
}
