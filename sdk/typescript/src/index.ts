// @carrel/sdk: a client of sandbox-agent, for Node.js and browsers.

export * from "./api.js";
export { SandboxAgent } from "./client.js";
export type { ConnectOptions, StartOptions } from "./client.js";
export { spawnSandboxAgent } from "./embedded.js";
export type { SpawnedServer, SpawnOptions } from "./embedded.js";
export { ConnectionError, SandboxAgentError } from "./errors.js";
export type { Problem } from "./errors.js";
export * from "./events.js";
export * from "./messages.js";
export { Session } from "./session.js";
export type { AnswerOptions, PromptOptions, PromptResult } from "./session.js";
export { EventStreamParser } from "./sse.js";
export type { ServerSentEvent } from "./sse.js";
export type { ReconnectOptions } from "./backoff.js";
export type { Fetch } from "./transport.js";
