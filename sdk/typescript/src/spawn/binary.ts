// Finds the program `sandbox-agent`.

import { constants } from "node:fs";
import { access, stat } from "node:fs/promises";
import { createRequire } from "node:module";
import { delimiter, dirname, join, resolve } from "node:path";

const PROGRAM = process.platform === "win32" ? "sandbox-agent.exe" : "sandbox-agent";

export interface Search {
  binaryPath?: string | undefined;
  env: Record<string, string | undefined>;
  /** The file whose `node_modules` are searched. */
  from?: string;
}

/** A configured path is used or is an error; the program is searched only if none is configured. */
export async function findBinary({ binaryPath, env, from = import.meta.url }: Search): Promise<string> {
  if (binaryPath !== undefined) return named(binaryPath, "binaryPath");
  if (env.SANDBOX_AGENT_BIN) return named(env.SANDBOX_AGENT_BIN, "SANDBOX_AGENT_BIN");
  const packaged = platformPackage();
  const onPath = (env.PATH ?? "").split(delimiter).filter((place) => place !== "");
  const candidates = [inPackage(packaged, from), ...onPath.map((place) => join(place, PROGRAM))];
  for (const candidate of candidates) {
    if (candidate && (await isProgram(candidate))) return candidate;
  }
  throw new Error(
    `sandbox-agent was not found: neither the package ${packaged} nor a ${PROGRAM} on PATH is there.\n` +
      "hint: set SANDBOX_AGENT_BIN, or pass binaryPath",
  );
}

/** Such as `@carrel/sandbox-agent-linux-x64`. The program is static: one package serves every Linux of an architecture. */
export function platformPackage(): string {
  return `@carrel/sandbox-agent-${process.platform}-${process.arch}`;
}

async function named(path: string, by: string): Promise<string> {
  if (await isProgram(path)) return resolve(path);
  throw new Error(`${by} names ${path}, which is not an executable program`);
}

function inPackage(name: string, from: string): string | undefined {
  try {
    return join(dirname(createRequire(from).resolve(`${name}/package.json`)), "bin", PROGRAM);
  } catch {
    return undefined;
  }
}

async function isProgram(path: string): Promise<boolean> {
  try {
    await access(path, constants.X_OK);
    return (await stat(path)).isFile();
  } catch {
    return false;
  }
}
