// One session: what is asked of it most, in one call each.

import type { PermissionAnswer, PermissionReply, RequestOptions, SessionInfo, StreamOptions } from "./api.js";
import type { SandboxAgent } from "./client.js";
import { SandboxAgentError } from "./errors.js";
import type { EventOf, FullEvent, PermissionRequest, QuestionRequest, View } from "./events.js";
import { isMessage, isPermissionAsked, isQuestionAsked, isSessionEnded, isTurnEnded } from "./events.js";
import { isParsed, textOf } from "./messages.js";

type Awaitable<T> = T | Promise<T>;

export interface PromptOptions extends RequestOptions {
  messageId?: string;
  /** Called with every event as it comes. */
  onEvent?: (event: FullEvent) => void;
  /** Answers what the agent asks leave for. */
  onPermission?: (request: PermissionRequest) => Awaitable<PermissionReply | PermissionAnswer>;
  /** Answers the agent's questions; `null` rejects them. */
  onQuestion?: (request: QuestionRequest) => Awaitable<string[][] | null>;
}

export interface PromptResult {
  /** What the agent said last. */
  text: string;
  events: FullEvent[];
  /** `waiting`: the agent has asked something that no callback answers. The turn goes on. */
  outcome: "completed" | "interrupted" | "failed" | "waiting";
}

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

  /** Sends a prompt, answers what is asked meanwhile, and returns when its turn is over or nothing can answer. */
  async prompt(message: string, options: PromptOptions = {}): Promise<PromptResult> {
    const { signal, messageId, onEvent, onPermission, onQuestion } = options;
    const result: PromptResult = { text: "", events: [], outcome: "waiting" };
    const request = messageId === undefined ? { message } : { message, messageId };
    const turn = this.#client.streamTurn(this.id, request, { view: "full", ...(signal ? { signal } : {}) });
    for await (const event of turn) {
      result.events.push(event);
      onEvent?.(event);
      if (isMessage(event)) {
        const { message } = event.data;
        if (isParsed(message) && message.role === "assistant") result.text = textOf(message) || result.text;
      } else if (isPermissionAsked(event)) {
        if (!onPermission) break;
        const { permissionAsked } = event.data;
        const reply = await onPermission(permissionAsked);
        await answered(this.#client.replyPermission(this.id, permissionAsked.id, reply));
      } else if (isQuestionAsked(event)) {
        if (!onQuestion) break;
        const { questionAsked } = event.data;
        const answers = await onQuestion(questionAsked);
        await answered(
          answers === null
            ? this.#client.rejectQuestion(this.id, questionAsked.id)
            : this.#client.replyQuestion(this.id, questionAsked.id, answers),
        );
      } else if (isTurnEnded(event)) {
        result.outcome = event.data.turnEnded.outcome;
      } else if (isSessionEnded(event) && result.outcome === "waiting") {
        result.outcome = "failed";
      }
    }
    signal?.throwIfAborted();
    return result;
  }

  events<V extends View = "default">(options: StreamOptions<V> = {}): AsyncGenerator<EventOf<V>, void> {
    return this.#client.streamEvents(this.id, options);
  }

  /** Interrupts the turn and drops the prompts behind it. The session stays. */
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

/** An answer that comes too late is no failure of the prompt: somebody else has answered, or the agent asks no more. */
async function answered(reply: Promise<void>): Promise<void> {
  try {
    await reply;
  } catch (error) {
    if (!(error instanceof SandboxAgentError && error.status === 400)) throw error;
  }
}
