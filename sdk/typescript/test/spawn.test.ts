// Starting a server: its program, its arguments, and failures.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { createServer } from "node:net";
import { join } from "node:path";
import test from "node:test";

import { ConnectionError, SandboxAgent, spawnSandboxAgent, type SpawnedServer } from "@carrel/sdk";

import { baseUrl } from "../dist/spawn/address.js";
import { findBinary, platformPackage } from "../dist/spawn/binary.js";
import { fake, isAlive, scratch, skipTimer, watch, writeFake } from "./support/fake.js";
import { collect, json, problem, serve } from "./support/loopback.js";

/** The arguments of the fake program. */
async function seen(server: SpawnedServer): Promise<{ words: string[]; given?: string }> {
  return (await fetch(`${server.baseUrl}/seen`)).json();
}

//= agents.sdk.port-given-free-token
//= agents.sdk.spawns-sandbox-agent-server
test("a server gets its address and token", async (t) => {
  const directory = scratch(t);
  const server = await spawnSandboxAgent({
    binaryPath: fake(t),
    env: { OWN: "mine" },
    cwd: directory,
    args: ["--data-dir", "sessions"],
  });
  t.after(() => server.dispose());
  const port = new URL(server.baseUrl).port;
  assert.match(server.token, /^[0-9a-f]{48}$/);
  assert.deepEqual(await seen(server), {
    words: ["server", "--host", "127.0.0.1", "--port", port, "--exit-with-stdin", "--data-dir", "sessions"],
    given: server.token,
    own: "mine",
    cwd: directory,
  });
});

//= agents.sdk.spawns-sandbox-agent-server
test("the token is an argument only on request", async (t) => {
  const server = await spawnSandboxAgent({ binaryPath: fake(t), tokenInArguments: true });
  t.after(() => server.dispose());
  const { words, given } = await seen(server);
  assert.deepEqual(words.slice(5), ["--token", server.token, "--exit-with-stdin"]);
  assert.equal(given, process.env.SANDBOX_AGENT_TOKEN);
});

test("an older program is started without --exit-with-stdin", async (t) => {
  const server = await spawnSandboxAgent({ binaryPath: fake(t), env: { FAKE: "older" } });
  t.after(() => server.dispose());
  assert.equal((await seen(server)).words.includes("--exit-with-stdin"), false);
});

//= agents.sdk.spawn-options
//= agents.sdk.port-given-free-token
test("host, port and token are configurable", async (t) => {
  const free = await new Promise<number>((resolve) => {
    const probe = createServer().listen(0, "127.0.0.1", () => {
      const { port } = probe.address() as { port: number };
      probe.close(() => resolve(port));
    });
  });
  const server = await spawnSandboxAgent({ binaryPath: fake(t), host: "127.0.0.1", port: free, token: "t" });
  t.after(() => server.dispose());
  assert.deepEqual([server.baseUrl, server.token], [`http://127.0.0.1:${free}`, "t"]);
});

//= agents.sdk.port-given-free-token
test("two servers have different ports and tokens", async (t) => {
  const binaryPath = fake(t);
  const servers = await Promise.all([spawnSandboxAgent({ binaryPath }), spawnSandboxAgent({ binaryPath })]);
  t.after(() => Promise.all(servers.map((server) => server.dispose())));
  assert.notEqual(servers[0].baseUrl, servers[1].baseUrl);
  assert.notEqual(servers[0].token, servers[1].token);
});

//= agents.sdk.dispose-sends-sigterm-sigkill
test("dispose stops the server and is idempotent", async (t) => {
  const server = await spawnSandboxAgent({ binaryPath: fake(t) });
  const { gone } = await watch(server.baseUrl);
  await Promise.all([server.dispose(), server.dispose()]);
  await gone;
  assert.equal(isAlive(server.pid), false);
});

//= agents.sdk.dispose-sends-sigterm-sigkill
test("a server is asked to end before it is killed", async (t) => {
  const said = join(scratch(t), "said");
  const server = await spawnSandboxAgent({ binaryPath: fake(t), env: { FAKE: "polite", OWN: said } });
  await server.dispose();
  assert.equal(readFileSync(said, "utf8"), "asked to end");
  assert.equal(await server.gone, "sandbox-agent ended with status 0");
});

//= agents.sdk.dispose-sends-sigterm-sigkill
//= promises.agents-server.servers-starts-leaves-behind
test("a server that ignores SIGTERM is killed after three seconds", async (t) => {
  const server = await spawnSandboxAgent({ binaryPath: fake(t), env: { FAKE: "deaf" } });
  const began = performance.now();
  await server.dispose();
  // Timers have whole milliseconds.
  assert.ok(performance.now() - began >= 2_999);
  assert.equal(await server.gone, "sandbox-agent ended by SIGKILL");
  assert.equal(isAlive(server.pid), false);
});

test("await using stops the server at the end of its block", { skip: !Symbol.asyncDispose }, async (t) => {
  const agent = await SandboxAgent.start({ spawn: { binaryPath: fake(t) } });
  const pid = agent.server!.pid;
  {
    await using _ = agent;
    assert.equal(isAlive(pid), true);
  }
  assert.equal(isAlive(pid), false);
});

//= agents.sdk.waits-health-15-s
test("a program that exits fails at once with the end of its output", async (t) => {
  const started = spawnSandboxAgent({ binaryPath: fake(t), env: { FAKE: "dies" }, timeoutMs: 2 ** 30 });
  await assert.rejects(started, /did not become healthy: sandbox-agent ended with status 3\nstarting\nerror: no room for sessions$/);
});

test("a killed program is reported with its signal", async (t) => {
  await assert.rejects(spawnSandboxAgent({ binaryPath: fake(t), env: { FAKE: "killed" } }), /by SIGKILL/);
});

//= agents.sdk.waits-health-15-s
test("the health of a started server is polled until it is good", async (t) => {
  const requests = join(scratch(t), "requests");
  const server = await spawnSandboxAgent({ binaryPath: fake(t), env: { FAKE: "slow", OWN: requests } });
  t.after(() => server.dispose());
  const polled = readFileSync(requests, "utf8").split("\n").filter((line) => line.includes("health"));
  assert.deepEqual(polled, Array(3).fill("GET /v1/health"));
});

//= agents.sdk.spawn-options
//= agents.sdk.waits-health-15-s
test("a program that is never healthy is stopped after the timeout", async (t) => {
  const started = spawnSandboxAgent({ binaryPath: fake(t), env: { FAKE: "never" }, timeoutMs: 500 });
  await assert.rejects(started, /not healthy within 500 ms/);
});

//= agents.sdk.waits-health-15-s
test("a program has fifteen seconds to be healthy by default", async (t) => {
  skipTimer(t, 15_000);
  const started = spawnSandboxAgent({ binaryPath: fake(t), env: { FAKE: "never" } });
  await assert.rejects(started, /not healthy within 15000 ms/);
});

//= agents.sdk.sandboxagent-connect-sandboxagent-start
test("a signal cancels the wait and stops the server", async (t) => {
  const controller = new AbortController();
  const onLog = () => controller.abort(new Error("cancelled"));
  const started = SandboxAgent.start({
    spawn: { binaryPath: fake(t), env: { FAKE: "never" }, log: "pipe", onLog, timeoutMs: 2 ** 30 },
    signal: controller.signal,
  });
  await assert.rejects(started, /cancelled/);
});

test("a taken port is retried a limited number of times", async (t) => {
  const said: string[] = [];
  const spawn = { binaryPath: fake(t), env: { FAKE: "port-taken" }, log: "pipe", onLog: (line: string) => said.push(line) } as const;
  await assert.rejects(spawnSandboxAgent(spawn), /Address already in use/);
  assert.equal(said.length, 3);
  await assert.rejects(spawnSandboxAgent({ ...spawn, port: 1 }), /Address already in use/);
  assert.equal(said.length, 4, "a port that was asked for is tried once");
});

test("a taken port is retried even without the server's output", async (t) => {
  const said: unknown[] = [];
  t.mock.method(process.stderr, "write", (text: unknown) => said.push(text));
  const started = spawnSandboxAgent({ binaryPath: fake(t), env: { FAKE: "port-taken" }, log: "inherit" });
  await assert.rejects(started, /Address already in use/);
  assert.equal(said.length, 3);
});

for (const [who, letsIn] of [["accepts every token", true], ["has another token", false]] as const) {
  test(`another server that ${who} is not mistaken for ours`, async (t) => {
    const { url, received } = await serve(t, ({ path }, response) => {
      if (letsIn || path === "/v1/health") json(response, { status: "ok" });
      else problem(response, 401, "token_invalid", "token invalid");
    });
    const port = Number(new URL(url).port);
    const started = spawnSandboxAgent({ binaryPath: fake(t), port, env: { FAKE: "never" }, timeoutMs: 2 ** 30 });
    await assert.rejects(started, /does not accept our token/);
    if (letsIn) assert.ok(received.every(({ headers }) => headers.authorization === undefined), "the other server received the token");
  });
}

test("a port with another server is replaced, with a new token", async (t) => {
  const lines: string[] = [];
  const tokens = new Set<string>();
  const real = globalThis.fetch;
  t.mock.method(globalThis, "fetch", (url: string, init?: RequestInit) => {
    const token = new Headers(init?.headers).get("authorization");
    if (token) tokens.add(token);
    return real(url, init);
  });
  const onLog = (line: string) => lines.push(line);
  const started = spawnSandboxAgent({ binaryPath: fake(t), env: { FAKE: "foreign" }, log: "pipe", onLog });
  await assert.rejects(started, /does not accept our token/);
  assert.deepEqual([lines.length, tokens.size], [3, 3]);
});

test("an exit of the server fails pending requests", async (t) => {
  const agent = await SandboxAgent.start({ spawn: { binaryPath: fake(t) } });
  t.after(() => agent.dispose());
  const { pid, gone } = agent.server!;
  const streams = [agent.streamEvents("s"), agent.streamEvents("s", { reconnect: { initialMs: 2 ** 30, maxMs: 2 ** 30 } })];
  const ends = streams.map((stream) => assert.rejects(collect(stream), ConnectionError));
  process.kill(pid, "SIGKILL");
  assert.equal(await gone, "sandbox-agent ended by SIGKILL");
  await Promise.all(ends);
  await assert.rejects(agent.session("s").prompt("hello"), { name: "ConnectionError", message: "sandbox-agent ended by SIGKILL" });
  await assert.rejects(agent.listAgents(), { name: "ConnectionError", message: "sandbox-agent ended by SIGKILL" });
});

//= agents.sdk.spawn-options
test("a server that fills its pipe does not block", async (t) => {
  const lines: string[] = [];
  const spawn = { binaryPath: fake(t), env: { FAKE: "loud" } };
  await (await spawnSandboxAgent(spawn)).dispose();
  await (await spawnSandboxAgent({ ...spawn, log: "pipe", onLog: (line) => lines.push(line) })).dispose();
  assert.deepEqual(lines.map((line) => line.length).sort(), [1 << 20, "listening".length]);
});

test("a program that cannot be executed is named", async (t) => {
  const missing = join(scratch(t), "missing");
  await assert.rejects(spawnSandboxAgent({ binaryPath: missing }), new RegExp(`binaryPath names ${missing}`));
  await assert.rejects(spawnSandboxAgent({ env: { SANDBOX_AGENT_BIN: missing } }), new RegExp(`SANDBOX_AGENT_BIN names ${missing}`));
});

//= agents.sdk.spawn-options
//= agents.sdk.embedded-program-sandbox-agent
test("the program is configured, in its package, or in PATH", async (t) => {
  const directory = scratch(t);
  const from = join(directory, "app.js");
  const [option, variable, onPath] = ["option", "variable", "path/sandbox-agent"].map((name) => writeFake(join(directory, name)));
  const env = { SANDBOX_AGENT_BIN: variable, PATH: `:/nowhere:${join(directory, "path")}` };
  assert.equal(await findBinary({ binaryPath: option, env, from }), option);
  assert.equal(await findBinary({ env, from }), variable);
  assert.equal(await findBinary({ env: { PATH: env.PATH }, from }), onPath);
  const packaged = join(directory, "node_modules", platformPackage());
  const program = writeFake(join(packaged, "bin", "sandbox-agent"));
  const { writeFileSync } = await import("node:fs");
  writeFileSync(join(packaged, "package.json"), "{}");
  assert.equal(await findBinary({ env: { PATH: env.PATH }, from }), program);
  assert.equal(await findBinary({ env, from }), variable);
  await assert.rejects(findBinary({ env: {}, from: join("/", "app.js") }), /@carrel\/sandbox-agent-.*\n.*SANDBOX_AGENT_BIN/);
});

test("a server that listens on all addresses is reached on the loopback interface", () => {
  assert.equal(baseUrl("0.0.0.0", 1), "http://127.0.0.1:1");
  assert.equal(baseUrl("::", 1), "http://[::1]:1");
  assert.equal(baseUrl("localhost", 1), "http://localhost:1");
});
