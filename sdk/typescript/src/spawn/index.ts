// Starts a server, and retries if its port was taken meanwhile.

import { randomBytes } from "node:crypto";

import type { SpawnedServer, SpawnOptions } from "../embedded.js";
import { baseUrl, freePort } from "./address.js";
import { findBinary } from "./binary.js";
import { Server } from "./server.js";

const HEALTHY_MS = 15_000;
/** How often another port is tried. */
const PORTS = 3;

export async function spawnSandboxAgent(options: SpawnOptions = {}): Promise<SpawnedServer> {
  options.signal?.throwIfAborted();
  const env = { ...process.env, ...options.env };
  const binary = await findBinary({ binaryPath: options.binaryPath, env });
  const host = options.host ?? "127.0.0.1";
  let exitsWithInput = true;
  for (let tried = 1; ; tried++) {
    const port = options.port ?? (await freePort(host));
    // A new token for each attempt: the process that has the port may have received the last one.
    const token = options.token ?? randomBytes(24).toString("hex");
    const command = ["server", "--host", host, "--port", String(port)];
    const server = new Server({ binary, command, env, exitsWithInput, baseUrl: baseUrl(host, port), token }, options);
    try {
      await server.ready(options.timeoutMs ?? HEALTHY_MS, options.signal);
      return server;
    } catch (error) {
      await server.dispose();
      options.signal?.throwIfAborted();
      if (exitsWithInput && server.isOlder()) {
        exitsWithInput = false;
        tried--;
      } else if (options.port !== undefined || tried >= PORTS || !server.lostItsPort()) {
        throw error;
      }
    }
  }
}
