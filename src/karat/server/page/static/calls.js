// Calls of tools in an answer: what the model wants to know, and fields for what it gets to know.
import { answerCalls } from "./acts.js";
import { button, h } from "./dom.js";

export function callsOf(app, node) {
  if (!node.toolCalls?.length) return [];
  const answered = app.conversation.children(node.id).length > 0;
  const fields = node.toolCalls.map((call, i) =>
    h("textarea", { rows: 2, id: `call-${node.id}-${i}`, placeholder: "What the tool gives back" }),
  );
  return [
    h(
      "div",
      { class: "calls" },
      node.toolCalls.map((call, i) =>
        h(
          "div",
          { class: "call" },
          h("p", {}, "Calls ", h("code", {}, call[call.type].name)),
          h("pre", { tabindex: "0", role: "group", "aria-label": "Arguments" }, given(call)),
          !answered && h("label", { for: fields[i].id }, "Result"),
          !answered && fields[i],
        ),
      ),
      !answered &&
        button(
          "Give the results",
          () =>
            answerCalls(
              app,
              node,
              fields.map((field) => field.value),
            ),
          { class: "primary" },
        ),
    ),
  ];
}

/** The arguments of a function, in lines, or the text for a custom tool. */
function given(call) {
  if (call.custom) return call.custom.input;
  try {
    return JSON.stringify(JSON.parse(call.function.arguments), null, 2);
  } catch {
    return call.function.arguments;
  }
}
