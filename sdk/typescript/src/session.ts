// A session, with methods for common operations.

import { Answers } from "./answers.js";
import type { PermissionAnswer, PermissionReply, RequestOptions, SessionInfo, StreamOptions } from "./api.js";
import type { ReconnectOptions } from "./backoff.js";
import type { SandboxAgent } from "./client.js";
import { ConnectionError } from "./errors.js";
import type { EventOf, FullEvent, PermissionRequest, QuestionRequest, View } from "./events.js";
import { isMessage } from "./events.js";
import { isParsed, textOf } from "./messages.js";
import { linked } from "./signals.js";

/** How long a prompt waits for a server that is unreachable. */
const GIVE_UP_MS = 300_000;

type Awaitable<T> = T | Promise<T>;

export interface PromptOptions extends RequestOptions {
  messageId?: string;
  /** Called with every event. */
  onEvent?: (event: FullEvent) => void;
  /** Answers permission requests, one at a time. */
  onPermission?: (request: PermissionRequest, options: AnswerOptions) => Awaitable<PermissionReply | PermissionAnswer>;
  /** Answers the agent's questions; `null` rejects them. */
  onQuestion?: (request: QuestionRequest, options: AnswerOptions) => Awaitable<string[][] | null>;
  /** Reconnection policy. It gives up after 5 minutes without a connection, or after `giveUpMs`. */
  reconnect?: ReconnectOptions;
}

export interface AnswerOptions {
  /** Aborted when the answer is not needed any more. */
  signal: AbortSignal;
}

export interface PromptResult {
  /** The last message of the agent. */
  text: string;
  events: FullEvent[];
  /** `waiting`: no callback answers a request of the agent. The turn continues. */
  outcome: "completed" | "interrupted" | "failed" | "waiting";
}

type Outcome = PromptResult["outcome"] | undefined;

export class Session {
  readonly #client: SandboxAgent;
  readonly id: string;

  constructor(client: SandboxAgent, id: string) {
    this.#client = client;
    this.id = id;
  }

  info(options: RequestOptions = {}): Promise<SessionInfo> {
    return this.#client.getSession(this.id, options);
  }

  /**
   * Sends a prompt, answers requests, and returns when its turn ends or a request cannot be answered.
   * An interrupted wait is an error: of the connection, of the signal, or of `dispose`.
   */
  async prompt(message: string, options: PromptOptions = {}): Promise<PromptResult> {
    const { signal, messageId, onEvent, reconnect } = options;
    const events: FullEvent[] = [];
    let text = "";
    let outcome: Outcome;
    let failed: { error: unknown } | undefined;
    const enough = new AbortController();
    const link = linked(signal, enough.signal);
    const answers = new Answers((failure) => {
      failed ??= failure;
      if (failed || (outcome === "waiting" && !answers.pending)) enough.abort();
    });
    try {
      const request = messageId === undefined ? { message } : { message, messageId };
      const turn = this.#client.streamTurn(this.id, request, {
        view: "full",
        signal: link.signal,
        reconnect: { giveUpMs: GIVE_UP_MS, ...reconnect },
      });
      for await (const event of turn) {
        events.push(event);
        onEvent?.(event);
        if (isMessage(event)) {
          const { message } = event.data;
          if (isParsed(message) && message.role === "assistant") text = textOf(message) || text;
        } else {
          outcome = this.#handleEvent(event, outcome, answers, options);
        }
        if (outcome === "waiting" && !answers.pending) break;
      }
    } finally {
      answers.close();
      link.release();
    }
    if (failed) throw failed.error;
    signal?.throwIfAborted();
    if (outcome === undefined) {
      this.#client.ended.throwIfAborted();
      throw new ConnectionError("the stream ended before the turn did");
    }
    return { text, events, outcome };
  }

  /** Handles an event, and answers requests. Returns the outcome of the turn if it has ended. */
  #handleEvent({ data }: FullEvent, outcome: Outcome, answers: Answers, options: PromptOptions): Outcome {
    const { onPermission, onQuestion } = options;
    if (data.turnEnded) return data.turnEnded.outcome;
    if (data.sessionEnded && (outcome === undefined || outcome === "waiting")) return "failed";
    if (data.permissionResolved) answers.resolve(data.permissionResolved.id);
    if (data.questionResolved) answers.resolve(data.questionResolved.id);
    if (data.permissionAsked) {
      const asked = data.permissionAsked;
      if (!onPermission) return "waiting";
      answers.ask(asked.id, async (signal) => {
        const reply = await onPermission(asked, { signal });
        if (!signal.aborted) await this.#client.replyPermission(this.id, asked.id, reply);
      });
    }
    if (data.questionAsked) {
      const asked = data.questionAsked;
      if (!onQuestion) return "waiting";
      answers.ask(asked.id, async (signal) => {
        const reply = await onQuestion(asked, { signal });
        if (signal.aborted) return;
        if (reply === null) await this.#client.rejectQuestion(this.id, asked.id);
        else await this.#client.replyQuestion(this.id, asked.id, reply);
      });
    }
    return outcome;
  }

  events<V extends View = "default">(options: StreamOptions<V> = {}): AsyncGenerator<EventOf<V>, void> {
    return this.#client.streamEvents(this.id, options);
  }

  /** Interrupts the turn and drops queued prompts. The session continues. */
  abort(options: RequestOptions = {}): Promise<void> {
    return this.#client.abort(this.id, options);
  }

  resume(options: RequestOptions = {}): Promise<void> {
    return this.#client.resumeSession(this.id, options);
  }

  terminate(options: RequestOptions = {}): Promise<void> {
    return this.#client.terminateSession(this.id, options);
  }

  delete(options: RequestOptions = {}): Promise<void> {
    return this.#client.deleteSession(this.id, options);
  }
}
