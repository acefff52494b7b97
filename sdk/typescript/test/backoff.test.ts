// Backoff.

import assert from "node:assert/strict";
import test from "node:test";

import { Backoff } from "../dist/backoff.js";
import { delay, linked } from "../dist/signals.js";

test("each delay doubles up to the bound, with jitter of at most half", () => {
  const backoff = new Backoff({ initialMs: 100, maxMs: 1_000 });
  const steps = Array.from({ length: 6 }, () => {
    backoff.fail();
    return [backoff.nextMs(() => 0), backoff.nextMs(() => 1)];
  });
  assert.deepEqual(steps, [[50, 100], [100, 200], [200, 400], [400, 800], [500, 1_000], [500, 1_000]]);
});

test("success resets the delay to the one that the server requested", () => {
  const backoff = new Backoff({ initialMs: 100 });
  backoff.fail();
  backoff.fail();
  backoff.succeed();
  backoff.begin(30);
  assert.equal(backoff.fail(), 1);
  assert.equal(backoff.nextMs(() => 1), 30);
});

test("it is overdue after a time without a connection, however many attempts failed", () => {
  const backoff = new Backoff({ giveUpMs: 1_000 });
  assert.equal(backoff.isOverdue(5_000), false);
  backoff.fail(5_000);
  backoff.fail(5_900);
  assert.deepEqual([backoff.isOverdue(5_999), backoff.isOverdue(6_000)], [false, true]);
  backoff.connected();
  backoff.fail(6_500);
  assert.deepEqual([backoff.isOverdue(7_000), new Backoff().isOverdue(7_000)], [false, false]);
});

test("a thousand failures do not overflow the delay", () => {
  const backoff = new Backoff({ maxMs: 5_000 });
  for (let n = 0; n < 1_000; n++) backoff.fail();
  assert.equal(backoff.nextMs(() => 1), 5_000);
});

test("an aborted signal ends a wait", async () => {
  const controller = new AbortController();
  const waited = delay(2 ** 31 - 1, controller.signal);
  controller.abort();
  await waited;
  await delay(2 ** 31 - 1, controller.signal);
});

test("a linked signal follows the first that is aborted, with its reason", () => {
  const [one, other] = [new AbortController(), new AbortController()];
  const link = linked(one.signal, undefined, other.signal);
  other.abort("why");
  assert.equal(link.signal.reason, "why");
  assert.equal(linked(other.signal).signal.reason, "why");
});

test("a released link has no listeners", () => {
  const source = new AbortController();
  const link = linked(source.signal);
  link.release();
  const reason = link.signal.reason;
  source.abort("late");
  assert.equal(link.signal.reason, reason);
});
