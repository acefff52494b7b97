"""Who asks: another user sees nothing of ours, and gets nothing of the host."""

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from clients.boxes import IMAGE, box
from clients.errors import SandboxClientError
from clients.plain import Client
from clients.words import Exec, State
from world.daemon import Daemon

pytestmark = pytest.mark.plain

NOBODY = 65534


@contextmanager
def as_user(user: int) -> Iterator[None]:
    """Whoever connects meanwhile is this user, as the kernel says it to the daemon."""
    os.seteuid(user)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def open_to_all(start_daemon: Callable[..., Daemon]) -> Iterator[Path]:
    """A place with the socket of a daemon that everybody can connect to, and with something that is allowed."""
    with tempfile.TemporaryDirectory(prefix="carrel-", dir="/tmp") as name:
        place = Path(name)
        place.chmod(0o711)
        (place / "allowed" / "way").mkdir(parents=True)
        (place / "secret" / "file").mkdir(parents=True)
        (place / "allowed" / "way" / "out").symlink_to(place / "secret")
        listen = f"[[listen]]\ngrpc = 'unix:{place}/open.sock'\nmode = '0666'\n"
        listen += "[[listen]]\ngrpc = 'unix:{base}/run/agbox/agboxd.sock'\n"
        start_daemon(f"[host]\nallow = ['{place}/allowed']\n{listen}")
        yield place


async def connected(socket: Path, user: int) -> Client:
    client = Client(socket)
    with as_user(user):
        # The answer says that the connection is there.
        await client.ping()
    return client


#= promises.control-plane.another-user-socket
async def test_another_user_has_neither_our_sandboxes_nor_our_files(open_to_all):
    place = open_to_all
    ours, theirs = await connected(place / "open.sock", 0), await connected(place / "open.sock", NOBODY)
    async with ours, theirs, box(ours, labels={"whose": "ours"}) as name:
        handle = await ours.create_exec(name, ["sleep", "1000"])
        # It is there, and for them it is not.
        assert [one.sandbox_id for one in await ours.list_sandboxes()] == [name]
        assert await theirs.list_sandboxes(include_deleted=True) == []
        assert await theirs.list_active_execs() == []
        for ask in (theirs.get_sandbox, theirs.stop_sandbox, theirs.resume_sandbox, theirs.delete_sandbox):
            with pytest.raises(theirs.errors.SandboxNotFoundError):
                await ask(name)
        with pytest.raises(theirs.errors.SandboxNotFoundError):
            await theirs.create_exec(name, ["true"])
        with pytest.raises(theirs.errors.SandboxNotFoundError):
            await anext(theirs.subscribe_sandbox_events(name))
        for ask in (theirs.get_exec, theirs.cancel_exec):
            with pytest.raises(theirs.errors.ExecNotFoundError):
                await ask(handle.exec_id)
        assert (await theirs.delete_sandboxes({"whose": "ours"})).deleted_count == 0
        assert (await ours.get_exec(handle.exec_id)).state == Exec.RUNNING


#= promises.control-plane.another-user-socket
async def test_another_user_gets_of_the_host_what_the_operator_allows(open_to_all):
    place = open_to_all
    ours, theirs = await connected(place / "open.sock", 0), await connected(place / "open.sock", NOBODY)
    mount, copy, allowed = theirs.types.MountSpec, theirs.types.CopySpec, str(place / "allowed")
    forbidden = (
        ("image", {"image": IMAGE}),
        ("image", {"image": str(place)}),
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
            # Whose daemon it is may ask for the same.
            handle = await ours.create_sandbox(**spec, wait=False)
            await ours.delete_sandbox(handle.sandbox_id)

        handle = await theirs.create_sandbox(image=allowed, mounts=[mount(source=f"{allowed}/way", target="/given")])
        assert handle.state == State.READY
        assert [one.sandbox_id for one in await theirs.list_sandboxes()] == [handle.sandbox_id]
        assert [one.sandbox_id for one in await ours.list_sandboxes()] == [f"u{NOBODY}~{handle.sandbox_id}"]
