// What an agent asks in a turn: answered one after the other, while the turn goes on.

import { SandboxAgentError } from "./errors.js";
import { aborted } from "./signals.js";

type Answer = (signal: AbortSignal) => Promise<void>;

export class Answers {
  readonly #open = new Map<string, AbortController>();
  readonly #settled: (failure?: { error: unknown }) => void;
  #last: Promise<void> = Promise.resolve();

  /** `settled` is called whenever a request has its answer, or cannot get one. */
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

  /** Somebody has answered, or the agent asks no more: nobody is waited for. */
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

/** Nobody asks that any more: somebody else was faster, or the agent has ended, which its turn will tell. */
function isTooLate(error: unknown): boolean {
  if (!(error instanceof SandboxAgentError)) return false;
  if (error.code === "agent_process_exited") return true;
  return error.status === 400 && /unknown (question|permission) id|session terminated/.test(error.message);
}
