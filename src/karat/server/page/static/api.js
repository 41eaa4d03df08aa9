// Requests to the server that the page came from: JSON, and server-sent events.

export class ApiError extends Error {
  constructor(status, message, { code = null, param = null } = {}) {
    super(message);
    this.status = status;
    this.code = code;
    this.param = param;
  }
}

const KEY = "karat.key";

export class Api {
  /** `askKey(wrong)` resolves to a key; it is asked for when the server wants one. */
  constructor(askKey) {
    this.askKey = askKey;
    this.asking = null;
  }

  async json(path, body = undefined, { signal } = {}) {
    return (await this.#fetch(path, body, signal)).json();
  }

  async text(path) {
    return (await this.#fetch(path)).text();
  }

  /** The events of a stream, decoded. An event with an error is thrown. */
  async *events(path, body, { signal } = {}) {
    const answer = await this.#fetch(path, body, signal);
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    try {
      for (;;) {
        const { value, done } = await reader.read();
        if (done) break;
        const parts = (rest + value).split("\n\n");
        rest = parts.pop();
        for (const part of parts) {
          const data = part
            .split("\n")
            .filter((line) => line.startsWith("data: "))
            .map((line) => line.slice(6))
            .join("\n");
          if (!data || data === "[DONE]") continue;
          const event = JSON.parse(data);
          if (event.error) throw new ApiError(500, event.error.message, event.error);
          yield event;
        }
      }
    } finally {
      reader.cancel().catch(() => {});
    }
  }

  async #fetch(path, body, signal) {
    for (;;) {
      const key = sessionStorage.getItem(KEY);
      const headers = key === null ? {} : { authorization: `Bearer ${key}` };
      if (body !== undefined) headers["content-type"] = "application/json";
      const method = body === undefined ? "GET" : "POST";
      let answer;
      try {
        answer = await fetch(path, {
          method,
          headers,
          signal,
          body: body === undefined ? undefined : JSON.stringify(body),
        });
      } catch (error) {
        if (error.name === "AbortError") throw error;
        throw new ApiError(0, "The server cannot be reached. Is karat serve still running?");
      }
      if (answer.ok) return answer;
      if (answer.status === 401) {
        await this.#newKey(key);
        continue;
      }
      throw await errorOf(answer);
    }
  }

  /** Ask for a key once, however many requests wait for it. */
  async #newKey(refused) {
    if (sessionStorage.getItem(KEY) !== refused) return;
    this.asking ??= this.askKey(refused !== null).finally(() => {
      this.asking = null;
    });
    sessionStorage.setItem(KEY, await this.asking);
  }
}

async function errorOf(answer) {
  try {
    const { error } = await answer.json();
    return new ApiError(answer.status, error.message, error);
  } catch {
    return new ApiError(answer.status, `The server answered with status ${answer.status}.`);
  }
}
