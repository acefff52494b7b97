// Stops child processes when this process exits. If it is killed, they exit when their input ends.

import type { ChildProcess } from "node:child_process";

const children = new Set<ChildProcess>();

/** Stops `child` when this process exits. The returned function cancels that. */
export function endWithProcess(child: ChildProcess): () => void {
  // No signal handler: it would have to decide whether the process exits, which is the application's decision.
  if (children.size === 0) process.on("exit", endAll);
  children.add(child);
  return () => {
    if (children.delete(child) && children.size === 0) process.off("exit", endAll);
  };
}

/** SIGTERM: the server has agents to stop. This also runs after an uncaught error. */
function endAll(): void {
  for (const child of children) child.kill("SIGTERM");
}
