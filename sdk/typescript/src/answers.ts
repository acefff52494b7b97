// Requests of the agent in a turn: answered one after the other, while the turn continues.

import { SandboxAgentError } from "./errors.js";
import { aborted } from "./signals.js";

type Answer = (signal: AbortSignal) => Promise<void>;

export class Answers {
  readonly #open = new Map<string, AbortController>();
  readonly #settled: (failure?: { error: unknown }) => void;
  #last: Promise<void> = Promise.resolve();

  /** `settled` is called when a request is answered or cannot be answered. */
  constructor(settled: (failure?: { error: unknown }) => void) {
    this.#settled = settled;
  }

  get pending(): boolean {
    return this.#open.size > 0;
  }

  /** Answers when all requests before this one are settled. */
  ask(id: string, answer: Answer): void {
    const request = new AbortController();
    this.#open.set(id, request);
    this.#last = this.#last.then(() => this.#settle(id, request, answer));
  }

  /** The request was answered elsewhere or withdrawn, so it is not waited for. */
  resolve(id: string): void {
    this.#open.get(id)?.abort();
    this.#open.delete(id);
  }

  close(): void {
    for (const id of [...this.#open.keys()]) this.resolve(id);
  }

  async #settle(id: string, request: AbortController, answer: Answer): Promise<void> {
    if (request.signal.aborted) return;
    let failure: { error: unknown } | undefined;
    try {
      await Promise.race([answer(request.signal), aborted(request.signal)]);
    } catch (error) {
      if (!request.signal.aborted && !isTooLate(error)) failure = { error };
    }
    if (this.#open.get(id) === request) this.#open.delete(id);
    this.#settled(failure);
  }
}

/** The request is not pending any more: another client answered it, or the agent exited, which its turn reports. */
function isTooLate(error: unknown): boolean {
  if (!(error instanceof SandboxAgentError)) return false;
  if (error.code === "agent_process_exited") return true;
  return error.status === 400 && /unknown (question|permission) id|session terminated/.test(error.message);
}
