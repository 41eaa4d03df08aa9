// The conversations of this browser: list, search, export and import.
import { button, h, icon, iconButton } from "./dom.js";
import { confirm } from "./confirm.js";
import { exportAll, importFile } from "./transfer.js";

const MOST = 200; // conversations in the list before a search
const BEFORE = 12; // letters of a message before what was searched for: the list is narrow, and this has to be seen

export function makeSidebar(app) {
  const side = document.getElementById("side");
  const list = h("ul", { class: "conversations" });
  const found = h("p", { class: "note", role: "status" });
  const search = h("input", {
    type: "search",
    id: "search",
    placeholder: "Search",
    "aria-label": "Search conversations",
    on: { input: later },
  });
  const file = h("input", {
    type: "file",
    accept: ".json,application/json",
    hidden: true,
    on: {
      change: () => {
        if (file.files[0]) importFile(app, file.files[0]);
        file.value = "";
      },
    },
  });
  let timer = null;

  side.append(
    h(
      "div",
      { class: "brand" },
      h("span", { class: "gem", "aria-hidden": "true" }),
      h("span", { class: "name" }, "Karat"),
      iconButton("close", "Close the list", close, { class: "only-narrow" }),
    ),
    h(
      "button",
      {
        type: "button",
        class: "new",
        on: {
          click: () => {
            app.fresh();
            close();
            app.emit("compose");
          },
        },
      },
      icon("plus"),
      "New conversation",
    ),
    h("div", { class: "search" }, icon("search"), search),
    found,
    list,
    h(
      "div",
      { class: "row foot" },
      h(
        "button",
        { type: "button", class: "quiet", on: { click: () => exportAll(app) } },
        icon("download"),
        "Export all",
      ),
      h("button", { type: "button", class: "quiet", on: { click: () => file.click() } }, icon("upload"), "Import"),
      file,
    ),
  );

  function later() {
    clearTimeout(timer);
    timer = setTimeout(render, 150);
  }

  async function render() {
    const words = search.value.trim();
    const all = await app.store.list();
    if (!words) {
      found.textContent = all.length > MOST ? `The latest ${MOST} of ${all.length}; search for the others.` : "";
      list.replaceChildren(...all.slice(0, MOST).map((record) => entry(record)));
      return;
    }
    const messages = await app.store.search(words);
    if (search.value.trim() !== words) return;
    const records = new Map(all.map((record) => [record.id, record]));
    const titled = all.filter((record) => record.title.toLowerCase().includes(words.toLowerCase()));
    const hits = messages.filter((node) => records.has(node.conversation));
    const seen = new Set(hits.map((node) => node.conversation));
    list.replaceChildren(
      ...titled.filter(({ id }) => !seen.has(id)).map((record) => entry(record)),
      ...hits.map((node) => entry(records.get(node.conversation), node, words)),
    );
    found.textContent = list.children.length ? `${list.children.length} found` : "Nothing found";
  }

  function entry(record, node = null, words = "") {
    const open = button(
      [
        h("span", { class: "title" }, record.title || "Untitled"),
        node && h("span", { class: "snippet" }, ...snippet(node.content, words)),
      ],
      () => {
        app.open(record.id, node?.id);
        close();
      },
      { class: "open", "aria-current": record.id === app.conversation.id ? "true" : null },
    );
    return h(
      "li",
      {},
      open,
      iconButton("trash", `Delete “${record.title || "Untitled"}”`, () => remove(record), { class: "delete" }),
    );
  }

  async function remove(record) {
    if (!(await confirm(`Delete “${record.title || "Untitled"}”?`, "It is kept nowhere else.", "Delete"))) return;
    app.streams.get(record.id)?.stop();
    await app.store.remove(record.id);
    if (app.conversation.id === record.id) app.fresh();
    render();
    search.focus();
  }

  function open() {
    document.body.classList.add("with-side");
    search.focus();
  }

  function close() {
    document.body.classList.remove("with-side");
  }

  app.on("list shown", later);
  render();
  return { open, close, focusSearch: open, isOpen: () => document.body.classList.contains("with-side") };
}

function snippet(text, words) {
  const at = Math.max(0, text.toLowerCase().indexOf(words.toLowerCase()));
  const from = Math.max(0, at - BEFORE);
  return [
    `${from ? "…" : ""}${text.slice(from, at)}`,
    h("mark", {}, text.slice(at, at + words.length)),
    text.slice(at + words.length, at + words.length + 60),
  ];
}
