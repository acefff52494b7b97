// Streams over failing connections: each event once, in order.

import assert from "node:assert/strict";
import { once } from "node:events";
import test, { type TestContext } from "node:test";

import { ConnectionError, SandboxAgent, SandboxAgentError } from "@carrel/sdk";

import { type Answer, beginStream, collect, frame, problem, serve } from "./support/loopback.js";

const FAST = { initialMs: 0, maxMs: 1 };

async function client(t: TestContext, answer: Answer) {
  const server = await serve(t, answer);
  const agent = await SandboxAgent.connect({ baseUrl: server.url, skipHealthCheck: true });
  t.after(() => agent.dispose());
  return { agent, received: server.received };
}

//= promises.agents-server.events-typescript-client-loses
test("a stream that is interrupted at any byte loses and repeats nothing", async (t) => {
  const frames = [1, 2, 3].map((id) => `: keep-alive\r\n\r\n${frame(id, { raw: `ü🦀 ${id}` })}`);
  const whole = Buffer.from(frames.join(""));
  let cut = 0;
  let connections = 0;
  const { agent } = await client(t, ({ query }, response) => {
    if (++connections === 1) {
      beginStream(response).write(whole.subarray(0, cut), () => response.destroy());
      return;
    }
    beginStream(response).write(frames.slice(Number(query.get("offset"))).join(""));
  });
  for (cut = 0; cut <= whole.length; cut++) {
    connections = 0;
    const ids: number[] = [];
    for await (const event of agent.streamEvents("s", { reconnect: FAST })) {
      ids.push(event.id);
      if (event.id === 3) break;
    }
    assert.deepEqual(ids, [1, 2, 3], `cut at byte ${cut}`);
    // Without its last blank line, the last event needs another connection.
    assert.equal(connections, cut < whole.length ? 2 : 1);
  }
});

test("repeated events are skipped", async (t) => {
  let connections = 0;
  const { agent } = await client(t, (_, response) => {
    const sent = ++connections === 1 ? [1, 2] : [1, 2, 3];
    beginStream(response).end(sent.map((id) => frame(id)).join(""));
  });
  const ids: number[] = [];
  for await (const event of agent.streamEvents("s", { reconnect: FAST })) {
    ids.push(event.id);
    if (event.id === 3) break;
  }
  assert.deepEqual(ids, [1, 2, 3]);
});

test("every connection requests view, raw messages and offset", async (t) => {
  const { agent, received } = await client(t, ({ query }, response) => {
    const next = Number(query.get("offset")) + 1;
    beginStream(response).end(frame(next));
  });
  for await (const event of agent.streamEvents("s", { view: "full", includeRaw: true, offset: 7, reconnect: FAST })) {
    if (event.id === 9) break;
  }
  assert.deepEqual(received.map(({ query }) => query.toString()), [
    "view=full&includeRaw=true&offset=7",
    "view=full&includeRaw=true&offset=8",
  ]);
});

test("a stream ends when its session is deleted", async (t) => {
  let connections = 0;
  const { agent } = await client(t, (_, response) => {
    if (++connections === 1) beginStream(response).end(frame(1));
    else problem(response, 404, "session_not_found", "session not found: s");
  });
  assert.equal((await collect(agent.streamEvents("s", { reconnect: FAST }))).length, 1);
});

test("the stream of an unknown session is an error", async (t) => {
  const { agent } = await client(t, (_, response) => problem(response, 404, "session_not_found", "session not found: s"));
  await assert.rejects(collect(agent.streamEvents("s")), { name: "SandboxAgentError", code: "session_not_found" });
});

test("a temporarily unavailable server is retried", async (t) => {
  let connections = 0;
  const { agent } = await client(t, (_, response) => {
    connections++;
    if (connections === 2) response.destroy();
    else if (connections === 3) problem(response, 503, "unavailable", "later");
    else beginStream(response).end(frame(connections === 1 ? 1 : 2));
  });
  const ids: number[] = [];
  for await (const event of agent.streamEvents("s", { reconnect: FAST })) {
    ids.push(event.id);
    if (event.id === 2) break;
  }
  assert.deepEqual([ids, connections], [[1, 2], 4]);
});

test("a permanent error ends the stream at once", async (t) => {
  let connections = 0;
  const { agent } = await client(t, (_, response) => {
    if (++connections === 1) beginStream(response).end(frame(1));
    else problem(response, 401, "token_invalid", "token invalid");
  });
  await assert.rejects(
    collect(agent.streamEvents("s", { reconnect: FAST })),
    (error) => error instanceof SandboxAgentError && error.status === 401,
  );
  assert.equal(connections, 2);
});

test("a stream gives up after consecutive failures without an event", async (t) => {
  let connections = 0;
  const { agent } = await client(t, (_, response) => {
    connections++;
    if (connections <= 2) beginStream(response).write(frame(connections), () => response.destroy());
    else response.destroy();
  });
  await assert.rejects(collect(agent.streamEvents("s", { reconnect: { ...FAST, attempts: 3 } })), ConnectionError);
  assert.equal(connections, 4, "the failure behind the second event is the first of three");
});

test("a stream gives up after a time without a connection", async (t) => {
  let connections = 0;
  const { agent } = await client(t, (_, response) => {
    if (++connections === 1) beginStream(response).end(frame(1));
    else response.destroy();
  });
  await assert.rejects(collect(agent.streamEvents("s", { reconnect: { ...FAST, giveUpMs: 0 } })), ConnectionError);
  assert.equal(connections, 2);
});

test("a stream that never connects gives up soon", async (t) => {
  let connections = 0;
  const { agent } = await client(t, (_, response) => {
    connections++;
    response.destroy();
  });
  await assert.rejects(collect(agent.streamEvents("s", { reconnect: FAST })), ConnectionError);
  assert.equal(connections, 5);
});

test("a silent connection times out", async (t) => {
  let connections = 0;
  const { agent } = await client(t, (_, response) => {
    beginStream(response).write(frame(++connections));
  });
  const ids: number[] = [];
  for await (const event of agent.streamEvents("s", { reconnect: { ...FAST, silenceMs: 1_000 } })) {
    ids.push(event.id);
    if (event.id === 2) break;
  }
  assert.deepEqual(ids, [1, 2]);
});

test("a response that is not a stream is an error without a retry", async (t) => {
  const { agent, received } = await client(t, (_, response) => {
    response.writeHead(200, { "content-type": "text/html" }).end("<p>log in</p>");
  });
  await assert.rejects(collect(agent.streamEvents("s")), /text\/html/);
  assert.equal(received.length, 1);
});

for (const [how, end] of [
  ["a signal", (_: SandboxAgent, controller: AbortController) => controller.abort()],
  ["dispose", (agent: SandboxAgent, _: AbortController) => void agent.dispose()],
] as const) {
  test(`${how} ends a stream and its connection`, async (t) => {
    let closed: Promise<unknown> | undefined;
    const { agent } = await client(t, (_, response) => {
      closed = once(response, "close");
      beginStream(response).write(frame(1));
    });
    const controller = new AbortController();
    const ids: number[] = [];
    for await (const event of agent.streamEvents("s", { signal: controller.signal })) {
      ids.push(event.id);
      setImmediate(() => end(agent, controller));
    }
    await closed;
    assert.deepEqual(ids, [1]);
  });
}

test("a signal cancels the delay between two connections", async (t) => {
  const controller = new AbortController();
  const { agent } = await client(t, (_, response) => void beginStream(response).end(frame(1)));
  const wait = { initialMs: 2 ** 30, maxMs: 2 ** 30 };
  const timer = globalThis.setTimeout;
  t.mock.method(globalThis, "setTimeout", (then: () => void, ms: number) => {
    if (ms >= wait.initialMs / 2) queueMicrotask(() => controller.abort());
    return timer(then, ms);
  });
  assert.equal((await collect(agent.streamEvents("s", { signal: controller.signal, reconnect: wait }))).length, 1);
});

test("a reader that stops closes the connection", async (t) => {
  let closed: Promise<unknown> | undefined;
  const { agent } = await client(t, (_, response) => {
    closed = once(response, "close");
    beginStream(response).write(frame(1));
  });
  for await (const _ of agent.streamEvents("s")) break;
  await closed;
});
