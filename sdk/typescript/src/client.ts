// The client: one method for each route of the server, and streams that outlive their connections.

/// <reference lib="esnext.disposable" preserve="true" />

import type {
  AgentList,
  AgentModels,
  AgentModes,
  CreateSessionRequest,
  CreateSessionResponse,
  EventPage,
  EventQuery,
  Health,
  MessageRequest,
  PermissionAnswer,
  PermissionReply,
  QuestionAnswer,
  RequestOptions,
  SessionInfo,
  SessionList,
  StreamOptions,
  TurnOptions,
  UpdateSessionRequest,
} from "./api.js";
import { Backoff } from "./backoff.js";
import { spawnSandboxAgent, type SpawnedServer, type SpawnOptions } from "./embedded.js";
import { ConnectionError } from "./errors.js";
import type { EventOf, View } from "./events.js";
import { waitForHealth } from "./health.js";
import { Session } from "./session.js";
import { linked } from "./signals.js";
import { follow } from "./stream.js";
import { Transport, type TransportOptions } from "./transport.js";

const HEALTH_TIMEOUT_MS = 5_000;
/** How often a prompt is sent if the server is unreachable. Its id makes the retry idempotent. */
const PROMPT_ATTEMPTS = 3;
/** The stream of a turn waits a day for an answer. */
const TURN_WAIT_SECONDS = 86_400;

export interface ConnectOptions extends TransportOptions {
  /** Cancels the wait for the server. */
  signal?: AbortSignal;
  /** How long to wait for a healthy server; 5 s by default. */
  timeoutMs?: number;
  /** Skips the health check. */
  skipHealthCheck?: boolean;
}

export interface StartOptions extends Pick<TransportOptions, "fetch" | "headers"> {
  /** How the server is started. `false` is an error. */
  spawn?: boolean | SpawnOptions;
  /** Cancels the wait for the server, and stops the server. */
  signal?: AbortSignal;
}

export interface SandboxAgent extends AsyncDisposable {}

export class SandboxAgent {
  readonly #transport: Transport;
  readonly #server: SpawnedServer | undefined;
  /** Aborted by `dispose`, or with a `ConnectionError` when our server exits. */
  readonly #ended = new AbortController();

  private constructor(transport: Transport, server?: SpawnedServer) {
    this.#transport = transport;
    this.#server = server;
    void server?.gone.then((how) => this.#ended.abort(new ConnectionError(how)));
  }

  /** Connects to a running server. */
  static async connect(options: ConnectOptions): Promise<SandboxAgent> {
    const transport = new Transport(options);
    options.signal?.throwIfAborted();
    if (!options.skipHealthCheck) {
      await waitForHealth(transport, { timeoutMs: options.timeoutMs ?? HEALTH_TIMEOUT_MS, signal: options.signal });
    }
    return new SandboxAgent(transport);
  }

  /** Starts a server and connects to it. `dispose` stops both. Only in Node.js. */
  static async start(options: StartOptions = {}): Promise<SandboxAgent> {
    const { spawn = true, fetch, headers, signal } = options;
    if (spawn === false) throw new Error("SandboxAgent.start needs `spawn`; use SandboxAgent.connect with a running server");
    const spawning: SpawnOptions = { ...(spawn === true ? {} : spawn) };
    if (signal) spawning.signal = signal;
    const server = await spawnSandboxAgent(spawning);
    let gone: string | undefined;
    void server.gone.then((how) => (gone = how));
    const of: TransportOptions = {
      baseUrl: server.baseUrl,
      token: server.token,
      // Another process that uses the port after our server must not receive the token.
      fetch: async (url, init) => {
        if (gone !== undefined) throw new ConnectionError(gone);
        return (fetch ?? globalThis.fetch)(url, init);
      },
    };
    if (headers) of.headers = headers;
    return new SandboxAgent(new Transport(of), server);
  }

  get baseUrl(): string {
    return this.#transport.baseUrl;
  }

  /** The server that `start` started. */
  get server(): SpawnedServer | undefined {
    return this.#server;
  }

  /** Aborted by `dispose`, or when the server of `start` exits. */
  get ended(): AbortSignal {
    return this.#ended.signal;
  }

  /** Closes all streams, and stops the server if it is ours. */
  async dispose(): Promise<void> {
    this.#ended.abort(new DOMException("the client was disposed of", "AbortError"));
    await this.#server?.dispose();
  }

  // === the server and its agents ===

  getHealth(options: RequestOptions = {}): Promise<Health> {
    return this.#transport.json("GET", "/v1/health", options);
  }

  listAgents(options: RequestOptions = {}): Promise<AgentList> {
    return this.#transport.json("GET", "/v1/agents", options);
  }

  installAgent(agent: string, request: { reinstall?: boolean } = {}, options: RequestOptions = {}): Promise<void> {
    return this.#transport.json("POST", `/v1/agents/${segment(agent)}/install`, { body: request, ...options });
  }

  getAgentModes(agent: string, options: RequestOptions = {}): Promise<AgentModes> {
    return this.#transport.json("GET", `/v1/agents/${segment(agent)}/modes`, options);
  }

  getAgentModels(agent: string, options: RequestOptions = {}): Promise<AgentModels> {
    return this.#transport.json("GET", `/v1/agents/${segment(agent)}/models`, options);
  }

  // === sessions ===

  /** A handle of one session, which need not exist yet. */
  session(sessionId: string): Session {
    return new Session(this, sessionId);
  }

  createSession(
    sessionId: string,
    request: CreateSessionRequest,
    options: RequestOptions = {},
  ): Promise<CreateSessionResponse> {
    return this.#transport.json("POST", sessionPath(sessionId), { body: request, ...options });
  }

  listSessions(options: RequestOptions = {}): Promise<SessionList> {
    return this.#transport.json("GET", "/v1/sessions", options);
  }

  getSession(sessionId: string, options: RequestOptions = {}): Promise<SessionInfo> {
    return this.#transport.json("GET", sessionPath(sessionId), options);
  }

  updateSession(
    sessionId: string,
    request: UpdateSessionRequest,
    options: RequestOptions = {},
  ): Promise<SessionInfo> {
    return this.#transport.json("PATCH", sessionPath(sessionId), { body: request, ...options });
  }

  deleteSession(sessionId: string, options: RequestOptions = {}): Promise<void> {
    return this.#transport.json("DELETE", sessionPath(sessionId), options);
  }

  terminateSession(sessionId: string, options: RequestOptions = {}): Promise<void> {
    return this.#transport.json("POST", `${sessionPath(sessionId)}/terminate`, options);
  }

  resumeSession(sessionId: string, options: RequestOptions = {}): Promise<void> {
    return this.#transport.json("POST", `${sessionPath(sessionId)}/resume`, options);
  }

  /** Interrupts the turn and drops queued prompts. The session continues. */
  abort(sessionId: string, options: RequestOptions = {}): Promise<void> {
    return this.#transport.json("POST", `${sessionPath(sessionId)}/abort`, options);
  }

  // === prompts ===

  /** Sends a prompt, and retries if the server is unreachable; its id makes the retry idempotent. */
  async postMessage(sessionId: string, prompt: string | MessageRequest, options: RequestOptions = {}): Promise<void> {
    const body = messageOf(prompt);
    const backoff = new Backoff();
    const link = linked(this.#ended.signal, options.signal);
    try {
      for (;;) {
        try {
          const call = { body, signal: link.signal };
          return await this.#transport.json("POST", `${sessionPath(sessionId)}/messages`, call);
        } catch (error) {
          if (!(error instanceof ConnectionError) || backoff.fail() >= PROMPT_ATTEMPTS) throw error;
        }
        await backoff.wait(link.signal);
      }
    } finally {
      link.release();
    }
  }

  /** Sends a prompt and returns the raw response: server-sent events of its turn. */
  postMessageStream<V extends View = "default">(
    sessionId: string,
    prompt: string | MessageRequest,
    options: Omit<TurnOptions<V>, "reconnect"> & { offset?: number } = {},
  ): Promise<Response> {
    const { signal, ...query } = options;
    return this.#transport.send("POST", `${sessionPath(sessionId)}/messages/stream`, {
      body: messageOf(prompt),
      query,
      headers: { accept: "text/event-stream" },
      signal,
    });
  }

  /** Sends a prompt and yields the events of its turn. After a disconnect it resumes with the same prompt id. */
  streamTurn<V extends View = "default">(
    sessionId: string,
    prompt: string | MessageRequest,
    options: TurnOptions<V> = {},
  ): AsyncGenerator<EventOf<V>, void> {
    const { signal, reconnect, wait = TURN_WAIT_SECONDS, ...view } = options;
    const message = messageOf(prompt);
    const open = (last: number, signal: AbortSignal) =>
      this.postMessageStream(sessionId, message, { ...view, wait, signal, ...(last > 0 ? { offset: last } : {}) });
    return follow({ open, ends: true }, { reconnect, signals: [this.#ended.signal, signal] });
  }

  // === events ===

  getEvents<V extends View = "default">(sessionId: string, query: EventQuery<V> = {}): Promise<EventPage<EventOf<V>>> {
    const { signal, ...rest } = query;
    return this.#transport.json("GET", `${sessionPath(sessionId)}/events`, { query: rest, signal });
  }

  /** The raw event stream of one connection. */
  getEventsSse<V extends View = "default">(
    sessionId: string,
    options: Omit<StreamOptions<V>, "reconnect"> = {},
  ): Promise<Response> {
    const { signal, ...query } = options;
    const headers = { accept: "text/event-stream" };
    return this.#transport.send("GET", `${sessionPath(sessionId)}/events/sse`, { query, headers, signal });
  }

  /** All events after `offset`, including future ones. Ends with the signal, with `dispose`, or when the session is deleted. */
  streamEvents<V extends View = "default">(
    sessionId: string,
    options: StreamOptions<V> = {},
  ): AsyncGenerator<EventOf<V>, void> {
    const { signal, reconnect, offset, ...view } = options;
    const open = (last: number, signal: AbortSignal) =>
      this.getEventsSse(sessionId, { ...view, offset: last, signal });
    return follow({ open, ends: false }, { offset, reconnect, signals: [this.#ended.signal, signal] });
  }

  // === answers ===

  /** The chosen labels of each question. */
  replyQuestion(
    sessionId: string,
    questionId: string,
    answers: string[][] | QuestionAnswer,
    options: RequestOptions = {},
  ): Promise<void> {
    const path = `${sessionPath(sessionId)}/questions/${segment(questionId)}/reply`;
    return this.#transport.json("POST", path, { body: Array.isArray(answers) ? { answers } : answers, ...options });
  }

  rejectQuestion(sessionId: string, questionId: string, options: RequestOptions = {}): Promise<void> {
    return this.#transport.json("POST", `${sessionPath(sessionId)}/questions/${segment(questionId)}/reject`, options);
  }

  replyPermission(
    sessionId: string,
    permissionId: string,
    reply: PermissionReply | PermissionAnswer,
    options: RequestOptions = {},
  ): Promise<void> {
    const path = `${sessionPath(sessionId)}/permissions/${segment(permissionId)}/reply`;
    return this.#transport.json("POST", path, { body: typeof reply === "string" ? { reply } : reply, ...options });
  }
}

// Older browsers do not have this symbol, and would get a method called `undefined`.
if (Symbol.asyncDispose) {
  SandboxAgent.prototype[Symbol.asyncDispose] = SandboxAgent.prototype.dispose;
}

/** Escapes one path segment. `.` and `..` would be resolved even if escaped. */
function segment(id: string): string {
  if (id === "" || id === "." || id === "..") throw new TypeError(`not an id: ${JSON.stringify(id)}`);
  return encodeURIComponent(id);
}

function sessionPath(sessionId: string): string {
  return `/v1/sessions/${segment(sessionId)}`;
}

/** A prompt always has an id, so that it can be retried. `crypto.randomUUID` is missing on pages without TLS. */
function messageOf(prompt: string | MessageRequest): Required<MessageRequest> {
  const { message, messageId } = typeof prompt === "string" ? { message: prompt, messageId: undefined } : prompt;
  if (messageId !== undefined) return { message, messageId };
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return { message, messageId: Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("") };
}
