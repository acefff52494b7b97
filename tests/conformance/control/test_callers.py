"""Callers: another user sees none of our sandboxes, and no files of the host."""

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from clients.enums import ExecState, SandboxState
from clients.errors import SandboxClientError
from clients.helpers import IMAGE, new_sandbox
from clients.plain import Client
from harness.daemon import Daemon

pytestmark = pytest.mark.plain

NOBODY = 65534


@contextmanager
def as_user(user: int) -> Iterator[None]:
    """Connections that are made meanwhile have this user as peer."""
    os.seteuid(user)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def open_daemon(start_daemon: Callable[..., Daemon]) -> Iterator[Path]:
    """A directory with the socket of a daemon that every user can connect to, and with an allowed tree."""
    with tempfile.TemporaryDirectory(prefix="carrel-", dir="/tmp") as name:
        directory = Path(name)
        directory.chmod(0o711)
        (directory / "allowed" / "way").mkdir(parents=True)
        (directory / "secret" / "file").mkdir(parents=True)
        (directory / "allowed" / "way" / "out").symlink_to(directory / "secret")
        listen = f"[[listen]]\ngrpc = 'unix:{directory}/open.sock'\nmode = '0666'\n"
        listen += "[[listen]]\ngrpc = 'unix:{base}/run/agbox/agboxd.sock'\n"
        start_daemon(f"[host]\nallow = ['{directory}/allowed']\n{listen}")
        yield directory


async def connected(socket: Path, user: int) -> Client:
    client = Client(socket)
    with as_user(user):
        # The answer shows that the connection is established.
        await client.ping()
    return client


#= promises.control-plane.another-user-socket
async def test_another_user_has_neither_our_sandboxes_nor_our_files(open_daemon):
    directory = open_daemon
    ours, theirs = await connected(directory / "open.sock", 0), await connected(directory / "open.sock", NOBODY)
    async with ours, theirs, new_sandbox(ours, labels={"whose": "ours"}) as name:
        handle = await ours.create_exec(name, ["sleep", "1000"])
        # It exists, but not for the other user.
        assert [one.sandbox_id for one in await ours.list_sandboxes()] == [name]
        assert await theirs.list_sandboxes(include_deleted=True) == []
        assert await theirs.list_active_execs() == []
        for method in (theirs.get_sandbox, theirs.stop_sandbox, theirs.resume_sandbox, theirs.delete_sandbox):
            with pytest.raises(theirs.errors.SandboxNotFoundError):
                await method(name)
        with pytest.raises(theirs.errors.SandboxNotFoundError):
            await theirs.create_exec(name, ["true"])
        with pytest.raises(theirs.errors.SandboxNotFoundError):
            await anext(theirs.subscribe_sandbox_events(name))
        for method in (theirs.get_exec, theirs.cancel_exec):
            with pytest.raises(theirs.errors.ExecNotFoundError):
                await method(handle.exec_id)
        assert (await theirs.delete_sandboxes({"whose": "ours"})).deleted_count == 0
        assert (await ours.get_exec(handle.exec_id)).state == ExecState.RUNNING


#= promises.control-plane.another-user-socket
async def test_another_user_can_use_only_host_paths_that_the_operator_allows(open_daemon):
    directory = open_daemon
    ours, theirs = await connected(directory / "open.sock", 0), await connected(directory / "open.sock", NOBODY)
    mount, copy, allowed = theirs.types.MountSpec, theirs.types.CopySpec, str(directory / "allowed")
    forbidden = (
        ("image", {"image": IMAGE}),
        ("image", {"image": str(directory)}),
        ("mounts[0].source", {"mounts": [mount(source="/etc", target="/given")]}),
        ("mounts[0].source", {"mounts": [mount(source=f"{allowed}/../secret", target="/given")]}),
        ("mounts[0].source", {"mounts": [mount(source=f"{allowed}/way/out/file", target="/given")]}),
        ("copies[0].source", {"copies": [copy(source="/etc", target="/given")]}),
        ("builtin_tools[0]", {"builtin_tools": ["npm"]}),
    )
    async with ours, theirs:
        for field, spec in forbidden:
            spec = {"image": allowed} | spec
            with pytest.raises(SandboxClientError) as refused:
                await theirs.create_sandbox(**spec)
            assert (refused.value.code.name, refused.value.reason) == ("PERMISSION_DENIED", "HOST_PATH_FORBIDDEN"), spec
            assert refused.value.metadata == {"field": field}
            # The user of the daemon may do the same.
            handle = await ours.create_sandbox(**spec, wait=False)
            await ours.delete_sandbox(handle.sandbox_id)

        handle = await theirs.create_sandbox(image=allowed, mounts=[mount(source=f"{allowed}/way", target="/given")])
        assert handle.state == SandboxState.READY
        assert [one.sandbox_id for one in await theirs.list_sandboxes()] == [handle.sandbox_id]
        assert [one.sandbox_id for one in await ours.list_sandboxes()] == [f"u{NOBODY}~{handle.sandbox_id}"]
