// Whose server answers: between our choice of a port and our server's attempt somebody else may have taken it.

import { SandboxAgentError } from "../errors.js";
import { Transport } from "../transport.js";

/** Ours asks for a token, and takes the one that it was given. */
export async function isOurs(baseUrl: string, token: string, signal: AbortSignal): Promise<boolean> {
  try {
    // Without it first: a server that lets anybody in is not ours, and need not hear the token.
    return (await asked({ baseUrl }, signal)) === 401 && (await asked({ baseUrl, token }, signal)) === 200;
  } catch {
    return false;
  }
}

async function asked(of: { baseUrl: string; token?: string }, signal: AbortSignal): Promise<number> {
  try {
    await new Transport(of).json("GET", "/v1/sessions", { signal });
    return 200;
  } catch (error) {
    if (error instanceof SandboxAgentError) return error.status;
    throw error;
  }
}
