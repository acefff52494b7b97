// What a child writes: passed on line by line, with the end kept for the message when it dies.

import type { Readable } from "node:stream";

const KEPT = 4_096;

export class Output {
  #tail = "";
  readonly #onLine: ((line: string) => void) | undefined;

  constructor(onLine?: (line: string) => void) {
    this.#onLine = onLine;
  }

  /** Reads `stream` to its end, always: a child whose pipe is full would stand still. */
  read(stream: Readable): void {
    let partial = "";
    stream.setEncoding("utf8");
    stream.on("data", (text: string) => {
      this.#tail = (this.#tail + text).slice(-KEPT);
      if (!this.#onLine) return;
      const lines = (partial + text).split(/\r?\n/);
      partial = lines.pop() ?? "";
      for (const line of lines) this.#onLine(line);
    });
    stream.on("end", () => {
      if (partial) this.#onLine?.(partial);
    });
    // A pipe alone does not keep this process running. It is a socket, which its type does not say.
    (stream as { unref?: () => void }).unref?.();
  }

  tail(): string {
    return this.#tail.trim();
  }
}
