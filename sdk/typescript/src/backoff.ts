// Exponential backoff with jitter and an upper bound.

import { delay } from "./signals.js";

export interface ReconnectOptions {
  /** Maximum number of consecutive failures without a new event; unlimited by default. */
  attempts?: number;
  /** Maximum time without a connection in milliseconds; unlimited by default. */
  giveUpMs?: number;
  /** First delay in milliseconds. */
  initialMs?: number;
  /** Maximum delay in milliseconds. */
  maxMs?: number;
  /** Read timeout of a stream; the server sends a keep-alive every 15 s. 0 disables it. */
  silenceMs?: number;
}

export class Backoff {
  readonly attempts: number;
  readonly #giveUpMs: number;
  readonly #maxMs: number;
  #initialMs: number;
  #failures = 0;
  #lostAt: number | undefined;

  constructor({ attempts = Infinity, giveUpMs = Infinity, initialMs = 100, maxMs = 5_000 }: ReconnectOptions = {}) {
    this.attempts = attempts;
    this.#giveUpMs = giveUpMs;
    this.#initialMs = initialMs;
    this.#maxMs = maxMs;
  }

  /** Counts a failure, and returns the number of consecutive ones. */
  fail(now: number = performance.now()): number {
    this.#lostAt ??= now;
    return ++this.#failures;
  }

  /** The connection is open again; events may still be missing. */
  connected(): void {
    this.#lostAt = undefined;
  }

  /** Whether there has been no connection for too long. */
  isOverdue(now: number = performance.now()): boolean {
    return this.#lostAt !== undefined && now - this.#lostAt >= this.#giveUpMs;
  }

  succeed(): void {
    this.#failures = 0;
  }

  /** Sets the first delay, as the server requested. */
  begin(initialMs: number): void {
    this.#initialMs = initialMs;
  }

  /** The delay after the failures so far: between half of the step and all of it, so that clients do not reconnect at once. */
  nextMs(random: () => number = Math.random): number {
    const step = Math.min(this.#maxMs, this.#initialMs * 2 ** Math.min(Math.max(0, this.#failures - 1), 30));
    return step * (0.5 + random() / 2);
  }

  async wait(signal: AbortSignal): Promise<void> {
    await delay(this.nextMs(), signal);
  }
}
