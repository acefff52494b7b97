// Children that end when this process exits. One that is killed cannot say so: then they see their input end.

import type { ChildProcess } from "node:child_process";

const children = new Set<ChildProcess>();

/** Ends `child` when this process exits. The returned function takes that back. */
export function endWithProcess(child: ChildProcess): () => void {
  // No signal is listened for: whoever does has to decide what becomes of the process, and others decide already.
  if (children.size === 0) process.on("exit", endAll);
  children.add(child);
  return () => {
    if (children.delete(child) && children.size === 0) process.off("exit", endAll);
  };
}

/** SIGTERM: the server has agents of its own to end. An uncaught error comes by here as well, as any exit does. */
function endAll(): void {
  for (const child of children) child.kill("SIGTERM");
}
