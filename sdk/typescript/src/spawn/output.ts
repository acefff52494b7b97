// Forwards the output of a child, and keeps its end for error messages.

import type { Readable, Writable } from "node:stream";

const KEPT = 4_096;

export class Output {
  #tail = "";

  /** Always reads `stream` to its end: a child with a full pipe would block. */
  read(stream: Readable, to: { line?: ((line: string) => void) | undefined; copy?: Writable | undefined }): void {
    let partial = "";
    stream.setEncoding("utf8");
    stream.on("data", (text: string) => {
      this.#tail = (this.#tail + text).slice(-KEPT);
      to.copy?.write(text);
      if (!to.line) return;
      const lines = (partial + text).split(/\r?\n/);
      partial = lines.pop() ?? "";
      for (const line of lines) to.line(line);
    });
    stream.on("end", () => {
      if (partial) to.line?.(partial);
    });
    // The pipe must not keep this process running. It is a socket, which its type does not say.
    (stream as { unref?: () => void }).unref?.();
  }

  tail(): string {
    return this.#tail.trim();
  }
}
