// One message: its text, what can be done with it, and what is known about it.
import { edit, retry, turn } from "./acts.js";
import { callsOf } from "./calls.js";
import { copyButton } from "./copy.js";
import { button, h, iconButton, number } from "./dom.js";
import { renderInto } from "./markdown.js";
import { makeTokens } from "./tokens.js";
import { fitsBeside } from "./width.js";

const NAMES = { user: "You", assistant: "Answer", tool: "Result of a tool" };

/** A view of `node`: its element; `update` after a change of the node, `mark` after another token was picked. */
export function makeMessage(app, node) {
  const text = h("div", { class: `text ${node.role === "user" ? "as-written" : ""}` });
  const before = h("div", { class: "before" });
  const after = h("div", { class: "after" });
  const facts = h("div", { class: "facts" });
  const tools = h("div", { class: "tools" });
  const element = h(
    "article",
    { class: `message ${node.role}`, "aria-label": NAMES[node.role], "data-id": node.id },
    before,
    text,
    after,
    h("div", { class: "foot" }, facts, tools),
  );
  let tokens = null;
  let shown = null; // the state that the feet show, as text
  let editing = false;

  function update() {
    if (editing) return;
    const busy = app.stream?.nodes.includes(node) ?? false;
    element.setAttribute("aria-busy", String(busy));
    element.classList.toggle(
      "chosen",
      app.conversation.group(node).length > 1 && app.conversation.chosen(node.parent) === node,
    );
    updateText(busy);
    const state = JSON.stringify([
      busy,
      Boolean(app.stream),
      node.finish,
      node.error,
      node.usage,
      app.unfolded.has(node.id),
      app.conversation.siblings(node).map(({ id }) => id),
      app.conversation.chosen(node.parent)?.id,
      node.toolCalls,
      app.conversation.children(node.id).length > 0,
    ]);
    if (busy) facts.replaceChildren(progressOf(app.stream, node));
    if (state === shown) return;
    shown = state;
    if (!busy) facts.replaceChildren(...factsOf(app, node));
    const focused = tools.contains(document.activeElement) ? document.activeElement.getAttribute("aria-label") : null;
    tools.replaceChildren(...toolsOf(busy));
    if (focused)
      [...tools.querySelectorAll("button")].find((other) => other.getAttribute("aria-label") === focused)?.focus();
    after.replaceChildren(...(busy ? [] : callsOf(app, node)), ...(node.error ? [failure()] : []));
  }

  function updateText(busy) {
    updateReasoning(busy);
    if (app.unfolded.has(node.id)) {
      tokens ??= makeTokens(app, node);
      if (!tokens.element.isConnected) text.replaceChildren(tokens.element);
      text.blocks = null;
      tokens.update();
    } else if (node.role === "user") text.replaceChildren(node.content);
    else if (node.role === "tool") text.replaceChildren(h("pre", {}, node.content));
    else {
      if (tokens) {
        tokens = null;
        text.replaceChildren();
        text.blocks = null;
      }
      renderInto(text, node.content);
    }
  }

  function updateReasoning(busy) {
    if (!node.reasoning) return;
    if (!before.firstChild)
      before.append(h("details", { class: "reasoning" }, h("summary", {}), h("div", { class: "text" })));
    const [summary, body] = before.firstChild.children;
    summary.textContent = busy && !node.content ? "Thinking…" : "Reasoning";
    renderInto(body, node.reasoning);
  }

  function toolsOf(busy) {
    const siblings = app.conversation.siblings(node);
    const at = siblings.indexOf(node);
    const idle = !app.stream;
    const grouped = app.conversation.group(node).length > 1;
    return [
      siblings.length > 1 &&
        !grouped &&
        h(
          "span",
          { class: "turns" },
          iconButton("left", "Branch before", () => turn(app, node, -1), { disabled: at === 0 || !idle }),
          h("span", { class: "count" }, h("span", { class: "hidden" }, "Branch "), `${at + 1} / ${siblings.length}`),
          iconButton("right", "Branch after", () => turn(app, node, 1), {
            disabled: at === siblings.length - 1 || !idle,
          }),
        ),
      grouped &&
        (app.conversation.chosen(node.parent) === node
          ? h("span", { class: "chosen-mark" }, "Goes on from here")
          : button("Go on with this one", () => app.choose(node), { class: "small", disabled: !idle })),
      node.role === "assistant" &&
        app.abilities.explain &&
        !node.edited &&
        iconButton("why", "Why this token", unfold, {
          "aria-pressed": String(app.unfolded.has(node.id)),
          class: "strong",
        }),
      node.role === "assistant" &&
        app.abilities.receipt &&
        !busy &&
        iconButton("proof", "Proof", () => {
          app.about(node);
          app.emit("panel", "proof");
        }),
      !busy && copyButton(() => node.content, "Copy message"),
      !busy && idle && node.role !== "tool" && !grouped && iconButton("edit", "Edit message", startEditing),
      !busy &&
        idle &&
        node.role === "assistant" &&
        !grouped &&
        iconButton("retry", "Another answer", () => retry(app, node)),
    ].filter(Boolean);
  }

  async function unfold() {
    if (app.unfolded.delete(node.id)) {
      app.emit("unfolded");
      return;
    }
    await app.detailsOf(node);
    app.unfolded.add(node.id);
    app.about(node);
    app.emit("unfolded");
    if (fitsBeside()) app.emit("panel", "why");
  }

  function failure() {
    return h(
      "div",
      { class: "failure", role: "alert" },
      h("p", {}, node.error),
      !app.stream && button("Try again", () => retry(app, node), { class: "small" }),
    );
  }

  function startEditing() {
    editing = true;
    const field = h("textarea", {
      rows: Math.min(14, node.content.split("\n").length + 1),
      "aria-label": "The message, changed",
      value: node.content,
    });
    const end = () => {
      editing = false;
      shown = null;
      text.blocks = null;
      text.replaceChildren();
      update();
    };
    const keep = () => {
      end();
      if (field.value.trim() && field.value !== node.content) edit(app, node, field.value);
    };
    field.addEventListener("keydown", (event) => {
      if (event.key === "Escape") {
        event.stopPropagation();
        end();
        tools.querySelector("[aria-label='Edit message']")?.focus();
      }
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey || (!event.shiftKey && node.role === "user"))) {
        event.preventDefault();
        keep();
      }
    });
    text.replaceChildren(
      h(
        "div",
        { class: "editing" },
        field,
        h(
          "div",
          { class: "row end" },
          button("Leave it", end),
          button(node.role === "user" ? "Send as a branch" : "Keep as a branch", keep, { class: "primary" }),
        ),
      ),
    );
    facts.replaceChildren();
    tools.replaceChildren();
    field.focus();
  }

  return { node, element, update, unfold, startEditing, mark: () => tokens?.mark(), tokens: () => tokens };
}

function progressOf(stream, node) {
  const { progress } = stream;
  if (stream.firstAt === null) {
    const done = progress ? progress.processed / progress.total : 0;
    const words = progress
      ? `Reading the prompt: ${number(progress.processed)} of ${number(progress.total)} tokens`
      : "Waiting for the first token";
    return h(
      "span",
      { class: "reading" },
      words,
      progress && h("progress", { max: 1, value: done, "aria-label": "Prompt read" }),
    );
  }
  const rate = stream.rateOf(node);
  return h(
    "span",
    {},
    `${number(stream.numTokensOf(node))} tokens${rate ? ` · ${rate.toFixed(rate < 10 ? 1 : 0)} a second` : ""}`,
  );
}

const ENDS = {
  length: "cut at its longest",
  stopped: "stopped",
  error: "ended in an error",
  tool_calls: "calls a tool",
};

function factsOf(app, node) {
  if (node.role !== "assistant") return [];
  const { timings, usage } = node;
  const facts = [];
  if (node.edited) facts.push("written by you");
  const alone = !node.group;
  if (node.numTokens) facts.push(`${number(node.numTokens)} tokens`);
  if (alone && timings?.predicted_per_second)
    facts.push(`${timings.predicted_per_second.toFixed(timings.predicted_per_second < 10 ? 1 : 0)} a second`);
  if (alone && timings) facts.push(`first after ${(timings.prompt_ms / 1000).toFixed(2)} s`);
  if (node.seed !== undefined)
    facts.push(`seed ${String(node.seed).length > 9 ? `${String(node.seed).slice(0, 6)}…` : node.seed}`);
  if (node.resumed) facts.push(`branched after ${number(node.resumed - 1)} tokens`);
  if (ENDS[node.finish]) facts.push(ENDS[node.finish]);
  const cached = usage?.prompt_tokens_details?.cached_tokens;
  const prompt =
    usage &&
    button(
      `${number(cached ?? 0)} of ${number(usage.prompt_tokens)} prompt tokens from the cache`,
      () => {
        app.about(node);
        app.emit("panel", "prompt");
      },
      { class: "link" },
    );
  return [
    ...facts.map((fact) => h("span", { title: fact.startsWith("seed") ? `Seed ${node.seed}` : null }, fact)),
    prompt,
  ].filter(Boolean);
}
