// A server on the loopback interface with scripted responses.

import { createServer, type IncomingMessage, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import type { TestContext } from "node:test";

export interface Received {
  method: string;
  path: string;
  query: URLSearchParams;
  headers: IncomingMessage["headers"];
  body: any;
}

export type Answer = (request: Received, response: ServerResponse) => void | Promise<void>;

export interface Loopback {
  url: string;
  received: Received[];
}

/** Serves until the test ends. Every request is recorded. */
export async function serve(t: TestContext, answer: Answer): Promise<Loopback> {
  const received: Received[] = [];
  const server = createServer(async (request, response) => {
    const pieces: Buffer[] = [];
    for await (const piece of request) pieces.push(piece);
    const text = Buffer.concat(pieces).toString();
    const url = new URL(request.url ?? "/", "http://loopback");
    const one: Received = {
      method: request.method ?? "",
      path: url.pathname,
      query: url.searchParams,
      headers: request.headers,
      body: text === "" ? undefined : JSON.parse(text),
    };
    received.push(one);
    await answer(one, response);
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  t.after(() => {
    server.closeAllConnections();
    server.close();
  });
  return { url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`, received };
}

export function json(response: ServerResponse, value: unknown, status = 200, type = "application/json"): void {
  response.writeHead(status, { "content-type": type }).end(JSON.stringify(value));
}

export function problem(response: ServerResponse, status: number, code: string, detail: string): void {
  const type = `urn:sandbox-agent:error:${code}`;
  json(response, { type, title: code, status, detail, sessionId: "s" }, status, "application/problem+json");
}

export function beginStream(response: ServerResponse): ServerResponse {
  response.writeHead(200, { "content-type": "text/event-stream" }).flushHeaders();
  return response;
}

/** An event of the default view, as a frame of a stream. */
export function frame(id: number, data: object = { raw: id }): string {
  return `id: ${id}\ndata: ${JSON.stringify(event(id, data))}\n\n`;
}

export function event(id: number, data: object = { raw: id }): object {
  return { id, timestamp: "2026-01-01T00:00:00Z", sessionId: "s", agent: "mock", data };
}

export async function collect<T>(events: AsyncIterable<T>): Promise<T[]> {
  const all: T[] = [];
  for await (const one of events) all.push(one);
  return all;
}
