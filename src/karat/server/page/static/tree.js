// A conversation as a tree of messages: edits and retries are branches, and one path of them is shown.

export const newId = () =>
  crypto.randomUUID?.() ??
  Array.from(crypto.getRandomValues(new Uint8Array(16)), (b) => b.toString(16).padStart(2, "0")).join("");

export class Conversation {
  /** `record`: id, title, created, updated, settings, active (parent's id -> id of the child that is shown). */
  constructor(record, nodes = []) {
    this.record = record;
    this.nodes = new Map();
    this.under = new Map(); // parent's id -> its children, oldest first
    for (const node of [...nodes].sort((a, b) => a.created - b.created || a.order - b.order)) this.#place(node);
  }

  static empty(settings) {
    const now = Date.now();
    return new Conversation({ id: newId(), title: "", created: now, updated: now, settings, active: {} });
  }

  get id() {
    return this.record.id;
  }
  get settings() {
    return this.record.settings;
  }

  #place(node) {
    this.nodes.set(node.id, node);
    const key = node.parent ?? "";
    if (!this.under.has(key)) this.under.set(key, []);
    this.under.get(key).push(node);
  }

  /** A new message below `parent` (null: the first), and shown. */
  add(parent, message) {
    const siblings = this.children(parent);
    const created = Math.max(Date.now(), siblings.at(-1)?.created ?? 0);
    const node = {
      id: newId(),
      conversation: this.id,
      parent,
      created,
      order: siblings.length,
      content: "",
      ...message,
    };
    this.#place(node);
    this.record.active[parent ?? ""] = node.id;
    return node;
  }

  children(parent) {
    return this.under.get(parent ?? "") ?? [];
  }

  siblings(node) {
    return this.children(node.parent);
  }

  /** The answers that came with this one, of one request for several. */
  group(node) {
    return node.group ? this.siblings(node).filter((other) => other.group === node.group) : [node];
  }

  chosen(parent) {
    const children = this.children(parent);
    return children.find((child) => child.id === this.record.active[parent ?? ""]) ?? children.at(-1) ?? null;
  }

  choose(node) {
    this.record.active[node.parent ?? ""] = node.id;
  }

  /** The messages that are shown, first to last. */
  path() {
    const found = [];
    for (let node = this.chosen(null); node; node = this.chosen(node.id)) found.push(node);
    return found;
  }

  /** The messages that lead to `node`, itself included. */
  pathTo(node) {
    const found = [];
    for (let at = node; at; at = at.parent === null ? null : this.nodes.get(at.parent)) found.unshift(at);
    return found;
  }

  /** Show the path through `node`. */
  reveal(node) {
    for (const at of this.pathTo(node)) this.choose(at);
  }

  last() {
    return this.path().at(-1) ?? null;
  }
}
