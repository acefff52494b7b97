// The parser of server-sent events, with chunks of any size.

import assert from "node:assert/strict";
import test from "node:test";

import { EventStreamParser, type ServerSentEvent } from "@carrel/sdk";

function parse(...pieces: (string | Uint8Array)[]): ServerSentEvent[] {
  const parser = new EventStreamParser();
  return pieces.flatMap((piece) => parser.push(typeof piece === "string" ? Buffer.from(piece) : piece));
}

const DOCUMENT = [
  ": keep-alive\n\n",
  "id: 1\ndata: {\"text\":\"grüße 🦀\"}\n\n",
  "id: 2\r\ndata: first\r\ndata: second\r\n\r\n",
  "retry: 250\rid: 3\rdata:unspaced\r\r",
  "event: note\ndata\n\n",
  "id: 4\nunknown: field\n\n",
  "data: last\n\n",
].join("");

const EVENTS: ServerSentEvent[] = [
  { id: "1", event: "message", data: '{"text":"grüße 🦀"}' },
  { id: "2", event: "message", data: "first\nsecond" },
  { id: "3", event: "message", data: "unspaced", retry: 250 },
  { id: "3", event: "note", data: "", retry: 250 },
  { id: "4", event: "message", data: "last", retry: 250 },
];

test("a document in one chunk is parsed", () => {
  assert.deepEqual(parse(DOCUMENT), EVENTS);
});

test("a document is parsed the same wherever it is split", () => {
  const bytes = Buffer.from(DOCUMENT);
  for (let at = 0; at <= bytes.length; at++) {
    assert.deepEqual(parse(bytes.subarray(0, at), bytes.subarray(at)), EVENTS, `split at byte ${at}`);
  }
});

test("a document is parsed the same in chunks of any size", () => {
  const bytes = Buffer.from(DOCUMENT);
  for (let size = 1; size <= 9; size++) {
    const pieces = Array.from({ length: Math.ceil(bytes.length / size) }, (_, n) => bytes.subarray(n * size, (n + 1) * size));
    assert.deepEqual(parse(...pieces), EVENTS, `pieces of ${size}`);
  }
});

test("a byte order mark at the start is skipped", () => {
  assert.deepEqual(parse(new Uint8Array([0xef, 0xbb]), new Uint8Array([0xbf]), "data: x\n\n"), [
    { id: "", event: "message", data: "x" },
  ]);
});

test("an event without its blank line is incomplete", () => {
  assert.deepEqual(parse("id: 1\ndata: half\n"), []);
});

test("an id with a zero byte and a retry that is not a number are ignored", () => {
  assert.deepEqual(parse("id: 1\nid: a\0b\nretry: soon\ndata: x\n\n"), [{ id: "1", event: "message", data: "x" }]);
});

test("only one space after the colon is removed", () => {
  assert.equal(parse("data:  two\n\n")[0]?.data, " two");
});

test("an empty chunk inside a line end changes nothing", () => {
  assert.deepEqual(parse("data: x\r", "", "\n\r\n").map((one) => one.data), ["x"]);
});

test("a line of 4 MiB in small chunks is one event", () => {
  const parser = new EventStreamParser();
  const piece = Buffer.alloc(64, "x");
  parser.push(Buffer.from("data: "));
  for (let sent = 0; sent < 4 << 20; sent += piece.length) assert.deepEqual(parser.push(piece), []);
  assert.equal(parser.push(Buffer.from("\n\n"))[0]?.data.length, 4 << 20);
});
