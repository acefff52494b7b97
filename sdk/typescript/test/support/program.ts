// A fake `sandbox-agent` that misbehaves as `FAKE` says.

import { appendFileSync, writeFileSync, writeSync } from "node:fs";
import { createServer, type IncomingMessage } from "node:http";

const words = process.argv.slice(2);
const option = (name: string) => words[words.indexOf(name) + 1] ?? "";
const given = process.env.SANDBOX_AGENT_TOKEN;
const token = words.includes("--token") ? option("--token") : given;

if (words.includes("--exit-with-stdin")) {
  if (process.env.FAKE === "older") {
    writeSync(2, "error: unexpected argument '--exit-with-stdin' found\n");
    process.exit(2);
  }
  // With "polite" and "deaf", only signals end it.
  if (!["polite", "deaf"].includes(process.env.FAKE ?? "")) process.stdin.on("end", () => process.exit(0)).resume();
}

switch (process.env.FAKE) {
  case "dies":
    writeSync(2, "starting\nerror: no room for sessions\n");
    process.exit(3);
    break;
  case "killed":
    process.kill(process.pid, "SIGKILL");
    break;
  case "port-taken":
    writeSync(2, "error: Address already in use (os error 98)\n");
    process.exit(1);
    break;
  case "never":
    writeSync(2, "still thinking\n");
    setInterval(() => undefined, 1 << 30);
    break;
  default:
    if (process.env.FAKE === "deaf") process.on("SIGTERM", () => undefined);
    if (process.env.FAKE === "polite") process.on("SIGTERM", () => {
      writeFileSync(process.env.OWN!, "asked to end");
      process.exit(0);
    });
    if (process.env.FAKE === "loud") writeSync(1, "x".repeat(1 << 20) + "\n");
    let unhealthy = process.env.FAKE === "slow" ? 2 : 0;
    createServer((request, response) => {
      if (process.env.FAKE === "slow") appendFileSync(process.env.OWN!, `${request.method} ${request.url}\n`);
      if (request.url === "/v1/health" && unhealthy > 0) response.writeHead(503).end(`{"left":${unhealthy--}}`);
      else if (request.url === "/v1/health") response.end('{"status":"ok"}');
      else if (request.url === "/v1/sessions") response.writeHead(isFriend(request) ? 200 : 401).end("{}");
      // Stays open while this process runs.
      else if (request.url === "/hold") response.write("held");
      else if (request.url?.includes("/sse")) response.writeHead(200, { "content-type": "text/event-stream" }).flushHeaders();
      else response.end(JSON.stringify({ words, given, own: process.env.OWN, cwd: process.cwd() }));
    }).listen(Number(option("--port")), option("--host"), () => writeSync(2, "listening\n"));
}

/** Another server does not accept our token. */
function isFriend(request: IncomingMessage): boolean {
  return process.env.FAKE !== "foreign" && request.headers.authorization === `Bearer ${token}`;
}
