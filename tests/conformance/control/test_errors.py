"""Every refusal reaches a client as the exception that it has for it."""

import pytest

from clients.boxes import box, new_id


#= control.errors.clients-go-reasons-sentences
async def test_an_id_that_was_used_is_a_conflict(client, sandbox):
    with pytest.raises(client.errors.SandboxConflictError) as refused:
        await client.create_sandbox(image="host", sandbox_id=sandbox)
    assert refused.value.sandbox_id == sandbox
    handle = await client.run(sandbox, ["true"])
    with pytest.raises(client.errors.SandboxConflictError) as refused:
        await client.create_exec(sandbox, ["true"], exec_id=handle.exec_id)
    assert refused.value.sandbox_id is None


#= control.errors.clients-go-reasons-sentences
async def test_what_is_not_there_is_not_found(client):
    for ask in (client.get_sandbox, client.stop_sandbox, client.resume_sandbox, client.delete_sandbox):
        with pytest.raises(client.errors.SandboxNotFoundError) as refused:
            await ask("nobody")
        assert refused.value.sandbox_id == "nobody"
    with pytest.raises(client.errors.SandboxNotFoundError):
        await client.run("nobody", ["true"])
    with pytest.raises(client.errors.SandboxNotFoundError):
        await anext(client.subscribe_sandbox_events("nobody"))
    for ask in (client.get_exec, client.cancel_exec):
        with pytest.raises(client.errors.ExecNotFoundError) as refused:
            await ask("nothing")
        assert refused.value.exec_id == "nothing"


#= control.errors.clients-go-reasons-sentences
async def test_what_is_not_ready_runs_nothing(client, sandbox):
    await client.stop_sandbox(sandbox)
    with pytest.raises(client.errors.SandboxNotReadyError) as refused:
        await client.run(sandbox, ["true"])
    assert refused.value.sandbox_id == sandbox
    with pytest.raises(client.errors.SandboxInvalidStateError):
        await client.stop_sandbox(sandbox)


#= control.errors.clients-go-reasons-sentences
async def test_what_has_ended_cannot_be_cancelled(client, sandbox):
    handle = await client.run(sandbox, ["false"])
    with pytest.raises(client.errors.ExecAlreadyTerminalError) as refused:
        await client.cancel_exec(handle.exec_id)
    assert refused.value.exec_id == handle.exec_id


async def test_what_is_wrong_is_said_in_words(client):
    with pytest.raises(client.errors.SandboxClientError, match="cpu_limit"):
        await client.create_sandbox(image="host", cpu_limit="none")
    with pytest.raises(client.errors.SandboxClientError, match="sandbox_id"):
        await client.create_sandbox(image="host", sandbox_id="no")
    async with box(client, sandbox_id=new_id()) as name:
        with pytest.raises(client.errors.SandboxClientError, match="exec_id"):
            await client.create_exec(name, ["true"], exec_id="no")
