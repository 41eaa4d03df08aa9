// One request through Vercel's AI SDK: node client_asks.mjs PROVIDER:WHAT URL MODEL, in a folder with its packages.
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateObject, generateText, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";

const [, , name, url, modelName] = process.argv;
const [provider, what] = name.split(":");
const own = { baseURL: `${url}/v1`, apiKey: "dummy" };
const model = {
  openai: () => createOpenAI(own)(modelName),
  chat: () => createOpenAI(own).chat(modelName),
  anthropic: () => createAnthropic(own)(modelName),
  compatible: () =>
    createOpenAICompatible({ name: "karat", supportsStructuredOutputs: true, includeUsage: true, ...own })(modelName),
}[provider]();
const ask = { model, system: "Be brief.", prompt: "What is the weather in Paris?", maxRetries: 0, maxOutputTokens: 60 };
const weather = tool({
  description: "The weather",
  inputSchema: z.object({ city: z.string() }),
  execute: async () => "sunny",
});
const acts = {
  text: () => generateText(ask),
  tools: () => generateText({ ...ask, tools: { weather }, stopWhen: stepCountIs(2) }),
  object: () => generateObject({ ...ask, schema: z.object({ city: z.string().max(5), ok: z.boolean() }) }),
  stream: async () => {
    for await (const part of streamText({ ...ask, tools: { weather } }).fullStream)
      if (part.type === "error") throw part.error;
  },
};
await acts[what]();
