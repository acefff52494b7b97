// HTTP transport: base URL, token and error handling.

import { ConnectionError, SandboxAgentError } from "./errors.js";

export type Fetch = (url: string, init?: RequestInit) => Promise<Response>;

export interface TransportOptions {
  /** Base URL of the server; a path before `/v1` is kept. In a browser it may be relative to the page. */
  baseUrl: string;
  token?: string;
  fetch?: Fetch;
  /** Sent with every request. */
  headers?: ConstructorParameters<typeof Headers>[0];
}

export interface Call {
  query?: Record<string, string | number | boolean | undefined>;
  body?: unknown;
  headers?: Record<string, string>;
  signal?: AbortSignal | undefined;
}

export class Transport {
  readonly baseUrl: string;
  readonly #fetch: Fetch;
  readonly #headers: Headers;

  constructor({ baseUrl, token, fetch, headers }: TransportOptions) {
    const url = new URL(baseUrl, globalThis.location?.href);
    this.baseUrl = (url.origin + url.pathname).replace(/\/+$/, "");
    // A browser does not allow `fetch` as the method of another object.
    this.#fetch = fetch ?? ((url, init) => globalThis.fetch(url, init));
    this.#headers = new Headers(headers);
    if (token !== undefined) this.#headers.set("authorization", `Bearer ${token}`);
  }

  /** Sends a request, and returns the response unless it is an error. */
  async send(method: string, path: string, call: Call = {}): Promise<Response> {
    const headers = new Headers(this.#headers);
    for (const [name, value] of Object.entries(call.headers ?? {})) headers.set(name, value);
    const init: RequestInit = { method, headers };
    if (call.body !== undefined) {
      headers.set("content-type", "application/json");
      init.body = JSON.stringify(call.body);
    }
    if (call.signal) init.signal = call.signal;
    const response = await this.#answer(`${this.baseUrl}${path}${queryString(call.query)}`, init);
    if (!response.ok) throw await SandboxAgentError.from(response);
    return response;
  }

  /** The JSON of the response; `undefined` if it is empty. */
  async json<T>(method: string, path: string, call: Call = {}): Promise<T> {
    const response = await this.send(method, path, call);
    const text = await reached(() => response.text(), call.signal);
    return (text === "" ? undefined : JSON.parse(text)) as T;
  }

  async #answer(url: string, init: RequestInit): Promise<Response> {
    return reached(() => this.#fetch(url, init), init.signal ?? undefined);
  }
}

/** Network errors become a `ConnectionError`; an aborted request keeps its reason. */
async function reached<T>(attempt: () => Promise<T>, signal: AbortSignal | undefined): Promise<T> {
  try {
    return await attempt();
  } catch (cause) {
    if (signal?.aborted || cause instanceof ConnectionError) throw cause;
    throw new ConnectionError("the server is unreachable", { cause });
  }
}

function queryString(query: Call["query"] = {}): string {
  const given = Object.entries(query).filter(([, value]) => value !== undefined);
  if (given.length === 0) return "";
  return `?${new URLSearchParams(given.map(([name, value]) => [name, String(value)]))}`;
}
