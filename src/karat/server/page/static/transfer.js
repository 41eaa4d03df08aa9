// Conversations to files and back: JSON for everything, Markdown for the path that is shown.
import { Conversation, newId } from "./tree.js";
import { emptySettings } from "./settings.js";

const FORMAT = "karat-conversations";
const ROLES = { user: "You", assistant: "Answer", tool: "Result of a tool" };

export async function exportAll(app) {
  await exportJson(app, await app.store.list(), "karat-conversations.json");
}

export async function exportOne(app) {
  await exportJson(app, [app.conversation.record], `${nameOf(app.conversation)}.json`);
}

async function exportJson(app, records, name) {
  const conversations = [];
  for (const record of records) {
    const nodes =
      record.id === app.conversation.id ? [...app.conversation.nodes.values()] : await app.store.nodes(record.id);
    const details = [];
    for (const node of nodes)
      if (node.role === "assistant") details.push({ ...(await app.detailsOf(node)), id: node.id });
    conversations.push({ ...record, nodes, details });
  }
  save(name, JSON.stringify({ format: FORMAT, version: 1, conversations }, null, 1), "application/json");
}

export function exportMarkdown(app) {
  save(`${nameOf(app.conversation)}.md`, markdownOf(app.conversation), "text/markdown");
}

export function markdownOf(conversation) {
  const { system } = conversation.settings;
  const parts = [`# ${conversation.record.title || "Conversation"}`];
  if (system.trim()) parts.push(`> **System:** ${system.trim().replaceAll("\n", "\n> ")}`);
  for (const { role, content, toolCalls } of conversation.path()) {
    parts.push(`## ${ROLES[role]}`, content);
    for (const call of toolCalls ?? []) parts.push(`\`\`\`json\n${JSON.stringify(call[call.type])}\n\`\`\``);
  }
  return `${parts.join("\n\n")}\n`;
}

export async function importFile(app, file) {
  try {
    const made = conversationsOf(await file.text());
    for (const { conversation, details } of made) {
      for (const detail of details) app.details.set(detail.id, detail);
      await app.save([...conversation.nodes.values()], conversation);
    }
    if (made.length) await app.open(made[0].conversation.id);
    app.say(`${made.length} conversations were imported.`);
  } catch (error) {
    app.emit("notice", `${file.name} was not imported: ${error.message}`);
  }
}

/** Conversations of a file, with ids of their own: nothing that is here is replaced. An error says what is wrong. */
export function conversationsOf(text) {
  const file = JSON.parse(text);
  if (file?.format !== FORMAT || file.version !== 1 || !Array.isArray(file.conversations))
    throw new Error("it is no export of this page");
  return file.conversations.map((given) => {
    if (!Array.isArray(given.nodes)) throw new Error("a conversation has no messages");
    const ids = new Map(given.nodes.map((node) => [node.id, newId()]));
    const id = newId();
    const nodes = given.nodes.map((node) => {
      if (!(node.role in ROLES) || typeof node.content !== "string" || !(node.parent === null || ids.has(node.parent)))
        throw new Error("a message has no role, text or place");
      return {
        ...node,
        id: ids.get(node.id),
        conversation: id,
        parent: node.parent === null ? null : ids.get(node.parent),
        created: Number(node.created) || 0,
        order: Number(node.order) || 0,
      };
    });
    const active = Object.fromEntries(
      Object.entries(given.active ?? {})
        .filter(([, child]) => ids.has(child))
        .map(([parent, child]) => [parent === "" ? "" : ids.get(parent), ids.get(child)]),
    );
    const record = {
      id,
      title: String(given.title ?? ""),
      created: Number(given.created) || Date.now(),
      updated: Date.now(),
      settings: { ...emptySettings(), ...given.settings },
      active,
    };
    const details = (Array.isArray(given.details) ? given.details : [])
      .filter((detail) => ids.has(detail.id))
      .map((detail) => ({ ...detail, id: ids.get(detail.id) }));
    return { conversation: new Conversation(record, nodes), details };
  });
}

export function save(name, text, type) {
  const address = URL.createObjectURL(new Blob([text], { type }));
  const link = document.createElement("a");
  link.href = address;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 10000);
}

function nameOf(conversation) {
  return (
    (conversation.record.title || "conversation")
      .replace(/[^\p{L}\p{N}]+/gu, "-")
      .replace(/^-|-$/g, "")
      .slice(0, 50)
      .toLowerCase() || "conversation"
  );
}
