// Events: an envelope whose `data` has exactly one key, the kind of the event.

import type { Message } from "./messages.js";

export interface ToolReference {
  messageId: string;
  callId: string;
}

export interface QuestionOption {
  label: string;
  description?: string;
}

export interface Question {
  question: string;
  header?: string;
  options: QuestionOption[];
  multiSelect?: boolean;
  custom?: boolean;
}

export interface QuestionRequest {
  id: string;
  sessionId: string;
  questions: Question[];
  tool?: ToolReference;
}

export interface PermissionRequest {
  id: string;
  sessionId: string;
  permission: string;
  patterns: string[];
  metadata?: Record<string, unknown>;
  always: string[];
  tool?: ToolReference;
}

export type ItemKind = "message" | "reasoning" | "tool" | "plan" | "other";

export interface Usage {
  inputTokens?: number;
  outputTokens?: number;
  cachedInputTokens?: number;
  costUsd?: number;
  contextWindow?: number;
  details?: unknown;
}

/** Why an agent exited. */
export interface Exit {
  reason: "terminated" | "exited" | "failed";
  message?: string;
  exitCode?: number;
  signal?: number;
  stderr?: string;
}

/** The kinds of the default view. */
export interface DefaultKinds {
  message: Message;
  started: { message?: string; details?: unknown };
  error: { message: string; kind?: string; details?: unknown };
  questionAsked: QuestionRequest;
  permissionAsked: PermissionRequest;
  raw: unknown;
}

/** The kinds that `view: "full"` adds. */
export interface AdditionalKinds {
  turnStarted: { turnId: string; messageId?: string };
  turnEnded: { turnId: string; outcome: "completed" | "interrupted" | "failed"; message?: string; usage?: Usage };
  itemStarted: { itemId: string; kind: ItemKind; name?: string; input?: unknown };
  itemDelta: { itemId: string; kind: ItemKind; delta: string };
  itemCompleted: {
    itemId: string;
    kind: ItemKind;
    name?: string;
    text?: string;
    output?: unknown;
    status: "completed" | "failed" | "declined" | "interrupted";
  };
  usage: Usage;
  questionResolved: { id: string; outcome: "answered" | "rejected" | "withdrawn"; answers?: string[][] };
  permissionResolved: { id: string; outcome: "once" | "always" | "reject" | "withdrawn" };
  notice: { label: string; details?: unknown };
  sessionEnded: Exit;
  sessionResumed: Record<string, never>;
}

export interface FullKinds extends DefaultKinds, AdditionalKinds {}

export type Kind = keyof FullKinds;

/** An object with exactly one key of `Kinds`: `data.message` can be read of every event. */
type OneOf<Kinds> = {
  [K in keyof Kinds]: { [P in K]: Kinds[P] } & { [P in Exclude<Kind, K>]?: never };
}[keyof Kinds];

export interface Envelope<Data> {
  /** Counts from 1 without gaps, separately in each view. */
  id: number;
  timestamp: string;
  sessionId: string;
  agent: string;
  agentSessionId?: string;
  data: Data;
  /** The agent's raw message, if there is one and `includeRaw` is set. */
  raw?: unknown;
}

export type DefaultEvent = Envelope<OneOf<DefaultKinds>>;
export type FullEvent = Envelope<OneOf<FullKinds>>;

export type View = "default" | "full";
export type EventOf<V extends View> = V extends "full" ? FullEvent : DefaultEvent;

export type EventOfKind<K extends Kind> = Envelope<{ [P in K]: FullKinds[P] }>;

// === kinds ===

/** The key of an event's data. A newer server may send unknown kinds. */
export function kindOf(event: Envelope<object>): Kind | (string & {}) {
  return Object.keys(event.data)[0] ?? "";
}

export function isKind<E extends Envelope<object>, K extends Kind>(event: E, kind: K): event is E & EventOfKind<K> {
  return Object.hasOwn(event.data, kind);
}

type Guard<K extends Kind> = <E extends Envelope<object>>(event: E) => event is E & EventOfKind<K>;

function guard<K extends Kind>(kind: K): Guard<K> {
  return (event): event is typeof event & EventOfKind<K> => isKind(event, kind);
}

export const isMessage: Guard<"message"> = guard("message");
export const isStarted: Guard<"started"> = guard("started");
export const isError: Guard<"error"> = guard("error");
export const isQuestionAsked: Guard<"questionAsked"> = guard("questionAsked");
export const isPermissionAsked: Guard<"permissionAsked"> = guard("permissionAsked");
export const isRaw: Guard<"raw"> = guard("raw");
export const isTurnStarted: Guard<"turnStarted"> = guard("turnStarted");
export const isTurnEnded: Guard<"turnEnded"> = guard("turnEnded");
export const isItemStarted: Guard<"itemStarted"> = guard("itemStarted");
export const isItemDelta: Guard<"itemDelta"> = guard("itemDelta");
export const isItemCompleted: Guard<"itemCompleted"> = guard("itemCompleted");
export const isUsage: Guard<"usage"> = guard("usage");
export const isQuestionResolved: Guard<"questionResolved"> = guard("questionResolved");
export const isPermissionResolved: Guard<"permissionResolved"> = guard("permissionResolved");
export const isNotice: Guard<"notice"> = guard("notice");
export const isSessionEnded: Guard<"sessionEnded"> = guard("sessionEnded");
export const isSessionResumed: Guard<"sessionResumed"> = guard("sessionResumed");
