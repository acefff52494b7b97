// Requests and responses.

import assert from "node:assert/strict";
import test, { type TestContext } from "node:test";

import { ConnectionError, SandboxAgent, SandboxAgentError } from "@carrel/sdk";

import { skipTimer } from "./support/fake.js";
import { type Answer, json, problem, serve } from "./support/loopback.js";

async function client(t: TestContext, answer: Answer, options: { token?: string; headers?: Record<string, string> } = {}) {
  const server = await serve(t, answer);
  const agent = await SandboxAgent.connect({ baseUrl: server.url, skipHealthCheck: true, ...options });
  return { agent, received: server.received };
}

const answered: Answer = (_, response) => json(response, {});

test("every method requests its route", async (t) => {
  const { agent, received } = await client(t, answered);
  await agent.getHealth();
  await agent.listAgents();
  await agent.installAgent("claude");
  await agent.installAgent("codex", { reinstall: true });
  await agent.getAgentModes("mock");
  await agent.getAgentModels("mock");
  await agent.createSession("s", { agent: "mock", directory: "/work" });
  await agent.listSessions();
  await agent.getSession("s");
  await agent.updateSession("s", { title: "a title" });
  await agent.postMessage("s", { message: "hello", messageId: "m" });
  await agent.getEvents("s");
  await agent.getEvents("s", { offset: 3, limit: 2, view: "full", includeRaw: true });
  await agent.getEventsSse("s", { offset: 3 });
  await agent.postMessageStream("s", { message: "hello", messageId: "m" }, { wait: 5 });
  await agent.replyQuestion("s", "q", [["Yes"], ["a", "b"]]);
  await agent.rejectQuestion("s", "q");
  await agent.replyPermission("s", "p", "once");
  await agent.replyPermission("s", "p", { reply: "reject", message: "not there" });
  await agent.abort("s");
  await agent.resumeSession("s");
  await agent.terminateSession("s");
  await agent.deleteSession("s");
  const lines = received.map(({ method, path, query, body }) =>
    [method, path + (query.size > 0 ? `?${query}` : ""), ...(body === undefined ? [] : [JSON.stringify(body)])].join(" "),
  );
  assert.deepEqual(lines, [
    "GET /v1/health",
    "GET /v1/agents",
    "POST /v1/agents/claude/install {}",
    'POST /v1/agents/codex/install {"reinstall":true}',
    "GET /v1/agents/mock/modes",
    "GET /v1/agents/mock/models",
    'POST /v1/sessions/s {"agent":"mock","directory":"/work"}',
    "GET /v1/sessions",
    "GET /v1/sessions/s",
    'PATCH /v1/sessions/s {"title":"a title"}',
    'POST /v1/sessions/s/messages {"message":"hello","messageId":"m"}',
    "GET /v1/sessions/s/events",
    "GET /v1/sessions/s/events?offset=3&limit=2&view=full&includeRaw=true",
    "GET /v1/sessions/s/events/sse?offset=3",
    'POST /v1/sessions/s/messages/stream?wait=5 {"message":"hello","messageId":"m"}',
    'POST /v1/sessions/s/questions/q/reply {"answers":[["Yes"],["a","b"]]}',
    "POST /v1/sessions/s/questions/q/reject",
    'POST /v1/sessions/s/permissions/p/reply {"reply":"once"}',
    'POST /v1/sessions/s/permissions/p/reply {"reply":"reject","message":"not there"}',
    "POST /v1/sessions/s/abort",
    "POST /v1/sessions/s/resume",
    "POST /v1/sessions/s/terminate",
    "DELETE /v1/sessions/s",
  ]);
});

//= agents.sdk.server-mode-connect-base
test("token, headers and content type are sent with every request", async (t) => {
  const { agent, received } = await client(t, answered, { token: "secret", headers: { "x-trace": "7" } });
  await agent.createSession("s", { agent: "mock" });
  await agent.getHealth();
  assert.deepEqual(
    received.map(({ headers }) => [headers.authorization, headers["x-trace"], headers["content-type"]]),
    [
      ["Bearer secret", "7", "application/json"],
      ["Bearer secret", "7", undefined],
    ],
  );
});

//= agents.sdk.server-mode-connect-base
//= agents.sdk.sandboxagent-connect-sandboxagent-start
test("without a token no authorization is sent", async (t) => {
  const { agent, received } = await client(t, answered);
  await agent.createSession("s", { agent: "mock" });
  await agent.getHealth();
  assert.deepEqual(received.map(({ headers }) => headers.authorization), [undefined, undefined]);
});

test("a server has five seconds to be healthy by default", async (t) => {
  const server = await serve(t, () => undefined);
  skipTimer(t, 5_000);
  await assert.rejects(SandboxAgent.connect({ baseUrl: server.url }), /not healthy within 5000 ms/);
});

test("an id may have any character and stays one path segment", async (t) => {
  const { agent, received } = await client(t, answered);
  await agent.getSession("a/b ?ü");
  assert.equal(received[0]!.path, "/v1/sessions/a%2Fb%20%3F%C3%BC");
  for (const id of ["", ".", ".."]) assert.throws(() => agent.getSession(id), TypeError);
});

test("a base URL keeps its path without a trailing slash", async (t) => {
  const server = await serve(t, answered);
  const agent = await SandboxAgent.connect({ baseUrl: `${server.url}/behind/proxy/`, skipHealthCheck: true });
  await agent.listAgents();
  assert.equal(server.received[0]!.path, "/behind/proxy/v1/agents");
});

test("an empty response is undefined, whatever its status", async (t) => {
  let status = 204;
  const { agent } = await client(t, (_, response) => void response.writeHead(status).end());
  assert.equal(await agent.terminateSession("s"), undefined);
  status = 200;
  assert.equal(await agent.terminateSession("s"), undefined);
});

test("an error has its problem details", async (t) => {
  const { agent } = await client(t, (_, response) => problem(response, 404, "session_not_found", "session not found: s"));
  const error = await agent.getSession("s").catch((error: unknown) => error);
  assert.ok(error instanceof SandboxAgentError);
  assert.equal(error.status, 404);
  assert.equal(error.code, "session_not_found");
  assert.equal(error.message, "session not found: s");
  assert.equal(error.problem?.sessionId, "s");
  assert.equal(error.response.headers.get("content-type"), "application/problem+json");
});

for (const body of ["<h1>Bad Gateway</h1>", "null", '{"no":"problem"}', ""]) {
  test(`a response without problem details is still an error: ${body || "empty"}`, async (t) => {
    const { agent } = await client(t, (_, response) => void response.writeHead(502).end(body));
    await assert.rejects(agent.listAgents(), {
      name: "SandboxAgentError",
      status: 502,
      problem: undefined,
      message: "the server responded with 502 Bad Gateway",
    });
  });
}

test("an unreachable server is a connection error", async (t) => {
  const { agent } = await client(t, (_, response) => void response.destroy());
  await assert.rejects(agent.listAgents(), ConnectionError);
});

test("an aborted request fails with its own reason", async (t) => {
  const controller = new AbortController();
  const { agent } = await client(t, () => controller.abort(new Error("cancelled")));
  await assert.rejects(agent.listAgents({ signal: controller.signal }), /cancelled/);
});

//= agents.sdk.server-mode-connect-base
//= agents.sdk.waits-health-15-s
test("connect waits until the server is healthy", async (t) => {
  const server = await serve(t, (_, response) => {
    if (server.received.length === 1) response.destroy();
    else if (server.received.length === 2) problem(response, 503, "starting", "not yet");
    else json(response, { status: "ok" });
  });
  const agent = await SandboxAgent.connect({ baseUrl: server.url });
  assert.deepEqual(server.received.map(({ method, path }) => `${method} ${path}`), Array(3).fill("GET /v1/health"));
  assert.deepEqual(await agent.getHealth(), { status: "ok" });
  assert.equal(agent.server, undefined, "it has started no server");
});

test("connect reports why the server was not healthy in time", async (t) => {
  const server = await serve(t, (_, response) => problem(response, 503, "starting", "still starting"));
  await assert.rejects(
    SandboxAgent.connect({ baseUrl: server.url, timeoutMs: 1_000 }),
    (error) => error instanceof ConnectionError && /within 1000 ms: still starting/.test(error.message),
  );
});

test("connect times out on a server that does not respond", async (t) => {
  const server = await serve(t, () => undefined);
  await assert.rejects(SandboxAgent.connect({ baseUrl: server.url, timeoutMs: 100 }), ConnectionError);
});

test("a signal cancels connect", async (t) => {
  const controller = new AbortController();
  const server = await serve(t, () => controller.abort(new Error("cancelled")));
  await assert.rejects(SandboxAgent.connect({ baseUrl: server.url, signal: controller.signal }), /cancelled/);
});

test("a custom fetch is used for all requests", async () => {
  const asked: string[] = [];
  const agent = await SandboxAgent.connect({
    baseUrl: "http://nowhere.invalid",
    fetch: async (url) => {
      asked.push(url);
      return Response.json({ status: "ok" });
    },
  });
  await agent.getHealth();
  assert.deepEqual(asked, Array(2).fill("http://nowhere.invalid/v1/health"));
});

//= agents.sdk.sandboxagent-connect-sandboxagent-start
test("start without a server to start is an error", async () => {
  await assert.rejects(SandboxAgent.start({ spawn: false }), /SandboxAgent\.connect/);
});
