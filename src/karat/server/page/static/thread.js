// The messages of the shown path. Only the latest are in the document; earlier ones come as they are scrolled to.
import { button, h } from "./dom.js";
import { makeMessage } from "./message.js";

const STEP = 50; // messages that come at a time
const NEAR = 90; // pixels from the end that count as being there

export function makeThread(app) {
  const thread = document.getElementById("thread");
  const scroll = document.getElementById("scroll");
  const views = new Map(); // message's id -> view
  let num = STEP;
  let shownId = null;
  let sticking = true;

  const earlier = button("Show earlier messages", () => more(), { class: "earlier" });
  new IntersectionObserver(
    ([entry]) => {
      if (entry.isIntersecting) more();
    },
    { root: scroll, rootMargin: "300px" },
  ).observe(earlier);
  scroll.addEventListener("scroll", () => {
    sticking = scroll.scrollHeight - scroll.scrollTop - scroll.clientHeight < NEAR;
  });

  function more() {
    const height = scroll.scrollHeight;
    num += STEP;
    render();
    scroll.scrollTop += scroll.scrollHeight - height;
  }

  function viewOf(node) {
    if (!views.has(node.id)) views.set(node.id, makeMessage(app, node));
    const view = views.get(node.id);
    view.update();
    return view.element;
  }

  function blockOf(node) {
    const group = app.conversation.group(node);
    if (group.length === 1) return viewOf(node);
    return h(
      "div",
      { class: "group", role: "group", "aria-label": `${group.length} answers side by side`, tabindex: "0" },
      group.map(viewOf),
    );
  }

  function render() {
    const path = app.conversation.path();
    const shown = path.slice(-num);
    const blocks = shown.map(blockOf);
    if (path.length === 0) blocks.push(welcome(app));
    if (path.length > shown.length) blocks.unshift(earlier);
    const focused = document.activeElement;
    thread.replaceChildren(...blocks);
    if (focused !== document.activeElement && thread.contains(focused)) focused.focus({ preventScroll: true });
    for (const id of views.keys()) if (!views.get(id).element.isConnected) views.delete(id);
  }

  function toEnd() {
    scroll.scrollTop = scroll.scrollHeight;
  }

  new ResizeObserver(() => {
    if (sticking) toEnd();
  }).observe(scroll);

  app.on("shown", (messageId) => {
    if (shownId !== app.conversation.id) {
      shownId = app.conversation.id;
      num = STEP;
      sticking = true;
    }
    if (messageId)
      num = Math.max(
        num,
        app.conversation.path().length - app.conversation.path().findIndex(({ id }) => id === messageId) + 5,
      );
    if (app.stream) sticking = true;
    render();
    if (messageId) views.get(messageId)?.element.scrollIntoView({ block: "center" });
    else if (sticking) toEnd();
  });
  app.on("grown", (nodes) => {
    for (const { id } of nodes) views.get(id)?.update();
    if (sticking) toEnd();
  });
  app.on("unfolded busy", () => {
    for (const view of views.values()) view.update();
  });
  app.on("picked", () => {
    for (const view of views.values()) view.mark();
  });
  render();
  return {
    lastView: (role) => [...views.values()].findLast((view) => view.node.role === role),
    viewOf: (node) => views.get(node.id),
  };
}

const TRIES = ["Tell me a story about a fox and a lantern.", "Why is the sky blue?", "Write a haiku about the sea."];

function welcome(app) {
  return h(
    "div",
    { class: "welcome" },
    h("h1", {}, "What would you like to ask?"),
    h(
      "p",
      {},
      "Point at a word of an answer to see why it was chosen. Take another word, and the answer goes on from there. " +
        "Every answer can be computed again, to the last bit.",
    ),
    h(
      "div",
      { class: "tries" },
      TRIES.map((text) => button(text, () => app.emit("suggested", text), { class: "try" })),
    ),
    h("p", { class: "note" }, `${app.abilities.model} · conversations stay in this browser`),
  );
}
