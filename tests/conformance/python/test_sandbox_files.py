"""Files through the sandbox objects of the package."""

import os
import stat

import microsandbox
import pytest

from clients.sandbox import attach

by_handle = [pytest.mark.release("files"), pytest.mark.generation(lowest=2)]


def needs_files(test):
    """Marks a test for releases with files by handle."""
    for mark in by_handle:
        test = mark(test)
    return test


@needs_files
@pytest.mark.parametrize("size", [0, 1, 4096, 5 << 20], ids=["empty", "byte", "page", "5MiB"])
async def test_a_file_is_written_and_read_back(agentd, tmp_path, size):
    data, path = os.urandom(size), tmp_path / "file"
    sandbox = await attach(agentd)
    await sandbox.fs.write(str(path), data)
    assert path.read_bytes() == data
    assert await sandbox.fs.read(str(path)) == data


@needs_files
async def test_a_file_is_streamed_in_both_directions(agentd, tmp_path):
    pieces, path = [os.urandom(700_000) for _ in range(7)], tmp_path / "file"
    sandbox = await attach(agentd)
    sink = await sandbox.fs.write_stream(str(path))
    for piece in pieces:
        await sink.write(piece)
    await sink.close()
    assert path.read_bytes() == b"".join(pieces)
    stream = await sandbox.fs.read_stream(str(path))
    assert b"".join([piece async for piece in stream]) == b"".join(pieces)


@needs_files
async def test_files_are_copied_between_host_and_sandbox(agentd, tmp_path):
    data = os.urandom(100_000)
    host, guest, back = tmp_path / "host", tmp_path / "guest", tmp_path / "back"
    host.write_bytes(data)
    sandbox = await attach(agentd)
    await sandbox.fs.copy_from_host(str(host), str(guest))
    assert guest.read_bytes() == data
    await sandbox.fs.copy_to_host(str(guest), str(back))
    assert back.read_bytes() == data


@needs_files
async def test_stat_has_kind_size_and_full_mode(agentd, tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"12345")
    path.chmod(0o640)
    os.utime(path, (1_000_000_000, 1_100_000_000))
    sandbox = await attach(agentd)
    file, directory = await sandbox.fs.stat(str(path)), await sandbox.fs.stat(str(tmp_path))
    assert (file.kind, file.size, file.mode) == ("file", 5, stat.S_IFREG | 0o640)
    assert file.modified == 1_100_000_000_000.0
    assert directory.kind == "directory" and stat.S_ISDIR(directory.mode)


@needs_files
async def test_a_list_has_every_entry(agentd, tmp_path):
    (tmp_path / "file").write_bytes(b"123")
    (tmp_path / "directory").mkdir()
    (tmp_path / "link").symlink_to("nowhere")
    sandbox = await attach(agentd)
    entries = {entry.path: (str(entry.kind), entry.mode) for entry in await sandbox.fs.list(str(tmp_path))}
    kinds = {"file": "file", "directory": "directory", "link": "symlink"}
    assert entries == {str(tmp_path / name): (kind, (tmp_path / name).lstat().st_mode) for name, kind in kinds.items()}


@needs_files
async def test_directories_copies_and_renames_work(agentd, tmp_path):
    fs = (await attach(agentd)).fs
    deep, copy = tmp_path / "a" / "b", tmp_path / "a" / "copy"
    await fs.mkdir(str(deep))
    await fs.write(str(deep / "file"), b"content")
    await fs.copy(str(deep / "file"), str(copy))
    await fs.rename(str(copy), str(tmp_path / "a" / "moved"))
    assert (tmp_path / "a" / "moved").read_bytes() == b"content" and not copy.exists()
    assert await fs.exists(str(deep / "file")) and not await fs.exists(str(copy))
    await fs.remove(str(deep / "file"))
    assert not (deep / "file").exists()
    await fs.remove_dir(str(tmp_path / "a"))
    assert list(tmp_path.iterdir()) == []


@needs_files
async def test_a_missing_file_is_an_error_that_names_the_reason(agentd, tmp_path):
    fs, path = (await attach(agentd)).fs, str(tmp_path / "missing")
    for operation in (fs.read(path), fs.stat(path), fs.list(path), fs.remove(path)):
        with pytest.raises(microsandbox.FilesystemError, match="No such file or directory"):
            await operation


@needs_files
@pytest.mark.release("ssh")
async def test_commands_and_files_work_with_the_ssh_client_of_the_package(agentd, tmp_path):
    path, link = tmp_path / "file", tmp_path / "link"
    ssh = (await attach(agentd)).ssh
    ssh = ssh() if callable(ssh) else ssh
    client = await (ssh.open_client() if hasattr(ssh, "open_client") else ssh.connect())
    output = await client.exec("echo over ssh; exit 5")
    assert (output.status, output.stdout_bytes) == (5, b"over ssh\n")
    sftp = await client.sftp()
    await sftp.write(str(path), b"line\n" * 2000)
    assert path.read_bytes() == b"line\n" * 2000
    assert await sftp.read(str(path)) == b"line\n" * 2000
    await sftp.symlink(str(path), str(link))
    assert await sftp.read_link(str(link)) == str(path)
    assert await sftp.real_path(str(link)) == os.path.realpath(path)
    await sftp.remove_file(str(link))
    assert not link.exists() and path.exists()
    await client.close()
