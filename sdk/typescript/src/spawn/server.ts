// A server as a child process: start, health check, stop.

import { spawn, type ChildProcess } from "node:child_process";
import { once } from "node:events";
import { setTimeout as sleep } from "node:timers/promises";

import type { SpawnedServer, SpawnOptions } from "../embedded.js";
import { waitForHealth } from "../health.js";
import { linked } from "../signals.js";
import { Transport } from "../transport.js";
import { endWithProcess } from "./exit.js";
import { isOurs } from "./ours.js";
import { Output } from "./output.js";

/** How long a server has between SIGTERM and SIGKILL. */
const GRACE_MS = 3_000;
/** How long descendants of an exited server may hold its pipe open. */
const LAST_WORDS_MS = 250;
const EXIT_WITH_INPUT = "--exit-with-stdin";
/** Exit code for invalid arguments. */
const MISUSED = 2;

export interface Attempt {
  binary: string;
  command: string[];
  env: NodeJS.ProcessEnv;
  /** Whether it supports `--exit-with-stdin`: its input ends with this process, however that exits. */
  exitsWithInput: boolean;
  baseUrl: string;
  token: string;
}

export class Server implements SpawnedServer {
  readonly baseUrl: string;
  readonly token: string;
  readonly gone: Promise<string>;
  readonly #child: ChildProcess;
  readonly #output = new Output();
  readonly #asksForToken: boolean;
  #isForeign = false;
  #disposing: Promise<void> | undefined;

  constructor({ binary, command, env, exitsWithInput, baseUrl, token }: Attempt, options: SpawnOptions) {
    const { log = "silent", onLog, cwd, args = [], tokenInArguments = false } = options;
    this.baseUrl = baseUrl;
    this.token = token;
    this.#asksForToken = !args.some((word) => word === "--no-token" || word === "-n");
    const words = [...command];
    // All users of the machine can read arguments, but only our own user the environment.
    if (tokenInArguments) words.push("--token", token);
    else env = { ...env, SANDBOX_AGENT_TOKEN: token };
    if (exitsWithInput) words.push(EXIT_WITH_INPUT);
    this.#child = spawn(binary, [...words, ...args], {
      env,
      cwd,
      stdio: [exitsWithInput ? "pipe" : "ignore", log === "inherit" ? "inherit" : "pipe", "pipe"],
      // A terminal sends Ctrl-C to the whole process group, and this process decides what it means.
      detached: exitsWithInput && process.platform !== "win32",
      windowsHide: true,
    });
    const { stdin, stdout, stderr } = this.#child;
    const line = log === "pipe" ? onLog : undefined;
    if (stdout) this.#output.read(stdout, { line });
    if (stderr) this.#output.read(stderr, { line, copy: log === "inherit" ? process.stderr : undefined });
    stdin?.on("error", () => undefined);
    (stdin as { unref?: () => void } | null)?.unref?.();
    // A failed start or kill must not crash this process; `gone` reports it.
    this.#child.on("error", () => undefined);
    this.gone = this.#ended().finally(endWithProcess(this.#child));
    // A server that is not disposed of does not keep this process running, and stops with it.
    this.#child.unref();
  }

  get pid(): number {
    return this.#child.pid ?? -1;
  }

  /** Fails at once if the process exits, with the end of its output. */
  async ready(timeoutMs: number, signal: AbortSignal | undefined): Promise<void> {
    const waiting = linked(signal);
    const death = this.gone.then((how) => Promise.reject(new Error(`the server did not become healthy: ${how}`)));
    try {
      await Promise.race([this.#answers(timeoutMs, waiting.signal), death]);
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

  /** Whether another process took the port meanwhile. */
  lostItsPort(): boolean {
    return this.#isForeign || /address (already )?in use/i.test(this.#output.tail());
  }

  /** Whether it exited because it does not support `--exit-with-stdin`. */
  isOlder(): boolean {
    const said = this.#output.tail();
    return this.#child.exitCode === MISUSED && said.includes("unexpected argument") && said.includes(EXIT_WITH_INPUT);
  }

  dispose(): Promise<void> {
    this.#disposing ??= this.#end();
    return this.#disposing;
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.dispose();
  }

  /** Checks that the response comes from this process, and that it still runs. */
  async #answers(timeoutMs: number, signal: AbortSignal): Promise<void> {
    await waitForHealth(new Transport({ baseUrl: this.baseUrl }), { timeoutMs, signal });
    const inTime = linked(signal, AbortSignal.timeout(timeoutMs));
    try {
      const ours = !this.#asksForToken || (await isOurs(this.baseUrl, this.token, inTime.signal));
      this.#isForeign = !ours || this.#isGone();
    } finally {
      inTime.release();
    }
    if (!this.#isForeign) return;
    throw new Error(
      `${this.baseUrl} does not accept our token: another server has the port, or this one does not read SANDBOX_AGENT_TOKEN.\n` +
        "hint: an older program gets it by tokenInArguments",
    );
  }

  #isGone(): boolean {
    const { pid, exitCode, signalCode } = this.#child;
    return pid === undefined || exitCode !== null || signalCode !== null;
  }

  async #end(): Promise<void> {
    if (this.#isGone()) return;
    const child = this.#child;
    child.ref();
    const kill = setTimeout(() => child.kill("SIGKILL"), GRACE_MS);
    child.kill("SIGTERM");
    await this.gone;
    clearTimeout(kill);
  }

  /** Resolves when the process has exited, with a description of how. */
  async #ended(): Promise<string> {
    const child = this.#child;
    const closed = once(child, "close").catch(() => undefined);
    try {
      const [code, signal] = (await once(child, "exit")) as [number | null, NodeJS.Signals | null];
      await Promise.race([closed, sleep(LAST_WORDS_MS, undefined, { ref: false })]);
      return `sandbox-agent ended ${signal ? `by ${signal}` : `with status ${code}`}`;
    } catch (error) {
      return `${child.spawnfile} could not be started: ${(error as Error).message}`;
    }
  }
}
