"""Every refusal reaches a client as its own exception."""

import pytest

from clients.helpers import new_id, new_sandbox


#= control.errors.clients-go-reasons-sentences
async def test_a_reused_id_is_a_conflict(client, sandbox):
    with pytest.raises(client.errors.SandboxConflictError) as refused:
        await client.create_sandbox(image="host", sandbox_id=sandbox)
    assert refused.value.sandbox_id == sandbox
    handle = await client.run(sandbox, ["true"])
    with pytest.raises(client.errors.SandboxConflictError) as refused:
        await client.create_exec(sandbox, ["true"], exec_id=handle.exec_id)
    assert refused.value.sandbox_id is None


#= control.errors.clients-go-reasons-sentences
async def test_a_missing_sandbox_or_exec_is_not_found(client):
    for method in (client.get_sandbox, client.stop_sandbox, client.resume_sandbox, client.delete_sandbox):
        with pytest.raises(client.errors.SandboxNotFoundError) as refused:
            await method("nobody")
        assert refused.value.sandbox_id == "nobody"
    with pytest.raises(client.errors.SandboxNotFoundError):
        await client.run("nobody", ["true"])
    with pytest.raises(client.errors.SandboxNotFoundError):
        await anext(client.subscribe_sandbox_events("nobody"))
    for method in (client.get_exec, client.cancel_exec):
        with pytest.raises(client.errors.ExecNotFoundError) as refused:
            await method("nothing")
        assert refused.value.exec_id == "nothing"


#= control.errors.clients-go-reasons-sentences
async def test_a_stopped_sandbox_runs_no_exec(client, sandbox):
    await client.stop_sandbox(sandbox)
    with pytest.raises(client.errors.SandboxNotReadyError) as refused:
        await client.run(sandbox, ["true"])
    assert refused.value.sandbox_id == sandbox
    with pytest.raises(client.errors.SandboxInvalidStateError):
        await client.stop_sandbox(sandbox)


#= control.errors.clients-go-reasons-sentences
async def test_an_exec_that_exited_cannot_be_cancelled(client, sandbox):
    handle = await client.run(sandbox, ["false"])
    with pytest.raises(client.errors.ExecAlreadyTerminalError) as refused:
        await client.cancel_exec(handle.exec_id)
    assert refused.value.exec_id == handle.exec_id


async def test_an_error_message_names_the_invalid_field(client):
    with pytest.raises(client.errors.SandboxClientError, match="cpu_limit"):
        await client.create_sandbox(image="host", cpu_limit="none")
    with pytest.raises(client.errors.SandboxClientError, match="sandbox_id"):
        await client.create_sandbox(image="host", sandbox_id="no")
    async with new_sandbox(client, sandbox_id=new_id()) as name:
        with pytest.raises(client.errors.SandboxClientError, match="exec_id"):
            await client.create_exec(name, ["true"], exec_id="no")
