// A process that starts a server and then ends as its argument says.

import { SandboxAgent } from "@carrel/sdk";

const [ending = "", binaryPath = ""] = process.argv.slice(2);
const signals = ["SIGINT", "SIGTERM", "SIGHUP", "exit"];
const count = () => signals.map((signal) => process.listenerCount(signal)).join();

if (ending === "listens-once") {
  process.once("SIGTERM", async () => {
    // The server still answers: nobody has decided in our place.
    const { status } = await agent.getHealth();
    console.log(`health ${status}`);
    process.exit(7);
  });
}
const before = count();
const agent = await SandboxAgent.start({ spawn: { binaryPath } });
console.log(`started ${agent.baseUrl}`);
// Goes on once the test has seen the server.
await new Promise<void>((resolve) => process.stdin.once("data", () => resolve()));

switch (ending) {
  case "returns":
    process.stdin.destroy();
    break;
  case "exits":
    process.exit(5);
    break;
  case "throws":
    throw new Error("uncaught");
  case "rejects":
    void Promise.reject(new Error("unhandled"));
    break;
  case "disposes":
    await agent.dispose();
    console.log(before === count() ? "no listener left" : `listeners ${before} and then ${count()}`);
    process.stdin.destroy();
    break;
  default: // Waits for a signal, with the input open.
    console.log("waiting");
}
