// A fake program on disk whose behavior `FAKE` sets, and a wait for its exit.

import { chmodSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import type { TestContext } from "node:test";
import { fileURLToPath } from "node:url";

export function scratch(t: TestContext): string {
  const directory = mkdtempSync(join(tmpdir(), "carrel-sdk-"));
  t.after(() => rmSync(directory, { recursive: true, force: true }));
  return directory;
}

/** Writes an executable at `path` that runs the fake program. */
export function writeFake(path: string): string {
  const program = fileURLToPath(new URL("program.js", import.meta.url));
  mkdirSync(dirname(path), { recursive: true });
  writeFileSync(path, `#!/bin/sh\nexec '${process.execPath}' '${program}' "$@"\n`);
  chmodSync(path, 0o755);
  return path;
}

export function fake(t: TestContext): string {
  return writeFake(join(scratch(t), "sandbox-agent"));
}

/** Resolves when the process that listens at `baseUrl` has exited. It has to be running now. */
export async function watch(baseUrl: string): Promise<{ gone: Promise<void> }> {
  const response = await fetch(`${baseUrl}/hold`);
  const gone = response.text().then(
    () => undefined,
    () => undefined,
  );
  return { gone };
}

export function isAlive(pid: number): boolean {
  try {
    process.kill(pid, 0);
    return true;
  } catch {
    return false;
  }
}

/** Lets timers of this length fire at once, so that a default can be tried without waiting for it. */
export function skipTimer(t: TestContext, milliseconds: number): void {
  const real = globalThis.setTimeout;
  const skipping = (run: () => void, after?: number) => real(run, after === milliseconds ? 0 : after);
  t.mock.method(globalThis, "setTimeout", skipping as typeof setTimeout);
}
