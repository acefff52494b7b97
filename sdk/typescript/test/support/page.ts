// Runs like a page: without Node.js modules, and with the package as browser bundlers resolve it.

import { register } from "node:module";

const [url = ""] = process.argv.slice(2);
const say = console.log;
register("./forbid-node.js", import.meta.url);

const refusal = (error: Error) => say(error.message);

// Control: the hooks reject what a browser does not have.
const server = new URL("../../dist/spawn/index.js", import.meta.url).href;
await import(server).catch(refusal);

const { SandboxAgent, spawnSandboxAgent, isMessage, textOf } = await import("@carrel/sdk");
const agent = await SandboxAgent.connect({ baseUrl: url });
for await (const event of agent.streamEvents("s")) {
  if (isMessage(event)) say(textOf(event.data.message));
}
await SandboxAgent.start().catch(refusal);
await spawnSandboxAgent().catch(refusal);
await agent.dispose();
