// Kinds of events, at run time and for the compiler.

import assert from "node:assert/strict";
import test from "node:test";

import * as sdk from "@carrel/sdk";
import type { DefaultEvent, FullEvent, FullKinds, Kind } from "@carrel/sdk";

import { event } from "./support/loopback.js";

/** One of each kind; the compiler refuses it when one is missing. */
const KINDS: { [K in Kind]: FullKinds[K] } = {
  message: { role: "assistant", parts: [{ type: "text", text: "a" }, { type: "tool_call", name: "ls", input: {} }, { type: "text", text: "b" }] },
  started: { message: "session.created" },
  error: { message: "died", kind: "process_exit" },
  questionAsked: { id: "q", sessionId: "s", questions: [{ question: "Proceed?", options: [{ label: "Yes" }] }] },
  permissionAsked: { id: "p", sessionId: "s", permission: "bash", patterns: ["ls"], always: [] },
  raw: null,
  turnStarted: { turnId: "t" },
  turnEnded: { turnId: "t", outcome: "completed" },
  itemStarted: { itemId: "i", kind: "tool", name: "ls" },
  itemDelta: { itemId: "i", kind: "message", delta: "a" },
  itemCompleted: { itemId: "i", kind: "message", text: "a", status: "completed" },
  usage: { inputTokens: 1 },
  questionResolved: { id: "q", outcome: "answered", answers: [["Yes"]] },
  permissionResolved: { id: "p", outcome: "once" },
  notice: { label: "status" },
  sessionEnded: { reason: "exited", exitCode: 1 },
  sessionResumed: {},
};

const kinds = Object.keys(KINDS) as Kind[];

function guardOf(kind: Kind): (event: FullEvent) => boolean {
  return sdk[`is${kind[0]!.toUpperCase()}${kind.slice(1)}` as "isMessage"];
}

//= agents.architecture-components.shared-input-output-types
test("every kind has a type guard of its own", () => {
  for (const kind of kinds) {
    const one = event(1, { [kind]: KINDS[kind] }) as FullEvent;
    assert.equal(sdk.kindOf(one), kind);
    assert.deepEqual(kinds.filter((other) => guardOf(other)(one)), [kind]);
    assert.deepEqual(kinds.filter((other) => sdk.isKind(one, other)), [kind]);
  }
});

test("an unknown kind has a name and matches no type guard", () => {
  const one = event(1, { invented: {} }) as FullEvent;
  assert.equal(sdk.kindOf(one), "invented");
  assert.deepEqual(kinds.filter((kind) => guardOf(kind)(one)), []);
});

test("an event is narrowed by its type guard and by its data", () => {
  const one = event(1, { message: KINDS.message }) as DefaultEvent;
  assert.ok(sdk.isMessage(one));
  assert.equal(sdk.textOf(one.data.message), "ab");
  const other = event(2, { turnEnded: KINDS.turnEnded }) as FullEvent;
  assert.equal(other.data.turnEnded?.outcome, "completed");
  assert.equal(other.data.message, undefined);
});

test("an unparsed message has no text", () => {
  const unread = { raw: { odd: true }, error: "no role" };
  assert.equal(sdk.isParsed(unread), false);
  assert.equal(sdk.textOf(unread), "");
});
