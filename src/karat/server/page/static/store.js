// Conversations in the browser's IndexedDB. What the browser does not take stays in this tab, and `onProblem` says so.

const NAME = "karat";
const STORES = ["conversations", "nodes", "details"]; // details: what answers have besides text, read when asked for

export class Store {
  constructor(onProblem) {
    this.onProblem = onProblem;
    this.unsaved = new Map(); // "store/id" -> [store, value]: refused by the browser so far
    this.db = null;
    this.fails = false;
  }

  async open() {
    try {
      this.db = await opened();
      navigator.storage?.persist?.().catch(() => {});
    } catch (error) {
      this.#failed(error);
    }
  }

  async list() {
    const kept = this.db ? await result(this.#at("conversations").getAll()) : [];
    return this.#over("conversations", kept).sort((a, b) => b.updated - a.updated);
  }

  async nodes(conversation) {
    const kept = this.db ? await result(this.#at("nodes").index("conversation").getAll(conversation)) : [];
    return this.#over("nodes", kept, (node) => node.conversation === conversation);
  }

  async details(id) {
    const waiting = this.unsaved.get(`details/${id}`);
    if (waiting) return waiting[1];
    return (this.db && (await result(this.#at("details").get(id)))) ?? null;
  }

  /** Save values: [store, value] each. What was refused before is tried again with them. */
  async save(...entries) {
    for (const [store, value] of entries) this.unsaved.set(`${store}/${value.id}`, [store, structuredClone(value)]);
    if (!this.db) return this.#failed(new Error("this browser keeps no data for this page"));
    const trying = new Map(this.unsaved);
    try {
      const writing = this.db.transaction(STORES, "readwrite");
      for (const [store, value] of trying.values()) writing.objectStore(store).put(value);
      writing.commit(); // now, not when the page has heard of each: it may be left before
      await finished(writing);
      for (const [key, entry] of trying) if (this.unsaved.get(key) === entry) this.unsaved.delete(key);
      this.fails = false;
      if (this.unsaved.size === 0) this.onProblem(null);
    } catch (error) {
      this.#failed(error);
    }
  }

  async remove(conversation) {
    const nodes = await this.nodes(conversation);
    for (const id of [conversation, ...nodes.map((node) => node.id)])
      for (const store of STORES) this.unsaved.delete(`${store}/${id}`);
    if (!this.db) return;
    const writing = this.db.transaction(STORES, "readwrite");
    writing.objectStore("conversations").delete(conversation);
    for (const { id } of nodes) {
      writing.objectStore("nodes").delete(id);
      writing.objectStore("details").delete(id);
    }
    writing.commit();
    await finished(writing);
  }

  /** Messages that hold `words`, newest first, at most `limit`. */
  async search(words, limit = 50) {
    const wanted = words.toLowerCase();
    const kept = this.db ? await result(this.#at("nodes").getAll()) : [];
    const fits = (node) => (node.content ?? "").toLowerCase().includes(wanted);
    return this.#over("nodes", kept)
      .filter(fits)
      .sort((a, b) => b.created - a.created)
      .slice(0, limit);
  }

  #at(store) {
    return this.db.transaction(store).objectStore(store);
  }

  #over(store, kept, belongs = () => true) {
    const all = new Map(kept.map((value) => [value.id, value]));
    for (const [at, value] of this.unsaved.values()) if (at === store && belongs(value)) all.set(value.id, value);
    return [...all.values()];
  }

  #failed(error) {
    this.fails = true;
    const full = error?.name === "QuotaExceededError";
    this.onProblem(
      full
        ? "The browser has no room left for this page."
        : `The browser does not keep conversations (${error?.message ?? error}).`,
    );
  }
}

function opened() {
  return new Promise((resolve, reject) => {
    const opening = indexedDB.open(NAME, 1);
    opening.onupgradeneeded = () => {
      for (const store of STORES) opening.result.createObjectStore(store, { keyPath: "id" });
      opening.transaction.objectStore("nodes").createIndex("conversation", "conversation");
    };
    opening.onsuccess = () => resolve(opening.result);
    opening.onerror = () => reject(opening.error);
  });
}

function result(request) {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}

function finished(transaction) {
  return new Promise((resolve, reject) => {
    transaction.oncomplete = () => resolve();
    transaction.onabort = transaction.onerror = () => reject(transaction.error);
  });
}
