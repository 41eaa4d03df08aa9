// What a person does to a conversation: send, edit, retry, branch from a token, answer a call of a tool.
import { answer } from "./answering.js";

export async function send(app, content) {
  const { conversation } = app;
  const last = conversation.last();
  const node = conversation.add(last?.id ?? null, { role: "user", content });
  if (!conversation.record.title) conversation.record.title = titleOf(content);
  app.save([node]);
  await answer(app, node);
}

/** A message as it should have been: a branch beside it, and an answer to it. */
export async function edit(app, node, content) {
  const changed = app.conversation.add(node.parent, {
    role: node.role,
    content,
    ...(node.role === "tool" ? { toolCallId: node.toolCallId } : {}),
  });
  app.emit("shown");
  app.save([changed]);
  if (node.role !== "assistant") await answer(app, changed);
}

/** Another answer in place of `node`, or of the last. */
export async function retry(app, node = null) {
  const last = node ?? app.conversation.last();
  if (!last || app.stream) return;
  const question = last.role === "assistant" ? app.conversation.nodes.get(last.parent) : last;
  if (question) await answer(app, question);
}

/** The answer again up to token `index`, then `token`, then whatever follows from it. */
export async function branch(app, node, index, alternative) {
  const { conversation } = app;
  if (app.stream) return;
  const details = await app.detailsOf(node);
  const tokens = [...details.tokens.slice(0, index), alternative.token];
  const old = details.explain[index];
  const { token, probability, rank, drawn, text: shown } = alternative;
  const taken = { ...old, token, probability, rank, drawn, text: shown, draw: null, picked: true };
  await answer(app, conversation.nodes.get(node.parent), {
    tokens,
    seed: node.seed ?? 0,
    choice: node.choice ?? 0,
    explain: [...details.explain.slice(0, index), taken],
  });
}

/** The results of the calls of `node`, one message each, and the answer to them. */
export async function answerCalls(app, node, results) {
  const made = [];
  let parent = node.id;
  for (const [i, call] of node.toolCalls.entries()) {
    const result = app.conversation.add(parent, {
      role: "tool",
      content: results[i],
      toolCallId: call.id,
      toolName: call[call.type].name,
    });
    made.push(result);
    parent = result.id;
  }
  app.emit("shown");
  app.save(made);
  await answer(app, made.at(-1));
}

/** The sibling `step` further on becomes the one that is shown. */
export function turn(app, node, step) {
  const siblings = app.conversation.siblings(node);
  const next = siblings[siblings.indexOf(node) + step];
  if (next) app.choose(next);
}

function titleOf(text) {
  const line = text.trim().split("\n")[0];
  return line.length > 60 ? `${line.slice(0, 57).trimEnd()}…` : line;
}
