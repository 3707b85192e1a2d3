// The unmodified Node SDKs against a running router. Usage: node sdk.mjs BASE_URL ADMIN_URL MODEL.
import assert from "node:assert/strict";
import OpenAI from "openai";
import Anthropic from "@anthropic-ai/sdk";

const [base, admin, model] = process.argv.slice(2);
const openai = new OpenAI({ baseURL: base + "/v1", apiKey: "sk-test", maxRetries: 0 });
const claude = new Anthropic({ baseURL: base, apiKey: "sk-test", maxRetries: 0 });
const story = "Tell me about the river and the stone. ".repeat(20);
const turns = async () => (await fetch(admin + "/turns?n=1000")).json();

const checks = {
  async chat() {
    const got = await openai.chat.completions.create({ model, messages: [{ role: "user", content: story }], max_tokens: 20 });
    assert.ok(got.choices[0].message.content);
    assert.ok(!JSON.stringify(got).includes("kv_transfer_params"));
  },
  async chatStream() {
    const ask = { model, messages: [{ role: "user", content: story }], max_tokens: 30, temperature: 0 };
    const whole = await openai.chat.completions.create(ask);
    let text = "", usage;
    for await (const c of await openai.chat.completions.create({ ...ask, stream: true, stream_options: { include_usage: true } })) {
      text += c.choices[0]?.delta?.content ?? "";
      usage = c.usage ?? usage;
    }
    assert.equal(text, whole.choices[0].message.content);
    assert.equal(usage.completion_tokens, whole.usage.completion_tokens);
  },
  async chatTools() {
    const tools = [{ type: "function", function: { name: "look", parameters: { type: "object", properties: { z: { type: "string" } } } } }];
    const runner = await openai.chat.completions.create({ model, tools, max_tokens: 10, messages: [{ role: "user", content: "Look." }] });
    assert.ok(runner.choices[0].finish_reason);
  },
  async chatAbort() {
    const stream = await openai.chat.completions.create({ model, messages: [{ role: "user", content: story }], max_tokens: 4000, stream: true, ignore_eos: true });
    let n = 0;
    for await (const _ of stream) if (++n === 5) break; // the SDK aborts the request
    for (let i = 0; i < 100 && !(await turns()).some((t) => t.status === 499); i++) await new Promise((r) => setTimeout(r, 100));
    assert.ok((await turns()).some((t) => t.status === 499));
  },
  async responses() {
    const first = await openai.responses.create({ model, input: story, max_output_tokens: 20 });
    assert.ok(first.output_text);
    const then = await openai.responses.create({ model, input: "And then?", previous_response_id: first.id, max_output_tokens: 10 });
    assert.ok(then.usage.input_tokens > first.usage.input_tokens);
  },
  async responsesStream() {
    const kinds = [];
    for await (const ev of await openai.responses.create({ model, input: story, max_output_tokens: 10, stream: true })) kinds.push(ev.type);
    assert.equal(kinds[0], "response.created");
    assert.match(kinds.at(-1), /response\.(completed|incomplete)/);
  },
  async messages() {
    const got = await claude.messages.create({ model, max_tokens: 10, messages: [{ role: "user", content: story }] });
    assert.ok(got.content[0].text);
  },
  async messagesStream() {
    const stream = claude.messages.stream({ model, max_tokens: 20, messages: [{ role: "user", content: story }] });
    let text = "";
    stream.on("text", (t) => (text += t));
    const final = await stream.finalMessage();
    assert.equal(final.content[0].text, text);
  },
  async errors() {
    await assert.rejects(openai.chat.completions.create({ model: "no-such", messages: [] }), OpenAI.APIError);
    await assert.rejects(claude.messages.create({ model: "no-such", max_tokens: 1, messages: [{ role: "user", content: "x" }] }), Anthropic.APIError);
  },
};

let failed = 0;
for (const [name, check] of Object.entries(checks)) {
  try {
    await check();
    console.log("ok      node", name);
  } catch (e) {
    failed++;
    console.log("FAILED  node", name, e);
  }
}
console.log(`${Object.keys(checks).length - failed} passed, ${failed} failed`);
process.exit(failed);
