// The page: its parts, put together.
import { readAbilities } from "./abilities.js";
import { Api } from "./api.js";
import { App } from "./app.js";
import { makeBar } from "./bar.js";
import { makeComposer } from "./composer.js";
import { button, h } from "./dom.js";
import { askKey } from "./key.js";
import { makeNotices } from "./notices.js";
import { makePanel } from "./panel.js";
import { applyTheme } from "./settings.js";
import { listenToKeys, showShortcuts } from "./shortcuts.js";
import { makeSidebar } from "./sidebar.js";
import { Store } from "./store.js";
import { makeThread } from "./thread.js";

const AGAIN_MS = 2000; // while the model is being loaded

async function begin() {
  applyTheme();
  const api = new Api(askKey);
  const abilities = await untilReady(() => readAbilities(api));
  let notices = null;
  let problem = null;
  const store = new Store((text) => {
    problem = text;
    notices?.storage(text);
  });
  await store.open();
  const app = new App(api, store, abilities);
  notices = makeNotices(app);
  if (problem) notices.storage(problem);
  const thread = makeThread(app);
  const panel = makePanel(app);
  const side = makeSidebar(app);
  const open = { panel: panel.toggle, side: side.open, shortcuts: showShortcuts };
  makeBar(app, open);
  const composer = makeComposer(app, open);
  listenToKeys(app, { thread, panel, side, composer });
  addEventListener("beforeunload", (event) => {
    if ((store.fails && store.unsaved.size) || app.streams.size) event.preventDefault();
  });
  composer.field.focus();
}

async function untilReady(read) {
  const thread = document.getElementById("thread");
  for (;;) {
    try {
      const found = await read();
      thread.replaceChildren();
      return found;
    } catch (error) {
      thread.replaceChildren(
        h(
          "div",
          { class: "welcome" },
          h("h1", {}, error.status === 503 ? "The model is being loaded" : "This did not work"),
          h("p", { role: "status" }, error.message),
          error.status !== 503 && button("Try again", () => location.reload(), { class: "primary" }),
        ),
      );
      if (error.status !== 503) throw error;
      await new Promise((resolve) => setTimeout(resolve, AGAIN_MS));
    }
  }
}

begin();
