// What is open now, and what happens to it. Views listen; they keep no state of their own that others need.
import { Conversation } from "./tree.js";
import { keepSettings, latestSettings } from "./settings.js";

export class App extends EventTarget {
  constructor(api, store, abilities) {
    super();
    this.api = api;
    this.store = store;
    this.abilities = abilities;
    this.conversation = Conversation.empty(latestSettings());
    this.streams = new Map(); // conversation's id -> the answer under way
    this.details = new Map(); // message's id -> {tokens, promptTokens, explain, receipt}
    this.unfolded = new Set(); // ids of answers shown as tokens
    this.picked = null; // {node, index}: the token that the panel explains
    this.subject = null; // the answer that Why and Proof are about
  }

  on(names, listener) {
    for (const name of names.split(" ")) this.addEventListener(name, (event) => listener(event.detail));
  }

  emit(name, detail = null) {
    this.dispatchEvent(new CustomEvent(name, { detail }));
  }

  get stream() {
    return this.streams.get(this.conversation.id) ?? null;
  }

  say(text) {
    this.emit("said", text);
  }

  fresh() {
    this.#show(Conversation.empty(latestSettings()));
  }

  async open(id, messageId = null) {
    const running = this.streams.get(id)?.conversation;
    const record = running ? null : (await this.store.list()).find((other) => other.id === id);
    if (!running && !record) return;
    const conversation = running ?? new Conversation(record, await this.store.nodes(id));
    const message = conversation.nodes.get(messageId);
    if (message) conversation.reveal(message);
    this.#show(conversation, messageId);
  }

  #show(conversation, messageId = null) {
    this.conversation = conversation;
    this.picked = null;
    this.subject = conversation.path().findLast((node) => node.role === "assistant") ?? null;
    this.emit("shown", messageId);
    this.emit("settings");
    this.emit("busy");
    this.emit("picked");
  }

  /** What an answer has besides its text, read from the browser the first time. */
  async detailsOf(node) {
    if (!this.details.has(node.id)) this.details.set(node.id, (await this.store.details(node.id)) ?? {});
    return this.details.get(node.id);
  }

  /** Another path is shown. */
  choose(node) {
    this.conversation.choose(node);
    if (node.role === "assistant") this.about(node);
    this.emit("shown");
    this.save();
  }

  about(node, index = null) {
    this.subject = node;
    this.picked = index === null ? null : { node, index };
    this.emit("picked");
  }

  changeSettings(change) {
    Object.assign(this.conversation.record.settings, change);
    keepSettings(this.conversation.record.settings);
    this.emit("settings");
    if (this.conversation.nodes.size) this.save();
  }

  /** Save the conversation, with `nodes` and their details. */
  async save(nodes = [], conversation = this.conversation) {
    if (nodes.length) conversation.record.updated = Date.now();
    const entries = [["conversations", conversation.record], ...nodes.map((node) => ["nodes", node])];
    for (const { id } of nodes) if (this.details.has(id)) entries.push(["details", { id, ...this.details.get(id) }]);
    await this.store.save(...entries);
    this.emit("list");
  }
}
