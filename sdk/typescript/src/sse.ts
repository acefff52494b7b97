// Parser of server-sent events: takes bytes in chunks, and returns complete events.

import { ConnectionError } from "./errors.js";

export interface ServerSentEvent {
  /** The last `id:` of this event or an earlier one. */
  id: string;
  event: string;
  data: string;
  /** The last `retry:`, in milliseconds. */
  retry?: number;
}

/** Lines end in LF, CR or CRLF. Line ends and characters may be split between chunks. */
export class EventStreamParser {
  readonly #decoder = new TextDecoder();
  /** The incomplete line, in chunks: a long one is joined once, not with every chunk. */
  #partial: string[] = [];
  #afterCarriageReturn = false;
  #data: string[] = [];
  #event = "";
  #id = "";
  #retry: number | undefined;

  push(bytes: Uint8Array): ServerSentEvent[] {
    let text = this.#decoder.decode(bytes, { stream: true });
    if (this.#afterCarriageReturn && text !== "") {
      this.#afterCarriageReturn = false;
      if (text.startsWith("\n")) text = text.slice(1);
    }
    const events: ServerSentEvent[] = [];
    const ends = /\r\n|\n|\r/g;
    let start = 0;
    for (let end = ends.exec(text); end !== null; end = ends.exec(text)) {
      this.#partial.push(text.slice(start, end.index));
      start = ends.lastIndex;
      const event = this.#line(this.#partial.join(""));
      this.#partial = [];
      if (event !== undefined) events.push(event);
      this.#afterCarriageReturn = end[0] === "\r" && start === text.length;
    }
    if (start < text.length) this.#partial.push(text.slice(start));
    return events;
  }

  #line(line: string): ServerSentEvent | undefined {
    if (line === "") return this.#dispatch();
    const colon = line.indexOf(":");
    const field = colon < 0 ? line : line.slice(0, colon);
    let value = colon < 0 ? "" : line.slice(colon + 1);
    if (value.startsWith(" ")) value = value.slice(1);
    switch (field) {
      case "data":
        this.#data.push(value);
        break;
      case "event":
        this.#event = value;
        break;
      case "id":
        if (!value.includes("\0")) this.#id = value;
        break;
      case "retry":
        if (/^\d+$/.test(value)) this.#retry = Number(value);
        break;
      default: // A comment has an empty field; an unknown one is ignored.
    }
    return undefined;
  }

  #dispatch(): ServerSentEvent | undefined {
    const data = this.#data;
    const event = this.#event || "message";
    this.#data = [];
    this.#event = "";
    if (data.length === 0) return undefined;
    const whole: ServerSentEvent = { id: this.#id, event, data: data.join("\n") };
    if (this.#retry !== undefined) whole.retry = this.#retry;
    return whole;
  }
}

/** The events of a response. An interruption or a read timeout is a `ConnectionError`. */
export async function* serverSentEvents(response: Response, silenceMs = 0): AsyncGenerator<ServerSentEvent, void> {
  const type = response.headers.get("content-type") ?? "";
  if (!type.toLowerCase().startsWith("text/event-stream") || response.body === null) {
    await response.body?.cancel();
    throw new Error(`the response is not an event stream but ${type || "empty"}`);
  }
  const reader = response.body.getReader();
  const parser = new EventStreamParser();
  let ended = false;
  try {
    for (;;) {
      const piece = await read(reader, silenceMs);
      if (piece === undefined) {
        ended = true;
        return;
      }
      yield* parser.push(piece);
    }
  } finally {
    if (!ended) reader.cancel().catch(() => undefined);
  }
}

async function read(reader: ReadableStreamDefaultReader<Uint8Array>, silenceMs: number): Promise<Uint8Array | undefined> {
  let timer: ReturnType<typeof setTimeout> | undefined;
  const silence = new Promise<never>((_, reject) => {
    if (silenceMs <= 0) return;
    timer = setTimeout(() => reject(new ConnectionError(`no data on the stream for ${silenceMs} ms`)), silenceMs);
  });
  try {
    return (await Promise.race([reader.read(), silence])).value;
  } catch (cause) {
    if (cause instanceof ConnectionError) throw cause;
    throw new ConnectionError("the stream was interrupted", { cause });
  } finally {
    clearTimeout(timer);
  }
}
