// The embedded mode: what it takes and gives. How a process is started is in `spawn/`, which no browser loads.

/// <reference lib="esnext.disposable" preserve="true" />

export interface SpawnOptions {
  /** The address to listen on; 127.0.0.1 unless said otherwise. */
  host?: string;
  /** A free one unless said otherwise. */
  port?: number;
  /** A new one unless said otherwise. */
  token?: string;
  /** The program; otherwise `SANDBOX_AGENT_BIN`, the package of this platform, or `sandbox-agent` on the path. */
  binaryPath?: string;
  /** Gives the token as an argument, which everybody on the machine can read, and not in the environment. For older programs. */
  tokenInArguments?: boolean;
  /** How long the server may take to be healthy; 15 s unless said otherwise. */
  timeoutMs?: number;
  /** Where its output goes: to ours, to `onLog`, or nowhere, which is the default. */
  log?: "inherit" | "pipe" | "silent";
  /** With `log: "pipe"`, gets every line that the server writes. */
  onLog?: (line: string) => void;
  /** Added to our own environment; `undefined` removes a variable. */
  env?: Record<string, string | undefined>;
  cwd?: string;
  /** Further arguments of `sandbox-agent server`, such as `--data-dir`. */
  args?: string[];
  /** Ends the wait for the server, and the server. */
  signal?: AbortSignal;
}

export interface SpawnedServer extends AsyncDisposable {
  readonly baseUrl: string;
  readonly token: string;
  readonly pid: number;
  /** Resolves when the process is gone, whoever ended it, with the words for how. */
  readonly gone: Promise<string>;
  /** Ends the server, politely first. Resolves when it is gone. */
  dispose(): Promise<void>;
}

/** Starts a server that ends with this process at the latest, in whatever way that ends. Only in Node.js. */
export async function spawnSandboxAgent(options: SpawnOptions = {}): Promise<SpawnedServer> {
  const spawn = await import("#spawn");
  return spawn.spawnSandboxAgent(options);
}
