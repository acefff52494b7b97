// Replaces `spawn/index.ts` in browsers.

import type { SpawnedServer, SpawnOptions } from "../embedded.js";

export async function spawnSandboxAgent(_options: SpawnOptions): Promise<SpawnedServer> {
  throw new Error("a browser cannot start a server; use SandboxAgent.connect with a running one");
}
