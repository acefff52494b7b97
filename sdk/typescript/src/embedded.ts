// Types of the embedded mode. Processes are started in `spawn/`, which no browser loads.

/// <reference lib="esnext.disposable" preserve="true" />

export interface SpawnOptions {
  /** Address to listen on; 127.0.0.1 by default. */
  host?: string;
  /** Port; a free one by default. */
  port?: number;
  /** Token; a generated one by default. */
  token?: string;
  /** The program; otherwise `SANDBOX_AGENT_BIN`, the package of this platform, or `sandbox-agent` on the path. */
  binaryPath?: string;
  /** Passes the token as an argument, which all users of the machine can read, instead of the environment. For older programs. */
  tokenInArguments?: boolean;
  /** How long the server may take to be healthy; 15 s by default. */
  timeoutMs?: number;
  /** Where its output goes: to ours, to `onLog`, or nowhere (the default). */
  log?: "inherit" | "pipe" | "silent";
  /** With `log: "pipe"`, receives every line that the server writes. */
  onLog?: (line: string) => void;
  /** Added to our own environment; `undefined` removes a variable. */
  env?: Record<string, string | undefined>;
  cwd?: string;
  /** Further arguments of `sandbox-agent server`, such as `--data-dir`. */
  args?: string[];
  /** Cancels the wait for the server, and stops the server. */
  signal?: AbortSignal;
}

export interface SpawnedServer extends AsyncDisposable {
  readonly baseUrl: string;
  readonly token: string;
  readonly pid: number;
  /** Resolves when the process has exited, with a description of how. */
  readonly gone: Promise<string>;
  /** Stops the server: SIGTERM first, then SIGKILL. Resolves when it has exited. */
  dispose(): Promise<void>;
}

/** Starts a server that exits with this process at the latest, however that exits. Only in Node.js. */
export async function spawnSandboxAgent(options: SpawnOptions = {}): Promise<SpawnedServer> {
  const spawn = await import("#spawn");
  return spawn.spawnSandboxAgent(options);
}
