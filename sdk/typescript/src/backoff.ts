// How long to wait before the next attempt: twice as long each time, up to a bound, and never quite the same.

import { delay } from "./signals.js";

export interface ReconnectOptions {
  /** How often in a row a stream may fail without a new event before it gives up. Without a number it never does. */
  attempts?: number;
  /** How many milliseconds a stream may be without a connection before it gives up. Without a number it never does. */
  giveUpMs?: number;
  /** The first wait in milliseconds. */
  initialMs?: number;
  /** The longest wait in milliseconds. */
  maxMs?: number;
  /** A connection without a byte for this long counts as cut; the server sends some every 15 s. 0 waits for ever. */
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

  /** Counts a failure, and says how many there have been in a row. */
  fail(now: number = performance.now()): number {
    this.#lostAt ??= now;
    return ++this.#failures;
  }

  /** There is a connection again, which may still have nothing to say. */
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

  /** The server's own wish for the first wait. */
  begin(initialMs: number): void {
    this.#initialMs = initialMs;
  }

  /** The wait after the failures so far: between half of the step and all of it, so that clients do not come all at once. */
  nextMs(random: () => number = Math.random): number {
    const step = Math.min(this.#maxMs, this.#initialMs * 2 ** Math.min(Math.max(0, this.#failures - 1), 30));
    return step * (0.5 + random() / 2);
  }

  async wait(signal: AbortSignal): Promise<void> {
    await delay(this.nextMs(), signal);
  }
}
