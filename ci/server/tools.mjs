// Tools through the AI SDK: `node tools.mjs ADDRESS KEY`.
import assert from "node:assert/strict";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, jsonSchema, streamText, tool } from "ai";

const [address, key] = process.argv.slice(2);
const models = await (await fetch(`${address}/v1/models`, { headers: { authorization: `Bearer ${key}` } })).json();
const provider = createOpenAICompatible({ name: "ottava", baseURL: `${address}/v1`, apiKey: key });
const asked = [];
const weather = tool({
  description: "The weather of a city.",
  inputSchema: jsonSchema({
    type: "object",
    properties: { city: { type: "string", enum: ["Oslo", "Rome"] } },
    required: ["city"],
    additionalProperties: false,
  }),
  execute: async ({ city }) => {
    asked.push(city);
    return `Rain in ${city}.`;
  },
});
const options = {
  model: provider.chatModel(models.data[0].id),
  prompt: "How is the weather in Oslo?",
  tools: { weather },
  toolChoice: "required",
  maxOutputTokens: 60,
  seed: 7,
};
const whole = await generateText(options);
assert.equal(whole.finishReason, "tool-calls");
assert.deepEqual(asked, whole.toolCalls.map((call) => call.input.city));
assert.equal(whole.toolResults[0].output, `Rain in ${asked[0]}.`);
const stream = streamText(options);
await stream.consumeStream();
assert.deepEqual((await stream.toolCalls).map((call) => call.input), whole.toolCalls.map((call) => call.input));
console.log("ai with tools: ok");
