// The prompt of a session: its result, and answers to requests.

import assert from "node:assert/strict";
import test, { type TestContext } from "node:test";

import { SandboxAgent } from "@carrel/sdk";

import { beginStream, frame, problem, serve } from "./support/loopback.js";

const say = (role: string, text: string) => ({ message: { role, parts: [{ type: "text", text }] } });
const ASKED = { permissionAsked: { id: "p", sessionId: "s", permission: "bash", patterns: [], always: [] } };
const QUESTION = { questionAsked: { id: "q", sessionId: "s", questions: [{ question: "Proceed?", options: [] }] } };
const WITHDRAWN = { permissionResolved: { id: "p", outcome: "withdrawn" } };
const ENDED = { turnEnded: { turnId: "t", outcome: "completed" } };

/** A session whose turn sends `events`, and waits for the answer after each request. */
async function session(t: TestContext, events: object[], refusal?: string) {
  let answered = () => {};
  const server = await serve(t, async ({ path }, response) => {
    if (!path.endsWith("/messages/stream")) {
      answered();
      if (refusal) return problem(response, 400, "invalid_request", refusal);
      response.writeHead(204).end();
      return;
    }
    beginStream(response);
    for (const [index, data] of events.entries()) {
      const answer = new Promise<void>((resolve) => (answered = resolve));
      response.write(frame(index + 1, data));
      const isAnswered = !events[index + 1] || !("permissionResolved" in events[index + 1]!);
      if (("permissionAsked" in data || "questionAsked" in data) && isAnswered) await answer;
    }
    response.end();
  });
  const agent = await SandboxAgent.connect({ baseUrl: server.url, skipHealthCheck: true });
  t.after(() => agent.dispose());
  return { agent, session: agent.session("s"), received: server.received };
}

test("a prompt returns the last message and all events", async (t) => {
  const tool = { message: { role: "assistant", parts: [{ type: "tool_call", name: "ls", input: {} }] } };
  const events = [say("user", "hello"), say("assistant", "first"), say("assistant", "last"), tool, say("tool", "x"), ENDED];
  const { session: one, received } = await session(t, events);
  const seen: number[] = [];
  const result = await one.prompt("hello", { messageId: "m", onEvent: (event) => seen.push(event.id) });
  assert.equal(result.text, "last");
  assert.equal(result.outcome, "completed");
  assert.deepEqual(seen, [1, 2, 3, 4, 5, 6]);
  assert.deepEqual(result.events.map((event) => event.id), seen);
  assert.deepEqual(received[0]!.body, { message: "hello", messageId: "m" });
  assert.equal(received[0]!.query.get("view"), "full");
});

test("permission requests and questions are answered by callbacks", async (t) => {
  const { session: one, received } = await session(t, [ASKED, QUESTION, QUESTION, ENDED]);
  const answers = [[["Yes"]], null];
  const result = await one.prompt("hello", {
    onPermission: ({ permission }) => (permission === "bash" ? { reply: "reject", message: "no" } : "once"),
    onQuestion: async () => answers.shift()!,
  });
  assert.equal(result.outcome, "completed");
  assert.deepEqual(
    received.slice(1).map(({ path, body }) => [path, body]),
    [
      ["/v1/sessions/s/permissions/p/reply", { reply: "reject", message: "no" }],
      ["/v1/sessions/s/questions/q/reply", { answers: [["Yes"]] }],
      ["/v1/sessions/s/questions/q/reject", undefined],
    ],
  );
});

for (const [what, request] of [["permission", ASKED], ["question", QUESTION]] as const) {
  test(`a ${what} without a callback ends the wait but not the turn`, async (t) => {
    const { session: one, received } = await session(t, [say("assistant", "may I?"), request, ENDED]);
    const result = await one.prompt("hello");
    assert.deepEqual([result.outcome, result.text, result.events.length], ["waiting", "may I?", 2]);
    assert.equal(received.length, 1);
  });
}

test("a late answer does not fail the prompt", async (t) => {
  const { session: one } = await session(t, [ASKED, ENDED], "invalid request: unknown permission id: p");
  assert.equal((await one.prompt("hello", { onPermission: () => "once" })).outcome, "completed");
});

test("a rejected answer fails the prompt", async (t) => {
  const { session: one } = await session(t, [ASKED], "invalid request: unknown variant `perhaps`");
  await assert.rejects(one.prompt("hello", { onPermission: () => "perhaps" as "once" }), /perhaps/);
});

test("a withdrawn request is not waited for", async (t) => {
  const { session: one, received } = await session(t, [ASKED, WITHDRAWN, QUESTION, ENDED]);
  const withdrawn: boolean[] = [];
  const result = await one.prompt("hello", {
    onPermission: (_, { signal }) => new Promise(() => signal.addEventListener("abort", () => withdrawn.push(true))),
    onQuestion: () => [["Yes"]],
  });
  assert.deepEqual([result.outcome, withdrawn], ["completed", [true]]);
  assert.deepEqual(received.slice(1).map(({ path }) => path), ["/v1/sessions/s/questions/q/reply"]);
});

test("an aborted prompt does not wait for a callback", async (t) => {
  const { session: one } = await session(t, [ASKED, ENDED]);
  const controller = new AbortController();
  const onPermission = () => {
    controller.abort(new Error("cancelled"));
    return new Promise<never>(() => undefined);
  };
  await assert.rejects(one.prompt("hello", { signal: controller.signal, onPermission }), /cancelled/);
});

test("all requests with callbacks are answered before a prompt returns as waiting", async (t) => {
  const { session: one, received } = await session(t, [ASKED, QUESTION]);
  const result = await one.prompt("hello", { onPermission: async () => "once" as const });
  assert.deepEqual([result.outcome, result.events.length, received.length], ["waiting", 2, 2]);
});

test("an interrupted stream is an error", async (t) => {
  const { session: one } = await session(t, [say("assistant", "a")]);
  await assert.rejects(one.prompt("hello"), { name: "ConnectionError", message: "the stream ended before the turn did" });
});

test("a prompt is aborted when its client is disposed of", async (t) => {
  const { agent, session: one } = await session(t, [say("assistant", "a"), ASKED]);
  const onPermission = () => agent.dispose().then(() => "once" as const);
  await assert.rejects(one.prompt("hello", { onPermission }), { name: "AbortError" });
});

test("a prompt gives up on an unreachable server", async (t) => {
  const { url, received } = await serve(t, (_, response) => {
    if (received.length === 1) beginStream(response).write(frame(1), () => response.destroy());
    else response.destroy();
  });
  const agent = await SandboxAgent.connect({ baseUrl: url, skipHealthCheck: true });
  // The clock advances by a minute with each call.
  let now = performance.now();
  t.mock.method(performance, "now", () => (now += 60_000));
  await assert.rejects(agent.session("s").prompt("hello", { reconnect: { initialMs: 0 } }), { name: "ConnectionError" });
});

test("a callback that throws fails the prompt", async (t) => {
  const { session: one } = await session(t, [ASKED, ENDED]);
  const onPermission = () => {
    throw new Error("no one to ask");
  };
  await assert.rejects(one.prompt("hello", { onPermission }), /no one to ask/);
});

test("a crash of the agent fails the prompt", async (t) => {
  const { session: one } = await session(t, [say("assistant", "a"), { sessionEnded: { reason: "failed" } }]);
  assert.equal((await one.prompt("hello")).outcome, "failed");
});

test("an aborted prompt fails with its own reason", async (t) => {
  const { session: one } = await session(t, [say("assistant", "a"), ASKED]);
  const controller = new AbortController();
  const onEvent = () => controller.abort(new Error("cancelled"));
  await assert.rejects(one.prompt("hello", { signal: controller.signal, onEvent }), /cancelled/);
});
