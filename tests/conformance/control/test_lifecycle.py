"""The lifecycle of a sandbox: create, use, stop, resume and delete, with the default timeouts of clients."""

import asyncio

import pytest

from clients.enums import EventType, SandboxState
from clients.helpers import event_types, history, new_id, new_sandbox, shell


async def test_ping_returns_the_name_and_version_of_the_daemon(client):
    answer = await client.ping()
    assert answer.daemon == "agboxd"
    assert answer.version.startswith("carrel/")


#= control.accepted-completed.slow-operations-shape-accept
#= promises.control-plane.published-sdk-unchanged
async def test_a_full_lifecycle_fits_in_the_default_timeouts_of_a_client(client):
    handle = await client.create_sandbox(image="host", labels={"a": "b"})
    assert (handle.state, handle.image, dict(handle.labels)) == (SandboxState.READY, "host", {"a": "b"})
    name = handle.sandbox_id

    assert await shell(client, name, "echo hello > kept; cat kept") == (0, b"hello\n", b"")
    # A client waits for five seconds: a stop that takes the full grace period would be an error here.
    assert (await client.stop_sandbox(name)).state == SandboxState.STOPPED
    assert (await client.resume_sandbox(name)).state == SandboxState.READY
    assert await shell(client, name, "cat kept") == (0, b"hello\n", b"")
    assert (await client.delete_sandbox(name)).state == SandboxState.DELETED
    assert (await client.get_sandbox(name)).state == SandboxState.DELETED

    # A resume is accepted, and has no preparing phase.
    assert event_types(await history(client, name)) == [
        *(EventType.ACCEPTED, EventType.PREPARING, EventType.READY, EventType.EXEC_STARTED, EventType.EXEC_FINISHED),
        *(EventType.STOP_REQUESTED, EventType.STOPPED, EventType.ACCEPTED, EventType.READY),
        *(EventType.EXEC_STARTED, EventType.EXEC_FINISHED),
        *(EventType.DELETE_REQUESTED, EventType.DELETED),
    ]


#= control.accepted-completed.explicit-wait-parameter
#= control.accepted-completed.slow-operations-shape-accept
#= control.accepted-completed.slow-operations-return-after
#= control.accepted-completed.accepted-command-said-complete
async def test_a_create_returns_when_it_is_accepted(client):
    name = new_id()
    handle = await client.create_sandbox(image="host", sandbox_id=name, wait=False)
    assert (handle.sandbox_id, handle.state, handle.last_event_sequence) == (name, SandboxState.PENDING, 1)
    assert handle.created_at == (await client.get_sandbox(name)).created_at
    assert (await client.delete_sandbox(name)).state == SandboxState.DELETED


async def test_an_omitted_id_is_a_random_uuid(client):
    first, second = await asyncio.gather(*(client.create_sandbox(image="host", wait=False) for _ in range(2)))
    assert first.sandbox_id != second.sandbox_id
    for handle in (first, second):
        assert [len(part) for part in handle.sandbox_id.split("-")] == [8, 4, 4, 4, 12]
        assert handle.sandbox_id[14] == "4"
        await client.delete_sandbox(handle.sandbox_id)


async def test_a_sandbox_that_cannot_be_created_is_failed_and_can_only_be_deleted(client, tmp_path):
    name = new_id()
    with pytest.raises(client.errors.SandboxClientError):
        await client.create_sandbox(image=str(tmp_path / "missing"), sandbox_id=name)
    handle = await client.get_sandbox(name)
    assert (handle.state, handle.error_code) == (SandboxState.FAILED, "SANDBOX_CREATE_FAILED")
    assert handle.error_message
    assert event_types(await history(client, name))[-1] == EventType.FAILED

    for refused in (client.stop_sandbox, client.resume_sandbox):
        with pytest.raises(client.errors.SandboxInvalidStateError):
            await refused(name)
    with pytest.raises(client.errors.SandboxNotReadyError):
        await client.run(name, ["true"])
    handle = await client.delete_sandbox(name)
    assert handle.state == SandboxState.DELETED and not handle.error_code


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

    # Deleted sandboxes are not deleted again.
    result = await client.delete_sandboxes({"group": group, "half": "0"})
    assert (list(result.deleted_sandbox_ids), result.deleted_count) == ([names[2]], 1)
    result = await client.delete_sandboxes({"group": group})
    assert list(result.deleted_sandbox_ids) == sorted([names[1], names[3]])
    assert (await client.delete_sandboxes({"group": group})).deleted_count == 0
    assert {
        handle.state for handle in await client.list_sandboxes(include_deleted=True) if handle.sandbox_id in names
    } == {SandboxState.DELETED}


async def test_a_delete_is_idempotent(client):
    async with new_sandbox(client) as name:
        await client.delete_sandbox(name)
        deleted = await history(client, name)
        assert (await client.delete_sandbox(name)).state == SandboxState.DELETED
        assert len(await history(client, name)) == len(deleted)


async def test_labels_are_any_text(client):
    labels = {"": "", "ключ": "значение", "a b\n": "=,/\\\"'", "x" * 1000: "y" * 10_000}
    async with new_sandbox(client, labels=labels) as name:
        assert dict((await client.get_sandbox(name)).labels) == labels
        assert [one.sandbox_id for one in await client.list_sandboxes(label_selector={"ключ": "значение"})] == [name]
