// A stream of events over as many connections as it takes: each event once, in order.

import { Backoff, type ReconnectOptions } from "./backoff.js";
import { ConnectionError, SandboxAgentError } from "./errors.js";
import { linked } from "./signals.js";
import { serverSentEvents } from "./sse.js";

/** What a server or a proxy says when it will be back. */
const PASSING = new Set([408, 425, 429, 502, 503, 504]);
/** A stream that has never begun gives up soon: nothing is there to be continued. */
const FIRST_ATTEMPTS = 5;
const SILENCE_MS = 60_000;

export interface Source {
  /** Opens the stream behind the event `last`. */
  open(last: number, signal: AbortSignal): Promise<Response>;
  /** Whether the server ends the stream because it is complete, or only because it must. */
  readonly ends: boolean;
}

export interface FollowOptions {
  offset?: number | undefined;
  reconnect?: ReconnectOptions | undefined;
  signals: (AbortSignal | undefined)[];
}

/**
 * Ends when a signal is aborted, when the session is gone, or with the stream if that has an end of its own.
 * A signal whose reason is a `ConnectionError` says that the server is lost, and is no end but a failure.
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
