// Waits until a server answers `/v1/health`.

import { ConnectionError } from "./errors.js";
import { delay, linked } from "./signals.js";
import type { Transport } from "./transport.js";

const INTERVAL_MS = 10;

export interface HealthOptions {
  timeoutMs: number;
  signal?: AbortSignal | undefined;
}

/** Throws the signal's reason if it is aborted, and a `ConnectionError` after the timeout. */
export async function waitForHealth(transport: Transport, { timeoutMs, signal }: HealthOptions): Promise<void> {
  const end = new AbortController();
  const timer = setTimeout(() => end.abort(), timeoutMs);
  const link = linked(signal, end.signal);
  let last: unknown;
  try {
    while (!link.signal.aborted) {
      try {
        await transport.json("GET", "/v1/health", { signal: link.signal });
        return;
      } catch (error) {
        if (!link.signal.aborted) last = error;
      }
      await delay(INTERVAL_MS, link.signal);
    }
  } finally {
    clearTimeout(timer);
    link.release();
  }
  signal?.throwIfAborted();
  const why = last instanceof Error ? `: ${last.message}` : "";
  throw new ConnectionError(`${transport.baseUrl} was not healthy within ${timeoutMs} ms${why}`, { cause: last });
}
