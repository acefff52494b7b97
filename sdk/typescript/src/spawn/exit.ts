// Children that end with this process, however it ends, as far as it can still say so.

import type { ChildProcess } from "node:child_process";

const SIGNALS = ["SIGINT", "SIGTERM", "SIGHUP"] as const;
/** Marks our listeners, also those of another copy of this package. */
const OURS = Symbol.for("@carrel/sdk:exit");

const children = new Set<ChildProcess>();

/** Ends `child` when this process ends. The returned function takes that back. */
export function endWithProcess(child: ChildProcess): () => void {
  if (children.size === 0) {
    process.on("exit", endAll);
    // In front: a listener for one time only is taken away before those behind it are called.
    for (const signal of SIGNALS) process.prependListener(signal, onSignal);
  }
  children.add(child);
  return () => {
    if (children.delete(child) && children.size === 0) stopListening();
  };
}

/** SIGTERM: the server has agents of its own to end. An uncaught error comes by here as well, as any exit does. */
function endAll(): void {
  for (const child of children) child.kill("SIGTERM");
}

/** Somebody else who listens decides what the signal means. Otherwise it means what it did before we listened. */
function onSignal(signal: NodeJS.Signals): void {
  if (!process.listeners(signal).every((listener) => OURS in listener)) return;
  endAll();
  stopListening();
  process.kill(process.pid, signal);
}
Object.defineProperty(onSignal, OURS, { value: true });

function stopListening(): void {
  process.off("exit", endAll);
  for (const signal of SIGNALS) process.off(signal, onSignal);
}
