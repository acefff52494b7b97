// Starts a server as a child, waits until it is healthy, and ends it.

import { spawn, type ChildProcess } from "node:child_process";
import { randomBytes } from "node:crypto";
import { once } from "node:events";
import { setTimeout as sleep } from "node:timers/promises";

import type { SpawnedServer, SpawnOptions } from "../embedded.js";
import { waitForHealth } from "../health.js";
import { linked } from "../signals.js";
import { Transport } from "../transport.js";
import { baseUrl, freePort } from "./address.js";
import { findBinary } from "./binary.js";
import { endWithProcess } from "./exit.js";
import { Output } from "./output.js";

const HEALTHY_MS = 15_000;
/** How long a server has between SIGTERM and SIGKILL. */
const GRACE_MS = 3_000;
/** How long the pipe of a server that died may be held open by what it left behind. */
const LAST_WORDS_MS = 250;
/** How often another free port is tried when somebody was faster. */
const PORTS = 3;

export async function spawnSandboxAgent(options: SpawnOptions = {}): Promise<SpawnedServer> {
  options.signal?.throwIfAborted();
  const env = { ...process.env, ...options.env };
  const binary = await findBinary({ binaryPath: options.binaryPath, env });
  const host = options.host ?? "127.0.0.1";
  const token = options.token ?? randomBytes(24).toString("hex");
  for (let tried = 1; ; tried++) {
    const port = options.port ?? (await freePort(host));
    const command = ["server", "--host", host, "--port", String(port), "--token", token, ...(options.args ?? [])];
    const server = new Server(binary, command, env, options, baseUrl(host, port), token);
    try {
      await server.healthy(options.timeoutMs ?? HEALTHY_MS, options.signal);
      return server;
    } catch (error) {
      await server.dispose();
      if (options.port !== undefined || tried >= PORTS || !server.lostItsPort()) throw error;
    }
  }
}

class Server implements SpawnedServer {
  readonly baseUrl: string;
  readonly token: string;
  readonly #child: ChildProcess;
  readonly #output: Output;
  readonly #gone: Promise<Error>;
  #disposing: Promise<void> | undefined;

  constructor(
    binary: string,
    command: string[],
    env: NodeJS.ProcessEnv,
    { log = "silent", onLog, cwd }: SpawnOptions,
    baseUrl: string,
    token: string,
  ) {
    this.baseUrl = baseUrl;
    this.token = token;
    const stdio = log === "inherit" ? "inherit" : "pipe";
    this.#child = spawn(binary, command, { env, cwd, stdio: ["ignore", stdio, stdio], windowsHide: true });
    this.#output = new Output(log === "pipe" ? onLog : undefined);
    for (const stream of [this.#child.stdout, this.#child.stderr]) {
      if (stream) this.#output.read(stream);
    }
    // What cannot be started or killed must not be the end of this process; who waits for it is told by `#gone`.
    this.#child.on("error", () => undefined);
    const release = endWithProcess(this.#child);
    this.#gone = this.#ended().finally(release);
    // Who forgets to dispose of the server still gets to the end of the program, and the server ends there.
    this.#child.unref();
  }

  get pid(): number {
    return this.#child.pid ?? -1;
  }

  /** Fails at once when the process dies, with the last of what it said. */
  async healthy(timeoutMs: number, signal: AbortSignal | undefined): Promise<void> {
    const waiting = linked(signal);
    const transport = new Transport({ baseUrl: this.baseUrl });
    const death = this.#gone.then((error) => Promise.reject(error));
    try {
      await Promise.race([waitForHealth(transport, { timeoutMs, signal: waiting.signal }), death]);
    } catch (error) {
      signal?.throwIfAborted();
      const said = this.#output.tail();
      if (!(error instanceof Error) || !said) throw error;
      throw new Error(`${error.message}\n${said}`, { cause: error });
    } finally {
      waiting.release();
      death.catch(() => undefined);
    }
  }

  /** Whether it died because the port was taken between our choice and its own attempt. */
  lostItsPort(): boolean {
    return /address (already )?in use/i.test(this.#output.tail());
  }

  dispose(): Promise<void> {
    this.#disposing ??= this.#end();
    return this.#disposing;
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.dispose();
  }

  async #end(): Promise<void> {
    const child = this.#child;
    if (child.pid === undefined || child.exitCode !== null || child.signalCode !== null) return;
    child.ref();
    const kill = setTimeout(() => child.kill("SIGKILL"), GRACE_MS);
    child.kill("SIGTERM");
    await this.#gone;
    clearTimeout(kill);
  }

  /** Resolves when the process is gone, with the words for it. */
  async #ended(): Promise<Error> {
    const child = this.#child;
    const closed = once(child, "close").catch(() => undefined);
    try {
      const [code, signal] = (await once(child, "exit")) as [number | null, NodeJS.Signals | null];
      await Promise.race([closed, sleep(LAST_WORDS_MS, undefined, { ref: false })]);
      return new Error(`sandbox-agent ended before it was healthy, ${signal ? `by ${signal}` : `with status ${code}`}`);
    } catch (error) {
      return new Error(`${child.spawnfile} could not be started: ${(error as Error).message}`, { cause: error });
    }
  }
}
