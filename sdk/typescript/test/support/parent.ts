// A process that starts a server and then exits as its argument says.

import { SandboxAgent } from "@carrel/sdk";

const [ending = "", binaryPath = "", log = "silent"] = process.argv.slice(2);
const signals = ["SIGINT", "SIGTERM", "SIGHUP", "exit"];
const count = () => signals.map((signal) => process.listenerCount(signal)).join();

if (ending === "listens-once") {
  const handled = async () => {
    // The server still responds: nothing else stopped it.
    const { status } = await agent.getHealth();
    console.log(`health ${status}`);
    process.exit(7);
  };
  process.once("SIGTERM", handled).once("SIGINT", handled);
}
if (ending === "signal-exit") {
  // Like a common package: the only listener kills the process with the same signal.
  const listener = () => {
    if (process.listenerCount("SIGTERM") > 1) return;
    process.off("SIGTERM", listener);
    console.log("cleaned up");
    process.kill(process.pid, "SIGTERM");
  };
  process.on("SIGTERM", listener);
}
const before = count();
const agent: SandboxAgent = await SandboxAgent.start({ spawn: { binaryPath, log: log === "inherit" ? log : "silent" } });
console.log(`started ${agent.baseUrl}`);
// Continues once the test has seen the server.
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
