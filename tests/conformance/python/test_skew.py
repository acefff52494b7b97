"""A client with an agentd of every generation: only newer features fail, with their own error."""

import microsandbox
import pytest

from clients.release import CLIENT, NEWEST
from clients.sandbox import attach, run

# Against generation 1 the release must read the legacy prologue too, which those from 0.5.1 on do.
pytestmark = pytest.mark.release("agent_client")

FILES_SINCE, PING_SINCE = 2, 6


#= versioning.number-agreed-upon-once.old-host-talks-newer
#= promises.published-clients.generations-agent-0-5
@pytest.mark.parametrize("generation", range(1, NEWEST + 1))
async def test_only_features_that_are_newer_than_the_agent_fail(start_agentd, tmp_path, generation):
    sandbox = await attach(start_agentd(generation))
    assert await run(sandbox, tmp_path, "printf out; exit 7") == (7, b"out", b"")

    path = tmp_path / "file"
    if generation >= FILES_SINCE:
        await sandbox.fs.write(str(path), b"data" * 100_000)
        assert path.read_bytes() == b"data" * 100_000
        assert await sandbox.fs.read(str(path)) == b"data" * 100_000
    else:
        with pytest.raises(microsandbox.UnsupportedOperationError, match="core.fs.request"):
            await sandbox.fs.write(str(path), b"data")
        assert not path.exists()

    if CLIENT.generation >= PING_SINCE and generation >= PING_SINCE:
        assert (await sandbox.ping()).latency_ms >= 0
    elif CLIENT.generation >= PING_SINCE:
        with pytest.raises(microsandbox.UnsupportedOperationError, match="core.ping"):
            await sandbox.ping()

    # A failed feature has no other effect.
    assert await run(sandbox, tmp_path, "printf on") == (0, b"on", b"")
