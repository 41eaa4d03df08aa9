// One answer under way: the request, its events, and the messages that grow by them.
import { preferences, requestOf } from "./settings.js";
import { newId } from "./tree.js";

const SAVE_MS = 3000; // between saves while an answer grows

/** The conversation up to `node` as messages of a request. */
export function messagesTo(conversation, node) {
  const { system } = conversation.settings;
  const said = node === null ? [] : conversation.pathTo(node).map(messageOf).filter(Boolean);
  return system.trim() ? [{ role: "system", content: system }, ...said] : said;
}

function messageOf({ role, content, reasoning, toolCalls, toolCallId }) {
  if (role === "tool") return { role, content, tool_call_id: toolCallId };
  if (role !== "assistant") return { role, content };
  const said = {
    role,
    content,
    ...(reasoning ? { reasoning_content: reasoning } : {}),
    ...(toolCalls?.length ? { tool_calls: toolCalls } : {}),
  };
  return content || toolCalls?.length ? said : null;
}

/** The request for an answer below `parent`. */
export function bodyOf(app, conversation, parent) {
  const { abilities } = app;
  const body = {
    model: abilities.model,
    messages: messagesTo(conversation, parent),
    ...requestOf(conversation.settings, abilities),
  };
  if (abilities.explain && preferences.why) body.explain = true;
  if (abilities.receipt && preferences.receipts) body.karat = { receipt: true };
  return body;
}

/**
 * Ask for an answer below `parent`, and let it grow. `from` goes on from given tokens:
 * {tokens, explain, seed, choice}: seed and choice of the answer that it branches from.
 */
export async function answer(app, parent, from = null) {
  const { conversation } = app;
  if (app.stream) return;
  let body;
  try {
    body = bodyOf(app, conversation, parent);
  } catch (error) {
    app.emit("notice", error.message);
    return;
  }
  if (from) {
    body.n = 1;
    // A receipt is of a whole answer.
    body.karat = { resume: { tokens: from.tokens, seed: from.seed, choice: from.choice } };
    delete body.seed;
  }
  const stream = new Answering(app, conversation, parent, body, from);
  app.streams.set(conversation.id, stream);
  app.emit("shown");
  app.emit("busy");
  app.say("The answer begins.");
  try {
    await stream.run();
  } finally {
    app.streams.delete(conversation.id);
    app.emit("busy");
    app.emit("grown", stream.nodes);
    await app.save(stream.nodes, conversation);
    if (app.conversation === conversation) {
      app.about(stream.nodes[0]);
      stream.tell();
    }
  }
}

class Answering {
  constructor(app, conversation, parent, body, from) {
    Object.assign(this, { app, conversation, body, from });
    this.controller = new AbortController();
    this.progress = null;
    this.begun = performance.now();
    this.firstAt = null;
    this.frame = 0;
    this.savedAt = performance.now();
    const n = body.n ?? 1;
    const group = n > 1 ? newId() : null;
    this.nodes = Array.from({ length: n }, (_, i) =>
      conversation.add(parent?.id ?? null, {
        role: "assistant",
        group,
        choice: from?.choice ?? i,
        content: "",
        model: body.model,
        settings: structuredClone(conversation.settings),
        resumed: from?.tokens.length ?? 0,
      }),
    );
    conversation.choose(this.nodes[0]);
    for (const node of this.nodes)
      app.details.set(node.id, {
        tokens: [...(from?.tokens ?? [])],
        explain: [...(from?.explain ?? [])],
        promptTokens: null,
        receipt: null,
      });
  }

  stop() {
    this.controller.abort();
  }

  /** How many tokens of this answer came so far; those that it goes on from are not counted. */
  numTokensOf(node) {
    return Math.max(0, (node.numTokens ?? 0) - (this.from?.tokens.length ?? 0));
  }

  /** Tokens a second of this answer so far; null in its first moments. */
  rateOf(node) {
    const seconds = (performance.now() - this.firstAt) / 1000;
    return this.firstAt === null || seconds < 0.3 ? null : Math.max(0, this.numTokensOf(node) - 1) / seconds;
  }

  async run() {
    const asked = {
      ...this.body,
      stream: true,
      stream_options: { include_usage: true },
      return_token_ids: true,
      return_progress: true,
    };
    try {
      for await (const event of this.app.api.events("/v1/chat/completions", asked, { signal: this.controller.signal }))
        this.#take(event);
    } catch (error) {
      const stopped = error.name === "AbortError";
      for (const node of this.nodes.filter((other) => !other.finish)) {
        node.finish = stopped ? "stopped" : "error";
        if (!stopped) node.error = error.message;
      }
    }
    cancelAnimationFrame(this.frame);
  }

  #take(event) {
    if (event.prompt_progress) this.progress = event.prompt_progress;
    for (const choice of event.choices) this.#takeChoice(event, choice);
    for (const node of this.nodes) {
      if (event.karat?.seed !== undefined) node.seed = event.karat.seed;
      if (event.timings) node.timings = event.timings;
      if (event.usage) node.usage = event.usage;
    }
    if (event.karat?.receipt)
      [event.karat.receipt].flat().forEach((receipt, i) => this.#keepReceipt(this.nodes[i], receipt));
    this.frame ||= requestAnimationFrame(() => {
      this.frame = 0;
      this.app.emit("grown", this.nodes);
    });
    if (performance.now() - this.savedAt > SAVE_MS) {
      this.savedAt = performance.now();
      this.app.save(this.nodes, this.conversation);
    }
  }

  #takeChoice(event, choice) {
    const node = this.nodes[choice.index];
    if (!node) return;
    const details = this.app.details.get(node.id);
    const { delta } = choice;
    if (choice.karat?.resumed) begin(node, choice.karat.resumed);
    if (event.prompt_token_ids)
      for (const other of this.nodes) this.app.details.get(other.id).promptTokens = event.prompt_token_ids;
    if (delta.content) node.content += delta.content;
    if (delta.reasoning_content) node.reasoning = (node.reasoning ?? "") + delta.reasoning_content;
    for (const call of delta.tool_calls ?? []) takeCall(node, call);
    if (choice.token_ids?.length) {
      details.tokens.push(...choice.token_ids);
      node.numTokens = details.tokens.length;
      this.firstAt ??= performance.now();
    }
    if (choice.karat?.explain) details.explain.push(...choice.karat.explain);
    if (choice.karat?.receipt) this.#keepReceipt(node, choice.karat.receipt);
    if (choice.finish_reason) node.finish = choice.finish_reason;
  }

  #keepReceipt(node, receipt) {
    if (!node) return;
    this.app.details.get(node.id).receipt = receipt;
    node.hasReceipt = true;
  }

  /** Say once, for who listens, that the answer is there. */
  tell() {
    const [node] = this.nodes;
    if (node.error) this.app.say(`The answer ended in an error: ${node.error}`);
    else if (this.nodes.length > 1) this.app.say(`${this.nodes.length} answers are there.`);
    else {
      const end = node.finish === "stopped" ? "The answer was stopped" : "The answer is there";
      this.app.say(`${end}: ${node.content.slice(0, 400)}`);
    }
  }
}

/** What the tokens that are gone on from say, as the server parts it. */
function begin(node, { content, reasoning_content, tool_calls }) {
  Object.assign(node, {
    content: content ?? "",
    reasoning: reasoning_content,
    toolCalls: tool_calls?.map(({ id, type, [type]: called }) => ({ id, type, [type]: { ...called } })),
  });
}

function takeCall(node, { index, id, function: called, custom }) {
  node.toolCalls ??= [];
  const call = (node.toolCalls[index] ??= custom
    ? { id: "", type: "custom", custom: { name: "", input: "" } }
    : { id: "", type: "function", function: { name: "", arguments: "" } });
  if (id) call.id = id;
  for (const [name, text] of Object.entries(called ?? custom ?? {})) call[call.type][name] += text ?? "";
}
