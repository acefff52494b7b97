// The package in a browser: nothing of Node.js is loaded.

import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { readFileSync } from "node:fs";
import test from "node:test";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";

import { beginStream, frame, json, problem, serve } from "./support/loopback.js";

const run = promisify(execFile);
const OF_NODE = /\b(process|Buffer|global|require|setImmediate|__dirname)\b/;

//= promises.agents-server.modules-node-js-page
test("a page connects and reads events without Node.js modules", async (t) => {
  let streams = 0;
  const server = await serve(t, ({ path }, response) => {
    const said = { message: { role: "assistant", parts: [{ type: "text", text: "in a page" }] } };
    if (path === "/v1/health") json(response, { status: "ok" });
    else if (++streams === 1) beginStream(response).end(frame(1, said));
    else problem(response, 404, "session_not_found", "gone");
  });
  const page = fileURLToPath(new URL("support/page.js", import.meta.url));
  const { stdout } = await run(process.execPath, ["--conditions=browser", page, server.url]);
  const cannot = "a browser cannot start a server; use SandboxAgent.connect with a running one";
  const [control, ...rest] = stdout.trim().split("\n");
  assert.match(control ?? "", /^a browser has no node:/);
  assert.deepEqual(rest, ["in a page", cannot, cannot]);
});

//= promises.agents-server.modules-node-js-page
test("no module that a page loads imports Node.js modules", () => {
  const seen = new Set<string>();
  const imports = /(?:from|import)\s*\(?\s*["']([^"']+)["']/g;
  const visit = (url: URL): void => {
    if (seen.has(url.href)) return;
    seen.add(url.href);
    const code = readFileSync(url, "utf8").replace(/\/\*[^]*?\*\/|\/\/.*/g, "");
    assert.doesNotMatch(code, OF_NODE, url.pathname);
    for (const [, specifier = ""] of code.matchAll(imports)) {
      const target = specifier === "#spawn" ? new URL("../dist/spawn/browser.js", import.meta.url) : new URL(specifier, url);
      assert.equal(target.protocol, "file:", `${url.pathname} imports ${specifier}`);
      visit(target);
    }
  };
  visit(new URL("../dist/index.js", import.meta.url));
  assert.ok(seen.size > 10, `${seen.size} modules`);
  const server = new URL("../dist/spawn/index.js", import.meta.url);
  assert.ok(!seen.has(server.href));
  assert.match(readFileSync(server, "utf8"), OF_NODE, "the control: where Node.js is used, it is seen");
});
