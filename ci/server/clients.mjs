// The same with JavaScript's clients: `node clients.mjs ADDRESS KEY`.
import assert from "node:assert/strict";
import OpenAI from "openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, streamText } from "ai";

const [address, key] = process.argv.slice(2);
const client = new OpenAI({ baseURL: `${address}/v1`, apiKey: key });
const model = (await client.models.list()).data[0].id;
const messages = [{ role: "user", content: "Name a colour." }];
const fixed = { model, messages, max_tokens: 12, seed: 7 };

const whole = await client.chat.completions.create(fixed);
let text = "";
for await (const chunk of await client.chat.completions.create({ ...fixed, stream: true })) {
  text += chunk.choices[0]?.delta?.content ?? "";
}
assert.equal(text, whole.choices[0].message.content);
console.log("openai: ok");

const provider = createOpenAICompatible({ name: "ottava", baseURL: `${address}/v1`, apiKey: key, includeUsage: true });
const options = { model: provider.chatModel(model), prompt: "Name a colour.", maxOutputTokens: 12, seed: 7 };
const generated = await generateText(options);
let streamed = "";
const stream = streamText(options);
for await (const part of stream.textStream) streamed += part;
assert.equal(streamed, generated.text);
assert.ok((await stream.usage).outputTokens > 0);
console.log("ai: ok");
