// Prompts: one turn as a stream, and idempotent retries.

import assert from "node:assert/strict";
import test, { type TestContext } from "node:test";

import { ConnectionError, SandboxAgent } from "@carrel/sdk";

import { type Answer, beginStream, collect, frame, problem, serve } from "./support/loopback.js";

async function client(t: TestContext, answer: Answer) {
  const server = await serve(t, answer);
  const agent = await SandboxAgent.connect({ baseUrl: server.url, skipHealthCheck: true });
  t.after(() => agent.dispose());
  return { agent, received: server.received };
}

test("a turn ends with its stream", async (t) => {
  const { agent, received } = await client(t, (_, response) => {
    beginStream(response).end(frame(4) + frame(5));
  });
  const ids = (await collect(agent.streamTurn("s", "hello", { view: "full" }))).map((event) => event.id);
  assert.deepEqual(ids, [4, 5]);
  const { method, path, query, body } = received[0]!;
  assert.deepEqual([method, path, query.toString()], ["POST", "/v1/sessions/s/messages/stream", "view=full&wait=86400"]);
  assert.equal(body.message, "hello");
  assert.match(body.messageId, /^[0-9a-f]{32}$/);
});

test("an interrupted turn resumes with the same id after the last event", async (t) => {
  const { agent, received } = await client(t, ({ query }, response) => {
    if (received.length === 1) beginStream(response).write(frame(4) + "id: 5\nda", () => response.destroy());
    else beginStream(response).end([4, 5, 6].filter((id) => id > Number(query.get("offset"))).map((id) => frame(id)).join(""));
  });
  const events = await collect(agent.streamTurn("s", { message: "hello", messageId: "m-1" }, { reconnect: { initialMs: 0 } }));
  assert.deepEqual(events.map((event) => event.id), [4, 5, 6]);
  assert.deepEqual(received.map(({ body }) => body), Array(2).fill({ message: "hello", messageId: "m-1" }));
  assert.deepEqual(received.map(({ query }) => query.get("offset")), [null, "4"]);
});

test("a turn of an unknown session is an error", async (t) => {
  const { agent } = await client(t, (_, response) => problem(response, 404, "session_not_found", "session not found: s"));
  await assert.rejects(collect(agent.streamTurn("s", "hello")), { status: 404 });
});

test("a turn without further events ends", async (t) => {
  const { agent } = await client(t, (_, response) => {
    response.writeHead(204).end();
  });
  assert.deepEqual(await collect(agent.streamTurn("s", "hello")), []);
});

test("a prompt whose response is lost is retried with the same id", async (t) => {
  const { agent, received } = await client(t, (_, response) => {
    if (received.length < 3) response.destroy();
    else response.writeHead(204).end();
  });
  assert.equal(await agent.postMessage("s", "hello"), undefined);
  assert.equal(received.length, 3);
  assert.equal(new Set(received.map(({ body }) => body.messageId)).size, 1);
});

test("a prompt that never arrives fails after its retries", async (t) => {
  const { agent, received } = await client(t, (_, response) => void response.destroy());
  await assert.rejects(agent.postMessage("s", { message: "hello", messageId: "m-1" }), ConnectionError);
  assert.deepEqual(received.map(({ body }) => body.messageId), ["m-1", "m-1", "m-1"]);
});

test("a rejected prompt is not retried", async (t) => {
  const { agent, received } = await client(t, (_, response) => problem(response, 409, "conflict", "another text"));
  await assert.rejects(agent.postMessage("s", "hello"), { code: "conflict" });
  assert.equal(received.length, 1);
});

test("a prompt can be aborted between two attempts", async (t) => {
  const controller = new AbortController();
  const { agent, received } = await client(t, (_, response) => {
    response.destroy();
    controller.abort(new Error("cancelled"));
  });
  await assert.rejects(agent.postMessage("s", "hello", { signal: controller.signal }), /cancelled/);
  assert.equal(received.length, 1);
});

test("prompts without an id get different ones", async (t) => {
  const { agent, received } = await client(t, (_, response) => void response.writeHead(204).end());
  await agent.postMessage("s", "same");
  await agent.postMessage("s", "same");
  assert.notEqual(received[0]!.body.messageId, received[1]!.body.messageId);
});
