// A server exits with the process that started it, and does not change how that process exits.

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { createInterface } from "node:readline";
import test, { type TestContext } from "node:test";
import { fileURLToPath } from "node:url";

import { fake, watch } from "./support/fake.js";

const PARENT = fileURLToPath(new URL("support/parent.js", import.meta.url));

async function end(t: TestContext, ending: string, signal?: NodeJS.Signals, how = { group: false, env: {} }) {
  const parent = spawn(process.execPath, [PARENT, ending, fake(t)], {
    stdio: ["pipe", "pipe", "ignore"],
    env: { ...process.env, ...how.env },
    detached: how.group,
  });
  const closed = once(parent, "close");
  const said: string[] = [];
  const lines = createInterface({ input: parent.stdout })[Symbol.asyncIterator]();
  const first = (await lines.next()).value ?? "";
  assert.match(first, /^started http/);
  const { gone } = await watch(first.slice("started ".length));
  parent.stdin.write("go\n");
  for (let line = await lines.next(); !line.done; line = await lines.next()) {
    said.push(line.value);
    if (line.value === "waiting" && signal) process.kill(how.group ? -parent.pid! : parent.pid!, signal);
  }
  const [code, by] = (await closed) as [number | null, NodeJS.Signals | null];
  await gone;
  return { said: said.filter((line) => line !== "waiting"), code, by };
}

test("a server does not keep a finished program running", async (t) => {
  assert.deepEqual(await end(t, "returns"), { said: [], code: 0, by: null });
});

//= agents.sdk.dispose-sends-sigterm-sigkill
//= promises.agents-server.servers-starts-leaves-behind
test("a server stops when its program exits", async (t) => {
  assert.deepEqual(await end(t, "exits"), { said: [], code: 5, by: null });
});

for (const ending of ["throws", "rejects"]) {
  test(`the server stops when its program ${ending} and does not catch that`, async (t) => {
    assert.deepEqual(await end(t, ending), { said: [], code: 1, by: null });
  });
}

function endedBy(signal: NodeJS.Signals) {
  return async (t: TestContext) => {
    assert.deepEqual(await end(t, "waits", signal), { said: [], code: null, by: signal });
  };
}

//= agents.sdk.dispose-sends-sigterm-sigkill
//= promises.agents-server.servers-starts-leaves-behind
test("the server stops when SIGINT terminates its program", endedBy("SIGINT"));

//= agents.sdk.dispose-sends-sigterm-sigkill
//= promises.agents-server.servers-starts-leaves-behind
test("the server stops when SIGTERM terminates its program", endedBy("SIGTERM"));

//= agents.sdk.dispose-sends-sigterm-sigkill
//= promises.agents-server.servers-starts-leaves-behind
test("the server stops when SIGHUP terminates its program", endedBy("SIGHUP"));

//= agents.sdk.dispose-sends-sigterm-sigkill
//= promises.agents-server.servers-starts-leaves-behind
test("the server stops when SIGKILL terminates its program", endedBy("SIGKILL"));

test("a program with a signal handler decides what happens", async (t) => {
  assert.deepEqual(await end(t, "listens-once", "SIGTERM"), { said: ["health ok"], code: 7, by: null });
});

test("a program that handles Ctrl-C also decides for its server", async (t) => {
  const group = { group: true, env: {} };
  assert.deepEqual(await end(t, "listens-once", "SIGINT", group), { said: ["health ok"], code: 7, by: null });
});

test("a program with a listener that expects to be the only one is terminated by its signal", async (t) => {
  assert.deepEqual(await end(t, "signal-exit", "SIGTERM"), { said: ["cleaned up"], code: null, by: "SIGTERM" });
});

test("an older server stops when its program exits", async (t) => {
  const older = { group: false, env: { FAKE: "older" } };
  assert.deepEqual(await end(t, "exits", undefined, older), { said: [], code: 5, by: null });
});

test("a disposed server leaves no listener behind", async (t) => {
  assert.deepEqual(await end(t, "disposes"), { said: ["no listener left"], code: 0, by: null });
});
