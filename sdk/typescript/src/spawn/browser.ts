// What browsers get instead of `spawn/index.ts`.

import type { SpawnedServer, SpawnOptions } from "../embedded.js";

export async function spawnSandboxAgent(_options: SpawnOptions): Promise<SpawnedServer> {
  throw new Error("a browser cannot start a server; SandboxAgent.connect takes one that runs");
}
