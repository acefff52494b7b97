// Checks that our own server responds: another process may have taken the port meanwhile.

import { SandboxAgentError } from "../errors.js";
import { Transport } from "../transport.js";

/** Our server requires a token, and accepts ours. */
export async function isOurs(baseUrl: string, token: string, signal: AbortSignal): Promise<boolean> {
  try {
    // Without the token first: a server that needs none is not ours, and must not receive it.
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
