// An event stream that reconnects: each event once, in order.

import { Backoff, type ReconnectOptions } from "./backoff.js";
import { ConnectionError, SandboxAgentError } from "./errors.js";
import { linked } from "./signals.js";
import { serverSentEvents } from "./sse.js";

/** Statuses of a server or proxy that is temporarily unavailable. */
const PASSING = new Set([408, 425, 429, 502, 503, 504]);
/** Maximum number of attempts before the first connection. */
const FIRST_ATTEMPTS = 5;
const SILENCE_MS = 60_000;

export interface Source {
  /** Opens the stream after the event `last`. */
  open(last: number, signal: AbortSignal): Promise<Response>;
  /** Whether the end of the stream means that it is complete. */
  readonly ends: boolean;
}

export interface FollowOptions {
  offset?: number | undefined;
  reconnect?: ReconnectOptions | undefined;
  signals: (AbortSignal | undefined)[];
}

/**
 * Ends when a signal is aborted, when the session is deleted, or with the stream if that is finite.
 * A signal whose reason is a `ConnectionError` means that the server exited, which is an error.
 */
export async function* follow<E extends { id: number }>(source: Source, options: FollowOptions): AsyncGenerator<E, void> {
  const link = linked(...options.signals);
  const backoff = new Backoff(options.reconnect);
  const silenceMs = options.reconnect?.silenceMs ?? SILENCE_MS;
  let last = options.offset ?? 0;
  let begun = false;
  try {
    while (!link.signal.aborted) {
      const connection = linked(link.signal);
      try {
        const response = await source.open(last, connection.signal);
        begun = true;
        backoff.connected();
        if (response.status === 204) return;
        for await (const frame of serverSentEvents(response, silenceMs)) {
          if (frame.retry !== undefined) backoff.begin(frame.retry);
          const event = JSON.parse(frame.data) as E;
          if (event.id <= last) continue;
          last = event.id;
          backoff.succeed();
          yield event;
          if (link.signal.aborted) break;
        }
        if (source.ends && !link.signal.aborted) return;
      } catch (error) {
        if (link.signal.aborted) continue;
        if (begun && isGone(error)) return;
        const allowed = begun ? backoff.attempts : Math.min(backoff.attempts, FIRST_ATTEMPTS);
        if (!isPassing(error) || backoff.fail() >= allowed || backoff.isOverdue()) throw error;
      } finally {
        connection.release();
      }
      await backoff.wait(link.signal);
    }
    if (link.signal.reason instanceof ConnectionError) throw link.signal.reason;
  } finally {
    link.release();
  }
}

function isGone(error: unknown): boolean {
  return error instanceof SandboxAgentError && error.status === 404;
}

function isPassing(error: unknown): boolean {
  if (error instanceof SandboxAgentError) return PASSING.has(error.status);
  return error instanceof ConnectionError;
}
