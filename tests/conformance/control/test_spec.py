"""The spec of a sandbox: mounts, copies, ports, limits, idle time, command, and a configuration file."""

import asyncio
import contextlib
import datetime
import socket
from pathlib import Path

import pytest

from clients.enums import EventType, ExecState, SandboxState
from clients.helpers import event_types, history, is_event, new_id, new_sandbox, script, shell, until, writable_mount
from harness.pipe import Gate, Pipe


def tree(root: Path) -> Path:
    """A directory with files, directories, a program and a symlink."""
    for name in ("a.txt", "b.log", "deep/a.txt", "deep/b.log", "skipped/a.txt", "deep/skipped/a.txt"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)
    (root / "program").write_text("#!/bin/sh\necho ran\n")
    (root / "program").chmod(0o755)
    (root / "link").symlink_to("a.txt")
    return root


async def test_mounts_are_read_only_or_writable_as_requested(client, tmp_path):
    for name in ("ro", "rw"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(f"of {name}")
    (tmp_path / "single").write_text("one file")
    mount = client.types.MountSpec
    mounts = (
        mount(source=str(tmp_path / "ro"), target="/given/ro"),
        mount(source=str(tmp_path / "rw"), target="~/rw", writable=True),
        mount(source=str(tmp_path / "single"), target="/given/single"),
    )
    async with new_sandbox(client, mounts=mounts) as name:
        _, out, _ = await shell(client, name, "cat /given/ro/file /home/agbox/rw/file /given/single")
        assert out == b"of roof rwone file"
        assert (await shell(client, name, "echo x > /given/ro/file"))[0] != 0
        assert (await shell(client, name, "echo x > /given/single"))[0] != 0
        assert (await shell(client, name, "echo written > /home/agbox/rw/new"))[0] == 0
    assert (tmp_path / "ro" / "file").read_text() == "of ro"
    assert (tmp_path / "rw" / "new").read_text() == "written\n"
    # A new file belongs to the owner of the directory.
    assert (tmp_path / "rw" / "new").stat().st_uid == (tmp_path / "rw").stat().st_uid


async def test_a_socket_can_be_mounted(client, tmp_path):
    path = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        path.chmod(0o777)
        listener.listen()
        async with new_sandbox(
            client, mounts=(client.types.MountSpec(source=str(path), target="/given.sock", writable=True),)
        ) as name:
            talk = "import socket; s = socket.socket(socket.AF_UNIX); s.connect('/given.sock'); s.sendall(b'hello')"
            assert (await client.run(name, ["python3", "-c", talk])).exit_code == 0
            with listener.accept()[0] as connection:
                assert connection.recv(16) == b"hello"


async def test_copies_leave_out_excluded_patterns(client, tmp_path):
    copy = client.types.CopySpec
    source = str(tree(tmp_path / "source"))
    copies = (
        copy(source=source, target="/copied/all"),
        copy(source=source, target="~/some", exclude_patterns=("*.log", "skipped", "deep/a.txt")),
        copy(source=f"{source}/a.txt", target="/copied/single.txt"),
    )
    async with new_sandbox(client, copies=copies) as name:
        find = "cd {} && find . -mindepth 1 | sort"
        _, out, _ = await shell(client, name, find.format("/copied/all"))
        assert out.decode().split() == sorted(f"./{path.relative_to(source)}" for path in Path(source).rglob("*"))
        _, out, _ = await shell(client, name, find.format("~/some"))
        assert out.decode().split() == ["./a.txt", "./deep", "./link", "./program"]
        _, out, _ = await shell(
            client, name, "cat ~/some/link /copied/single.txt; ~/some/program; stat -c %U ~/some/a.txt"
        )
        assert out == b"a.txta.txtran\nagbox\n"
        # Changes to the source do not reach the copy.
        (Path(source) / "a.txt").write_text("changed")
        await shell(client, name, "echo more >> /copied/single.txt")
        await client.stop_sandbox(name)
        await client.resume_sandbox(name)
        assert (await shell(client, name, "cat /copied/single.txt"))[1] == b"a.txtmore\n"


async def test_a_symlink_out_of_a_copied_tree_fails_unless_git_ignores_it(client, tmp_path):
    source = tree(tmp_path / "source")
    (source / "out").symlink_to("/etc/passwd")
    copies = (client.types.CopySpec(source=str(source), target="/copied"),)
    name = new_id()
    with pytest.raises(client.errors.SandboxClientError):
        await client.create_sandbox(image="host", sandbox_id=name, copies=copies)
    assert "out" in (await client.get_sandbox(name)).error_message
    (source / ".gitignore").write_text("out\n")
    async with new_sandbox(client, copies=copies) as name:
        assert (await shell(client, name, "cat /copied/a.txt; ls /copied/out"))[1] == b"a.txt"


SERVER = """
import socket
with socket.create_server(("127.0.0.1", 8000)) as server:
    open("/shared/up", "w").write("up\\n")
    while True:
        connection, _ = server.accept()
        while data := connection.recv(65536):
            connection.sendall(data)
        connection.close()
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


async def echoed(port: int, data: bytes) -> bytes:
    """Sends data to a port, and returns the answer up to its end."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)

    async def send():
        writer.write(data)
        await writer.drain()
        writer.write_eof()

    answer, _ = await asyncio.gather(reader.read(), send())
    writer.close()
    return answer


async def test_a_port_is_forwarded_to_a_server_inside(client, shared):
    up, ports = Pipe(shared / "up", keep_open=True), [free_port() for _ in range(3)]
    mapping = [client.types.PortMapping(container_port=8000, host_port=port) for port in ports[:2]]
    mapping.append(client.types.PortMapping(container_port=8001, host_port=ports[2]))
    async with new_sandbox(client, ports=tuple(mapping), mounts=(writable_mount(client, shared),)) as name:
        await client.create_exec(name, ["python3", "-c", SERVER])
        assert await up.line() == "up"
        for port in ports[:2]:
            assert await echoed(port, b"hello") == b"hello"
        large = bytes(range(256)) * 4096 * 4
        assert await echoed(ports[0], large) == large
        # Without a listener inside, a connection is closed.
        with contextlib.suppress(ConnectionResetError):
            assert await echoed(ports[2], b"") == b""
        await client.stop_sandbox(name)
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", ports[0])
        await client.resume_sandbox(name)
        await client.create_exec(name, ["python3", "-c", SERVER])
        assert await up.line() == "up"
        assert await echoed(ports[1], b"again") == b"again"
    up.close()


async def test_a_port_in_use_fails_the_sandbox_with_its_number(client):
    name = new_id()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ports = (client.types.PortMapping(container_port=80, host_port=port),)
        with pytest.raises(client.errors.SandboxClientError):
            await client.create_sandbox(image="host", sandbox_id=name, ports=ports)
    handle = await client.get_sandbox(name)
    assert handle.state == SandboxState.FAILED and str(port) in handle.error_message


async def test_a_command_above_the_memory_limit_fails(client):
    async with new_sandbox(client, memory_limit="64m") as name:
        eat = "kept = []\nwhile True: kept.append(bytearray(b'x' * (8 << 20)))"
        handle = await client.run(name, ["python3", "-c", eat])
        assert (handle.state, handle.exit_code) == (ExecState.FAILED, 137)
        current = await client.get_sandbox(name)
        if current.state == SandboxState.READY:
            assert (await client.run(name, ["true"])).exit_code == 0
        else:
            assert (current.state, current.error_code) == (SandboxState.STOPPED, "CONTAINER_OOM")


async def test_a_disk_has_the_requested_size(client):
    async with new_sandbox(client, disk_limit="32m") as name:
        code, _, err = await shell(client, name, "head -c 16m /dev/zero > fits && head -c 64m /dev/zero > large")
        assert code != 0 and b"o space" in err or b"uota" in err
        assert (await shell(client, name, "rm large; stat -c %s fits"))[1] == b"16777216\n"


async def test_a_cpu_limit_is_set_in_the_cgroup(client, daemon):
    limited = new_sandbox(client, cpu_limit="0.5"), new_sandbox(client, cpu_limit="1.25")
    async with limited[0] as half, limited[1] as more, new_sandbox(client) as unlimited:
        assert [daemon.cpu_limit(name) for name in (half, more, unlimited)] == [0.5, 1.25, None]


async def test_an_idle_sandbox_is_stopped_and_one_that_is_used_is_not(client):
    short = datetime.timedelta(seconds=1)
    async with new_sandbox(client, idle_ttl=short) as name:
        # The command runs for longer than the idle time.
        await client.create_exec(name, ["sleep", "1.5"])
        received = await until(client, name, is_event(EventType.STOPPED))
        assert event_types(received)[-4:] == [
            *(EventType.EXEC_STARTED, EventType.EXEC_FINISHED),
            *(EventType.STOP_REQUESTED, EventType.STOPPED),
        ]
        assert [event.sandbox_phase.reason for event in received[-2:]] == ["idle_ttl", "idle_ttl"]
        assert (await client.resume_sandbox(name)).state == SandboxState.READY
        await until(client, name, is_event(EventType.STOPPED), from_sequence=received[-1].sequence)


async def test_fields_of_the_request_override_those_of_the_file(client, shared, tmp_path):
    gate = Gate(shared)
    file = f"""
image: host
labels: {{from: file, both: file}}
envs: {{FROM: file, BOTH: file}}
idle_ttl: 10m
memory_limit: 256m
mounts:
  - {{source: {tmp_path}, target: /shared, writable: true}}
command: [sh, -c, "echo of the file > /shared/lines"]
"""
    lines = Pipe(shared / "lines", keep_open=True)
    over = {"labels": {"both": "request", "over": "request"}, "envs": {"BOTH": "request"}}
    command = ["sh", "-c", f"echo of the request $BOTH > /shared/lines; {gate.wait}"]
    handle = await client.create_sandbox(config_yaml=file, command=command, **over)
    assert dict(handle.labels) == {"from": "file", "both": "request", "over": "request"}
    assert await lines.line() == "of the request request"
    _, out, _ = await shell(client, handle.sandbox_id, 'printf "%s %s" "$FROM" "$BOTH"')
    assert out == b"file request"
    await client.delete_sandbox(handle.sandbox_id)
    lines.close()


async def test_the_command_of_a_sandbox_is_restarted_when_it_exits(client, shared):
    gate, lines = Gate(shared), Pipe(shared / "lines", keep_open=True)
    command = script(f'echo "$$ $(id -un) $FOR" > /shared/lines; {gate.wait}; exit 1')
    mounts = (writable_mount(client, shared),)
    async with new_sandbox(client, command=command, envs={"FOR": "me"}, mounts=mounts) as name:
        first = await lines.line()
        assert first.split()[1:] == ["agbox", "me"]
        await gate.open()
        second = await lines.line()
        assert first.split()[0] != second.split()[0]
        # It was not requested as an exec, so it is none.
        assert await client.list_active_execs(sandbox_id=name) == []
        assert event_types(await history(client, name))[-1] == EventType.READY
        await client.stop_sandbox(name)
        await client.resume_sandbox(name)
        assert await lines.line()
    lines.close()


async def test_a_command_in_a_crash_loop_fails_its_sandbox(client):
    name = new_id()
    await client.create_sandbox(image="host", sandbox_id=name, command=["false"], wait=False)
    received = await until(client, name, is_event(EventType.FAILED))
    assert received[-1].sandbox_phase.error_code == "CONTAINER_CRASHLOOP"
    assert (await client.get_sandbox(name)).error_code == "CONTAINER_CRASHLOOP"


async def test_a_builtin_tool_mounts_its_files(client, daemon):
    (daemon.user / ".npm").mkdir(exist_ok=True)
    (daemon.user / ".npm" / "cached").write_text("cached")
    async with new_sandbox(client, builtin_tools=("npm", "git")) as name:
        assert (await shell(client, name, "cat ~/.npm/cached; echo new > ~/.npm/new"))[1] == b"cached"
    assert (daemon.user / ".npm" / "new").read_text() == "new\n"


async def test_a_tool_whose_files_are_missing_fails_the_create(client):
    with pytest.raises(client.errors.SandboxClientError):
        await client.create_sandbox(image="host", builtin_tools=("codex",))
