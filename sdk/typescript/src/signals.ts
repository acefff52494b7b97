// Abort signals: links to several signals, and cancellable waits.

export interface Linked {
  readonly signal: AbortSignal;
  /** Aborts the signal and removes every listener. */
  release(): void;
}

/** A signal that is aborted with the first of `sources`. `AbortSignal.any` is missing in the first releases of Node.js 20. */
export function linked(...sources: (AbortSignal | undefined)[]): Linked {
  const controller = new AbortController();
  const present = sources.filter((source) => source !== undefined);
  const follow = (event: Event) => controller.abort((event.target as AbortSignal).reason);
  for (const source of present) {
    if (source.aborted) controller.abort(source.reason);
    else source.addEventListener("abort", follow, { once: true });
  }
  return {
    signal: controller.signal,
    release() {
      for (const source of present) source.removeEventListener("abort", follow);
      controller.abort();
    },
  };
}

/** Resolves after `ms`, or when the signal is aborted, which the caller checks. */
export function delay(ms: number, signal?: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    if (signal?.aborted) return resolve();
    const done = () => {
      clearTimeout(timer);
      signal?.removeEventListener("abort", done);
      resolve();
    };
    const timer = setTimeout(done, ms);
    signal?.addEventListener("abort", done, { once: true });
  });
}

/** Resolves when the signal is aborted. */
export function aborted(signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    if (signal.aborted) resolve();
    else signal.addEventListener("abort", () => resolve(), { once: true });
  });
}
