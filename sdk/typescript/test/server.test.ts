// The client with the real server and its built-in agent. `SANDBOX_AGENT_BIN` names the program.

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import test, { after, before } from "node:test";
import { fileURLToPath } from "node:url";

import {
  isError,
  isItemDelta,
  isMessage,
  isParsed,
  isPermissionAsked,
  isQuestionAsked,
  isTurnEnded,
  SandboxAgent,
  SandboxAgentError,
  textOf,
  type DefaultEvent,
  type FullEvent,
  type Session,
} from "@carrel/sdk";

import { isAlive } from "./support/fake.js";
import { collect } from "./support/loopback.js";

let agent: SandboxAgent;
let sessions = 0;

before(async () => {
  assert.ok(process.env.SANDBOX_AGENT_BIN, "SANDBOX_AGENT_BIN has to name a sandbox-agent");
  agent = await SandboxAgent.start();
});

after(() => agent?.dispose());

async function session(): Promise<Session> {
  const id = `session-${++sessions}`;
  const { healthy, agentSessionId } = await agent.createSession(id, { agent: "mock" });
  assert.deepEqual([healthy, agentSessionId], [true, `mock-${id}`]);
  return agent.session(id);
}

/** The text of all messages, each with its role. */
function words(events: (DefaultEvent | FullEvent)[]): string[] {
  return events.flatMap((event) => {
    if (!isMessage(event) || !isParsed(event.data.message)) return [];
    return [`${event.data.message.role}: ${textOf(event.data.message)}`];
  });
}

async function until<E>(events: AsyncIterable<E>, last: (event: E) => boolean): Promise<E[]> {
  const seen: E[] = [];
  for await (const event of events) {
    seen.push(event);
    if (last(event)) break;
  }
  return seen;
}

test("the server lists agents, modes and models", async () => {
  assert.equal((await agent.getHealth()).status, "ok");
  const { agents } = await agent.listAgents();
  assert.deepEqual(agents.filter(({ id }) => ["claude", "codex", "mock"].includes(id)).map(({ id }) => id), ["claude", "codex", "mock"]);
  assert.equal(agents.find(({ id }) => id === "mock")?.installed, true);
  const { modes } = await agent.getAgentModes("mock");
  assert.deepEqual(modes.map(({ id }) => id), ["build", "plan"]);
  assert.ok(Array.isArray((await agent.getAgentModels("mock")).models));
  assert.equal(await agent.installAgent("mock"), undefined);
});

//= agents.sdk.server-mode-connect-base
//= agents.sdk.sandboxagent-connect-sandboxagent-start
test("a wrong token is an error with problem details", async () => {
  const unauthorized = await SandboxAgent.connect({ baseUrl: agent.baseUrl, token: "wrong" });
  await assert.rejects(unauthorized.listAgents(), { status: 401, code: "token_invalid" });
  const friend = await SandboxAgent.connect({ baseUrl: agent.baseUrl, token: agent.server!.token });
  assert.ok((await friend.listAgents()).agents.length > 0);
});

test("a session is created, read, changed and deleted", async () => {
  const one = await session();
  const info = await one.info();
  assert.deepEqual([info.agent, info.agentMode, info.permissionMode, info.status], ["mock", "build", "default", "idle"]);
  assert.ok((await agent.listSessions()).sessions.some(({ sessionId }) => sessionId === one.id));
  assert.equal((await agent.updateSession(one.id, { title: "a title" })).title, "a title");
  await assert.rejects(agent.createSession(one.id, { agent: "mock" }), { status: 409, code: "session_already_exists" });
  await one.delete();
  await assert.rejects(one.info(), { status: 404, code: "session_not_found" });
});

test("errors have problem details", async () => {
  await assert.rejects(agent.createSession("nobody", { agent: "nobody" }), { status: 400, code: "unsupported_agent" });
  await assert.rejects(
    agent.createSession("odd", { agent: "mock", agentMode: "odd" }),
    (error) => error instanceof SandboxAgentError && error.status === 400 && error.problem?.title !== undefined,
  );
  const one = await session();
  await assert.rejects(agent.replyPermission(one.id, "nothing", "once"), { status: 400, code: "invalid_request" });
  await assert.rejects(agent.rejectQuestion(one.id, "nothing"), { status: 400, code: "invalid_request" });
});

//= agents.architecture-components.clients-create-sessions-send
test("a prompt returns the message of the agent", async () => {
  const one = await session();
  const result = await one.prompt("Reply with exactly the single word OK.", { messageId: "m-1" });
  assert.deepEqual([result.text, result.outcome], ["OK", "completed"]);
  assert.deepEqual(words(result.events)[0], "user: Reply with exactly the single word OK.");
  assert.ok(isTurnEnded(result.events.at(-1)!));
});

test("a turn is streamed to its end, and so is the next one", async () => {
  const one = await session();
  for (const text of ["first", "second"]) {
    assert.deepEqual(words(await collect(agent.streamTurn(one.id, `echo ${text}`))), [`user: echo ${text}`, `assistant: ${text}`]);
  }
});

test("the full view contains the default view", async () => {
  const one = await session();
  const full = (await one.prompt("markdown")).events;
  assert.ok(full.some(isItemDelta));
  const pages = [await agent.getEvents(one.id), await agent.getEvents(one.id, { view: "full", includeRaw: true })] as const;
  assert.deepEqual(pages[0].events[0]!.data.started?.message, "session.created");
  assert.deepEqual(words(pages[0].events), words(pages[1].events));
  for (const { events, hasMore } of pages) {
    assert.deepEqual(events.map(({ id }) => id), events.map((_, index) => index + 1));
    assert.equal(hasMore, false);
  }
  assert.ok(pages[1].events.length > pages[0].events.length);
  const { events, hasMore } = await agent.getEvents(one.id, { offset: 1, limit: 1 });
  assert.deepEqual([events.map(({ id }) => id), hasMore], [[2], true]);
});

test("a retried prompt runs once, and another text with its id is an error", async () => {
  const one = await session();
  const prompt = { message: "echo once", messageId: "the-same" };
  await agent.postMessage(one.id, prompt);
  await agent.postMessage(one.id, prompt);
  await assert.rejects(agent.postMessage(one.id, { ...prompt, message: "echo twice" }), { status: 409, code: "conflict" });
  await one.prompt("echo behind");
  const { events } = await agent.getEvents(one.id);
  assert.deepEqual(words(events), ["user: echo once", "assistant: once", "user: echo behind", "assistant: behind"]);
});

test("a turn that is streamed again with its id runs once", async () => {
  const one = await session();
  const prompt = { message: "echo once", messageId: "the-same" };
  const whole = await collect(agent.streamTurn(one.id, prompt));
  const again = await collect(agent.streamTurn(one.id, prompt));
  assert.deepEqual(again.map(({ id }) => id), whole.map(({ id }) => id));
  assert.deepEqual(words((await agent.getEvents(one.id)).events), ["user: echo once", "assistant: once"]);
});

/** A client whose streams are interrupted after this many bytes. */
async function cutting(bytes: number): Promise<{ client: SandboxAgent; connections: () => number }> {
  let connections = 0;
  const client = await SandboxAgent.connect({
    baseUrl: agent.baseUrl,
    token: agent.server!.token,
    fetch: async (url, init) => {
      const response = await fetch(url, init);
      if (response.headers.get("content-type") !== "text/event-stream") return response;
      connections++;
      let left = bytes;
      const cut = new TransformStream<Uint8Array, Uint8Array>({
        transform(piece, controller) {
          controller.enqueue(piece.subarray(0, left));
          left -= piece.length;
          if (left <= 0) controller.error(new Error("cut"));
        },
      });
      return new Response(response.body!.pipeThrough(cut), { status: response.status, headers: response.headers });
    },
  });
  return { client, connections: () => connections };
}

const numbered = (count: number) => Array.from({ length: count }, (_, index) => `assistant: burst ${index + 1}`);
const FAST = { initialMs: 0, maxMs: 1, attempts: 20 };

//= promises.agents-server.events-typescript-client-loses
test("a burst arrives complete and in order over an interrupted stream", async () => {
  const one = await session();
  const { client, connections } = await cutting(64 << 10);
  await agent.postMessage(one.id, "burst 5000");
  const events = client.streamEvents(one.id, { reconnect: FAST });
  const seen = await until(events, (event) => words([event])[0] === "assistant: burst 5000");
  assert.deepEqual(seen.map(({ id }) => id), seen.map((_, index) => index + 1));
  assert.deepEqual(words(seen).slice(1), numbered(5000));
  assert.ok(connections() > 5, `${connections()} connections`);
});

//= promises.agents-server.events-typescript-client-loses
test("a turn arrives complete and in order over an interrupted stream", async () => {
  const one = await session();
  const { client, connections } = await cutting(16 << 10);
  const seen = await collect(client.streamTurn(one.id, "burst 500", { reconnect: FAST }));
  assert.deepEqual(words(seen), ["user: burst 500", ...numbered(500)]);
  assert.ok(connections() > 3, `${connections()} connections`);
  assert.deepEqual(words((await agent.getEvents(one.id)).events), words(seen));
});

test("permission requests and questions are answered during the turn", async () => {
  const one = await session();
  const asked: string[] = [];
  const permitted = await one.prompt("permission", {
    onPermission: ({ id }) => (asked.push(id), "once"),
  });
  assert.deepEqual([permitted.outcome, asked.length], ["completed", 2]);
  const answered = await one.prompt("question", {
    onQuestion: ({ questions }) => (asked.push("question"), questions.map(({ options }) => [options[0]?.label ?? "yes"])),
  });
  assert.deepEqual([answered.outcome, asked.length], ["completed", 4]);
});

//= promises.agents-server.answers-question-permission
test("a request without an answer stays pending", async () => {
  const one = await session();
  const { outcome, events } = await one.prompt("question");
  assert.equal(outcome, "waiting");
  assert.equal((await one.info()).status, "waiting");
  const open = events.filter(isQuestionAsked).map((event) => event.data.questionAsked.id);
  assert.equal(open.length, 1);
  const answering = one.events({ view: "full", offset: events.at(-1)!.id });
  await agent.rejectQuestion(one.id, open[0]!);
  for await (const event of answering) {
    if (isQuestionAsked(event)) await agent.rejectQuestion(one.id, event.data.questionAsked.id);
    if (isTurnEnded(event)) break;
  }
  await assert.rejects(agent.rejectQuestion(one.id, open[0]!), { status: 400 });
});

test("the stream of a turn with wait 0 closes, and the turn continues", async () => {
  const one = await session();
  const events = await collect(agent.streamTurn(one.id, "permission", { wait: 0 }));
  assert.ok(events.some(isPermissionAsked));
  assert.equal((await one.info()).status, "waiting");
});

test("a turn is interrupted and the session continues", async () => {
  const one = await session();
  const turn = await one.prompt("slow", { onEvent: (event) => event.data.turnStarted && void one.abort() });
  assert.equal(turn.outcome, "interrupted");
  assert.equal((await one.prompt("echo still here")).text, "still here");
});

test("a crash of the agent is reported, and the session is resumed", async () => {
  const one = await session();
  const { outcome, events } = await one.prompt("crash 3");
  assert.equal(outcome, "failed");
  const died = events.find(isError)?.data.error;
  assert.equal(died?.kind, "process_exit");
  assert.equal((died?.details as { exitCode?: number }).exitCode, 3);
  assert.equal((await one.info()).exit?.exitCode, 3);
  await one.resume();
  assert.equal((await one.prompt("echo back again")).text, "back again");
});

test("a terminated session takes no prompt", async () => {
  const one = await session();
  await one.terminate();
  await one.terminate();
  assert.deepEqual([(await one.info()).status, (await one.info()).exit?.reason], ["ended", "terminated"]);
  await assert.rejects(agent.postMessage(one.id, "hello"), { status: 400 });
});

test("a stream ends with its session", async () => {
  const one = await session();
  const seen: DefaultEvent[] = [];
  for await (const event of one.events()) {
    seen.push(event);
    if (event.data.started) await one.delete();
  }
  assert.equal(seen[0]?.data.started?.message, "session.created");
});

//= agents.sdk.sandboxagent-connect-sandboxagent-start
test("dispose closes the streams and stops the server", async () => {
  const own = await SandboxAgent.start();
  const { pid } = own.server!;
  await own.createSession("s", { agent: "mock" });
  const events = collect(own.streamEvents("s"));
  await own.dispose();
  await events;
  assert.equal(isAlive(pid), false);
});

//= agents.sdk.sandboxagent-connect-sandboxagent-start
test("spawn may be true", async (t) => {
  const own = await SandboxAgent.start({ spawn: true });
  t.after(() => own.dispose());
  assert.deepEqual(await own.getHealth(), { status: "ok" });
  assert.equal(isAlive(own.server!.pid), true);
});

//= agents.sdk.spawns-sandbox-agent-server
test("a token in the arguments is required and accepted", async (t) => {
  const own = await SandboxAgent.start({ spawn: { tokenInArguments: true, token: "s3cret" } });
  t.after(() => own.dispose());
  assert.deepEqual(await own.listSessions(), { sessions: [] });
  const anonymous = await SandboxAgent.connect({ baseUrl: own.baseUrl });
  await assert.rejects(anonymous.listSessions(), { name: "SandboxAgentError", status: 401 });
});

//= promises.agents-server.servers-starts-leaves-behind
test("a server exits with the process that started it, even if that is killed", async () => {
  const words = [fileURLToPath(new URL("support/parent.js", import.meta.url)), "waits", process.env.SANDBOX_AGENT_BIN!, "inherit"];
  const parent = spawn(process.execPath, words, { stdio: ["pipe", "pipe", "ignore"] });
  // The server writes to the same pipe as the parent, which is closed when both are gone.
  const closed = once(parent, "close");
  const [started] = (await once(parent.stdout, "data")) as [Buffer];
  assert.match(String(started), /^started http/);
  parent.kill("SIGKILL");
  assert.deepEqual(await closed, [null, "SIGKILL"]);
});
