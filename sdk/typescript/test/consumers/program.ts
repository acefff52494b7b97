// What a program that uses the package is checked with: every declaration of it has to hold there as well.

import { isMessage, SandboxAgent, textOf, type FullEvent, type SpawnedServer } from "@carrel/sdk";

export async function last(agent: SandboxAgent): Promise<string> {
  let text = "";
  for await (const event of agent.streamEvents("s", { view: "full" })) {
    const full: FullEvent = event;
    if (isMessage(full)) text = textOf(full.data.message);
    if (full.data.turnEnded?.outcome === "completed") break;
  }
  // @ts-expect-error: the default view has no such kind.
  for await (const event of agent.streamEvents("s")) if (event.data.turnEnded.outcome) break;
  return text;
}

export const server: (agent: SandboxAgent) => SpawnedServer | undefined = (agent) => agent.server;
