// Starting a server: where it is found, what it is told, and what happens when it does not come up.

import assert from "node:assert/strict";
import { createServer } from "node:net";
import { join } from "node:path";
import test from "node:test";

import { SandboxAgent, spawnSandboxAgent } from "@carrel/sdk";

import { baseUrl } from "../dist/spawn/address.js";
import { findBinary, platformPackage } from "../dist/spawn/binary.js";
import { fake, isAlive, scratch, watch, writeFake } from "./support/fake.js";

test("a server is told where to listen and which token to ask for", async (t) => {
  const directory = scratch(t);
  const server = await spawnSandboxAgent({
    binaryPath: fake(t),
    env: { OWN: "mine" },
    cwd: directory,
    args: ["--data-dir", "sessions"],
  });
  t.after(() => server.dispose());
  const seen = (await (await fetch(`${server.baseUrl}/seen`)).json()) as { words: string[] };
  const port = new URL(server.baseUrl).port;
  assert.match(server.token, /^[0-9a-f]{48}$/);
  assert.deepEqual(seen, {
    words: ["server", "--host", "127.0.0.1", "--port", port, "--token", server.token, "--data-dir", "sessions"],
    own: "mine",
    cwd: directory,
  });
});

test("host, port and token are taken as given", async (t) => {
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

test("two servers at once have two ports and two tokens", async (t) => {
  const binaryPath = fake(t);
  const servers = await Promise.all([spawnSandboxAgent({ binaryPath }), spawnSandboxAgent({ binaryPath })]);
  t.after(() => Promise.all(servers.map((server) => server.dispose())));
  assert.notEqual(servers[0].baseUrl, servers[1].baseUrl);
  assert.notEqual(servers[0].token, servers[1].token);
});

test("dispose ends the server, and once is enough", async (t) => {
  const server = await spawnSandboxAgent({ binaryPath: fake(t) });
  const { gone } = await watch(server.baseUrl);
  await Promise.all([server.dispose(), server.dispose()]);
  await gone;
  assert.equal(isAlive(server.pid), false);
});

test("a server that does not listen to SIGTERM is killed", async (t) => {
  const server = await spawnSandboxAgent({ binaryPath: fake(t), env: { FAKE: "deaf" } });
  await server.dispose();
  assert.equal(isAlive(server.pid), false);
});

test("await using ends the server with its block", { skip: !Symbol.asyncDispose }, async (t) => {
  const agent = await SandboxAgent.start({ spawn: { binaryPath: fake(t) } });
  const pid = agent.server!.pid;
  {
    await using _ = agent;
    assert.equal(isAlive(pid), true);
  }
  assert.equal(isAlive(pid), false);
});

test("a program that dies fails at once, with the last it said", async (t) => {
  const started = spawnSandboxAgent({ binaryPath: fake(t), env: { FAKE: "dies" }, timeoutMs: 2 ** 30 });
  await assert.rejects(started, /ended before it was healthy, with status 3\nstarting\nerror: no room for sessions$/);
});

test("a program that is killed says by which signal", async (t) => {
  await assert.rejects(spawnSandboxAgent({ binaryPath: fake(t), env: { FAKE: "killed" } }), /by SIGKILL/);
});

test("a program that is never healthy is ended when its time is up", async (t) => {
  const started = spawnSandboxAgent({ binaryPath: fake(t), env: { FAKE: "never" }, timeoutMs: 500 });
  await assert.rejects(started, /not healthy within 500 ms/);
});

test("a signal ends the wait and the server", async (t) => {
  const controller = new AbortController();
  const onLog = () => controller.abort(new Error("called off"));
  const started = SandboxAgent.start({
    spawn: { binaryPath: fake(t), env: { FAKE: "never" }, log: "pipe", onLog, timeoutMs: 2 ** 30 },
    signal: controller.signal,
  });
  await assert.rejects(started, /called off/);
});

test("a port that somebody else took is tried anew, but not for ever", async (t) => {
  const said: string[] = [];
  const spawn = { binaryPath: fake(t), env: { FAKE: "port-taken" }, log: "pipe", onLog: (line: string) => said.push(line) } as const;
  await assert.rejects(spawnSandboxAgent(spawn), /Address already in use/);
  assert.equal(said.length, 3);
  await assert.rejects(spawnSandboxAgent({ ...spawn, port: 1 }), /Address already in use/);
  assert.equal(said.length, 4, "a port that was asked for is tried once");
});

test("a server that writes more than a pipe holds does not stand still", async (t) => {
  const lines: string[] = [];
  const spawn = { binaryPath: fake(t), env: { FAKE: "loud" } };
  await (await spawnSandboxAgent(spawn)).dispose();
  await (await spawnSandboxAgent({ ...spawn, log: "pipe", onLog: (line) => lines.push(line) })).dispose();
  assert.deepEqual(lines.map((line) => line.length).sort(), [1 << 20, "listening".length]);
});

test("a program that cannot be run is named", async (t) => {
  const missing = join(scratch(t), "missing");
  await assert.rejects(spawnSandboxAgent({ binaryPath: missing }), new RegExp(`binaryPath names ${missing}`));
  await assert.rejects(spawnSandboxAgent({ env: { SANDBOX_AGENT_BIN: missing } }), new RegExp(`SANDBOX_AGENT_BIN names ${missing}`));
});

test("a program is found where it is named, then in its package, then on the path", async (t) => {
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
  await assert.rejects(findBinary({ env: {}, from: join("/", "app.js") }), /@carrel\/sandbox-agent-.*\n.*SANDBOX_AGENT_BIN/);
});

test("a server that listens everywhere is reached on the loopback interface", () => {
  assert.equal(baseUrl("0.0.0.0", 1), "http://127.0.0.1:1");
  assert.equal(baseUrl("::", 1), "http://[::1]:1");
  assert.equal(baseUrl("localhost", 1), "http://localhost:1");
});
