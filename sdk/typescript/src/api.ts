// What is asked of the server and what it answers, besides events.

import type { ReconnectOptions } from "./backoff.js";
import type { Exit, View } from "./events.js";

export interface Health {
  status: string;
}

export interface AgentInfo {
  id: string;
  installed: boolean;
  version?: string;
  path?: string;
}

export interface AgentList {
  agents: AgentInfo[];
}

export interface AgentMode {
  id: string;
  name: string;
  description: string;
}

export interface AgentModes {
  modes: AgentMode[];
}

export interface AgentModel {
  id: string;
  name?: string;
  variants?: string[];
  defaultVariant?: string;
}

export interface AgentModels {
  models: AgentModel[];
  defaultModel?: string;
}

export interface CreateSessionRequest {
  agent: string;
  agentMode?: string;
  permissionMode?: string;
  model?: string;
  variant?: string;
  agentVersion?: string;
  directory?: string;
  title?: string;
}

export interface CreateSessionResponse {
  healthy: boolean;
  error?: { type: string; message: string; agent?: string; session_id?: string; details?: unknown };
  agentSessionId?: string;
}

export interface UpdateSessionRequest {
  permissionMode?: string;
  agentMode?: string;
  model?: string;
  variant?: string;
  title?: string;
}

export interface SessionInfo {
  sessionId: string;
  agent: string;
  agentMode: string;
  permissionMode: string;
  model: string | null;
  variant: string | null;
  agentSessionId: string | null;
  ended: boolean;
  eventCount: number;
  /** Milliseconds since 1970, as `updatedAt`. */
  createdAt: number;
  updatedAt: number;
  directory: string;
  title: string | null;
  status: "idle" | "running" | "waiting" | "ended";
  /** How many prompts wait for the turn that runs. */
  queued: number;
  exit?: Exit;
}

export interface SessionList {
  sessions: SessionInfo[];
}

export interface MessageRequest {
  message: string;
  /** The same id and text again runs nothing twice. One is made up where none is given. */
  messageId?: string;
}

export interface QuestionAnswer {
  /** For each question the labels that were chosen. */
  answers: string[][];
}

export type PermissionReply = "once" | "always" | "reject";

export interface PermissionAnswer {
  reply: PermissionReply;
  /** Tells the agent why it was rejected. */
  message?: string;
}

export interface RequestOptions {
  signal?: AbortSignal;
}

export interface ViewOptions<V extends View = View> extends RequestOptions {
  view?: V;
  includeRaw?: boolean;
}

export interface EventQuery<V extends View = View> extends ViewOptions<V> {
  /** The id of the last event that is already known. */
  offset?: number;
  limit?: number;
}

export interface EventPage<E> {
  events: E[];
  hasMore: boolean;
}

export interface StreamOptions<V extends View = View> extends ViewOptions<V> {
  /** The id of the last event that is already known. */
  offset?: number;
  reconnect?: ReconnectOptions;
}

export interface TurnOptions<V extends View = View> extends ViewOptions<V> {
  /** For how many seconds the stream outlasts a question that nobody answers. */
  wait?: number;
  reconnect?: ReconnectOptions;
}
