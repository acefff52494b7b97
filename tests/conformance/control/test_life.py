"""The life of a sandbox: made, used, stopped, resumed, deleted, with the patience that clients have by default."""

import asyncio

import pytest

from clients.boxes import box, history, kinds, new_id, shell
from clients.words import Kind, State


async def test_the_daemon_says_who_it_is(client):
    answer = await client.ping()
    assert answer.daemon == "agboxd"
    assert answer.version.startswith("carrel/")


#= control.accepted-completed.slow-operations-shape-accept
#= control.order.clients-wait-baselines-drop
#= promises.control-plane.published-sdk-unchanged
async def test_a_sandbox_lives_through_everything_with_the_patience_of_a_client(client):
    handle = await client.create_sandbox(image="host", labels={"a": "b"})
    assert (handle.state, handle.image, dict(handle.labels)) == (State.READY, "host", {"a": "b"})
    name = handle.sandbox_id

    assert await shell(client, name, "echo hello > kept; cat kept") == (0, b"hello\n", b"")
    # A client gives a wait five seconds: a stop that takes as long as its grace would be an error here.
    assert (await client.stop_sandbox(name)).state == State.STOPPED
    assert (await client.resume_sandbox(name)).state == State.READY
    assert await shell(client, name, "cat kept") == (0, b"hello\n", b"")
    assert (await client.delete_sandbox(name)).state == State.DELETED
    assert (await client.get_sandbox(name)).state == State.DELETED

    # A resume is accepted again, and does not prepare.
    assert kinds(await history(client, name)) == [
        *(Kind.ACCEPTED, Kind.PREPARING, Kind.READY, Kind.EXEC_STARTED, Kind.EXEC_FINISHED),
        *(Kind.STOP_REQUESTED, Kind.STOPPED, Kind.ACCEPTED, Kind.READY, Kind.EXEC_STARTED, Kind.EXEC_FINISHED),
        *(Kind.DELETE_REQUESTED, Kind.DELETED),
    ]


#= control.accepted-completed.slow-operations-shape-accept
#= control.accepted-completed.slow-operations-return-after
#= control.accepted-completed.accepted-command-said-complete
async def test_what_is_accepted_is_not_yet_done(client):
    name = new_id()
    handle = await client.create_sandbox(image="host", sandbox_id=name, wait=False)
    assert (handle.sandbox_id, handle.state, handle.last_event_sequence) == (name, State.PENDING, 1)
    assert handle.created_at == (await client.get_sandbox(name)).created_at
    assert (await client.delete_sandbox(name)).state == State.DELETED


async def test_an_id_that_nobody_gave_is_a_random_one(client):
    first, second = await asyncio.gather(*(client.create_sandbox(image="host", wait=False) for _ in range(2)))
    assert first.sandbox_id != second.sandbox_id
    for handle in (first, second):
        assert [len(part) for part in handle.sandbox_id.split("-")] == [8, 4, 4, 4, 12]
        assert handle.sandbox_id[14] == "4"
        await client.delete_sandbox(handle.sandbox_id)


async def test_a_sandbox_that_cannot_be_made_has_failed_and_can_only_be_deleted(client, tmp_path):
    name = new_id()
    with pytest.raises(client.errors.SandboxClientError):
        await client.create_sandbox(image=str(tmp_path / "missing"), sandbox_id=name)
    handle = await client.get_sandbox(name)
    assert (handle.state, handle.error_code) == (State.FAILED, "SANDBOX_CREATE_FAILED")
    assert handle.error_message
    assert kinds(await history(client, name))[-1] == Kind.FAILED

    for refused in (client.stop_sandbox, client.resume_sandbox):
        with pytest.raises(client.errors.SandboxInvalidStateError):
            await refused(name)
    with pytest.raises(client.errors.SandboxNotReadyError):
        await client.run(name, ["true"])
    handle = await client.delete_sandbox(name)
    assert handle.state == State.DELETED and not handle.error_code


async def test_sandboxes_are_listed_newest_first_by_all_their_labels(client):
    group = new_id("group")
    names = [new_id() for _ in range(4)]
    for number, name in enumerate(names):
        labels = {"group": group, "half": str(number % 2)}
        await client.create_sandbox(image="host", sandbox_id=name, labels=labels)

    async def listed(**options):
        return [handle.sandbox_id for handle in await client.list_sandboxes(**options)]

    assert await listed(label_selector={"group": group}) == names[::-1]
    assert await listed(label_selector={"group": group, "half": "1"}) == [names[3], names[1]]
    assert await listed(label_selector={"group": group, "half": "2"}) == []
    assert [name for name in await listed() if name in names] == names[::-1]

    await client.delete_sandbox(names[0])
    assert await listed(label_selector={"group": group}) == names[:0:-1]
    assert await listed(label_selector={"group": group}, include_deleted=True) == names[::-1]

    # Those that are gone already are not gone once more.
    result = await client.delete_sandboxes({"group": group, "half": "0"})
    assert (list(result.deleted_sandbox_ids), result.deleted_count) == ([names[2]], 1)
    result = await client.delete_sandboxes({"group": group})
    assert list(result.deleted_sandbox_ids) == sorted([names[1], names[3]])
    assert (await client.delete_sandboxes({"group": group})).deleted_count == 0
    assert {
        handle.state for handle in await client.list_sandboxes(include_deleted=True) if handle.sandbox_id in names
    } == {State.DELETED}


async def test_a_delete_is_accepted_however_often(client):
    async with box(client) as name:
        await client.delete_sandbox(name)
        deleted = await history(client, name)
        assert (await client.delete_sandbox(name)).state == State.DELETED
        assert len(await history(client, name)) == len(deleted)


async def test_labels_are_any_text(client):
    labels = {"": "", "ключ": "значение", "a b\n": "=,/\\\"'", "x" * 1000: "y" * 10_000}
    async with box(client, labels=labels) as name:
        assert dict((await client.get_sandbox(name)).labels) == labels
        assert [one.sandbox_id for one in await client.list_sandboxes(label_selector={"ключ": "значение"})] == [name]
