"""Files through the raw client: write, read, list, stat, and other operations."""

import os
import stat

import pytest

from clients.agent import connected
from clients.files import FileOperationError, Files, get, put

pytestmark = [pytest.mark.release("agent_client"), pytest.mark.release("files"), pytest.mark.generation(lowest=2)]

KEYS = ["path", "kind", "size", "mode", "modified", "uid", "gid", "atime", "mtime"]


async def test_a_file_is_written_and_read_back(agentd, tmp_path):
    path = tmp_path / "file"
    async with connected(agentd) as agent:
        await put(agent, str(path), b"some bytes\0\xff")
        assert path.read_bytes() == b"some bytes\0\xff"
        assert (await get(agent, str(path))).data == b"some bytes\0\xff"


async def test_an_empty_file_is_written_and_read_back(agentd, tmp_path):
    path = tmp_path / "empty"
    async with connected(agentd) as agent:
        await put(agent, str(path), b"")
        assert path.read_bytes() == b""
        assert (await get(agent, str(path))).data == b""


async def test_writing_a_file_again_truncates_it(agentd, tmp_path):
    path = tmp_path / "file"
    async with connected(agentd) as agent:
        await put(agent, str(path), b"the longer text")
        await put(agent, str(path), b"short")
    assert path.read_bytes() == b"short"


async def test_a_new_file_has_the_requested_mode(agentd, tmp_path):
    path = tmp_path / "script"
    async with connected(agentd) as agent:
        await put(agent, str(path), b"#!/bin/sh\n", mode=0o750)
        entry = await Files(agent).stat(str(path))
    assert entry["mode"] == stat.S_IFREG | 0o750 == path.stat().st_mode


#= carrel.files-trees-connections.19-file-operations
async def test_parts_of_a_file_are_read_and_written_at_offsets(agentd, tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"0123456789")
    async with connected(agentd) as agent:
        files = Files(agent)
        handle = await files.open(str(path), "read", "write")
        await files.write(handle, b"xyz", offset=4)
        assert (await files.read(handle, 2, 6)).data == b"23xyz7"
        assert (await files.read(handle, 8)).data == b"89"
        assert (await files.read(handle, 8, 100)).data == b"89"
        assert (await files.read(handle, 100)).data == b""
        await files.close(handle)
    assert path.read_bytes() == b"0123xyz789"


async def test_files_around_the_size_of_one_window_are_complete(agentd, tmp_path):
    path = tmp_path / "file"
    for size in ((1 << 20) - 1, 1 << 20, (1 << 20) + 1):
        data = os.urandom(size)
        async with connected(agentd) as agent:
            await put(agent, str(path), data)
            assert path.read_bytes() == data
            assert (await get(agent, str(path))).data == data


async def test_a_write_that_is_shorter_than_declared_fails(agentd, tmp_path):
    async with connected(agentd) as agent:
        files = Files(agent)
        handle = await files.open(str(tmp_path / "file"), "write", "create")
        with pytest.raises(FileOperationError):
            await files.write(handle, b"four", declared=5)
        await files.close(handle)


async def test_stat_has_all_fields_of_the_kernel(agentd, tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"12345")
    path.chmod(0o4711)
    os.utime(path, (1_000_000_000, 1_100_000_000))
    async with connected(agentd) as agent:
        entry = await Files(agent).stat(str(path))
    assert list(entry)[:9] == KEYS
    assert {key: entry[key] for key in KEYS} == {
        "path": str(path),
        "kind": "file",
        "size": 5,
        "mode": stat.S_IFREG | 0o4711,
        "modified": 1_100_000_000,
        "uid": os.getuid(),
        "gid": path.stat().st_gid,
        "atime": 1_000_000_000,
        "mtime": 1_100_000_000,
    }


async def test_stat_follows_a_symlink_only_if_requested(agentd, tmp_path):
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_bytes(b"123")
    link.symlink_to(target)
    async with connected(agentd) as agent:
        files = Files(agent)
        followed, itself = await files.stat(str(link)), await files.stat(str(link), follow=False)
        assert await files.do("ReadLink", path=str(link)) == {"Path": str(target)}
    assert (followed["kind"], followed["size"]) == ("file", 3)
    assert itself["kind"] == "symlink" and stat.S_ISLNK(itself["mode"])


async def test_a_list_has_every_entry_with_its_kind_and_full_mode(agentd, tmp_path):
    (tmp_path / "file").write_bytes(b"1234567")
    (tmp_path / "file").chmod(0o640)
    (tmp_path / "directory").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to("nowhere")
    (tmp_path / ".hidden").touch()
    os.mkfifo(tmp_path / "fifo")
    async with connected(agentd) as agent:
        entries = await Files(agent).list(str(tmp_path))
    found = {entry["path"]: (entry["kind"], entry["mode"]) for entry in entries}
    kinds = {"file": "file", ".hidden": "file", "directory": "dir", "link": "symlink", "fifo": "other"}
    assert len(entries) == len(found)
    assert found == {str(tmp_path / name): (kind, (tmp_path / name).lstat().st_mode) for name, kind in kinds.items()}


async def test_an_empty_directory_lists_nothing(agentd, tmp_path):
    async with connected(agentd) as agent:
        assert await Files(agent).list(str(tmp_path)) == []


async def test_a_large_directory_is_read_in_pages(agentd, tmp_path):
    names = {str(tmp_path / f"{number:04}") for number in range(300)}
    for name in names:
        open(name, "w").close()
    async with connected(agentd) as agent:
        files = Files(agent)
        handle = (await files.do("OpenDir", path=str(tmp_path)))["Handle"]
        pages = []
        while page := (await files.do("ReadDir", handle=handle, limit=100))["List"]:
            pages.append(page)
        await files.close(handle)
    assert all(len(page) <= 100 for page in pages)
    assert sorted(entry["path"] for page in pages for entry in page) == sorted(names)


#= carrel.files-trees-connections.19-file-operations
async def test_directories_copies_renames_and_symlinks_work(agentd, tmp_path):
    deep, file, copy = tmp_path / "a" / "b" / "c", tmp_path / "a" / "file", tmp_path / "a" / "copy"
    async with connected(agentd) as agent:
        files = Files(agent)
        assert await files.do("Mkdir", path=str(deep), mode=None, user=None) is None
        assert deep.is_dir()
        await put(agent, str(file), b"content")
        assert await files.do("Copy", src=str(file), dst=str(copy)) is None
        assert copy.read_bytes() == b"content"
        assert await files.do("Rename", src=str(copy), dst=str(deep / "moved")) is None
        assert (deep / "moved").read_bytes() == b"content" and not copy.exists()
        assert await files.do("Symlink", target="b/c", link_path=str(tmp_path / "a" / "link"), user=None) is None
        real = (await files.do("RealPath", path=str(tmp_path / "a" / "link" / "moved")))["Path"]
        assert real == os.path.realpath(deep / "moved")
        assert await files.do("Remove", path=str(file)) is None
        assert not file.exists()
        with pytest.raises(FileOperationError, match="(?i)not empty"):
            await files.do("RemoveDir", path=str(tmp_path / "a"), recursive=False)
        assert await files.do("RemoveDir", path=str(tmp_path / "a"), recursive=True) is None
    assert list(tmp_path.iterdir()) == []


#= carrel.files-trees-connections.19-file-operations
async def test_attributes_are_set_by_path_and_by_handle(agentd, tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"0123456789")
    nothing = dict.fromkeys(("mode", "uid", "gid", "size", "atime", "mtime"))
    async with connected(agentd) as agent:
        files = Files(agent)
        attributes = nothing | {"mode": 0o600, "mtime": 1_200_000_000, "atime": 1_200_000_001}
        await files.do("SetStat", path=str(path), follow_symlink=True, attrs=attributes)
        # Checked before any other operation, because reading and writing change the times.
        assert (path.stat().st_atime, path.stat().st_mtime) == (1_200_000_001, 1_200_000_000)
        handle = await files.open(str(path), "read", "write")
        await files.do("FSetStat", handle=handle, attrs=nothing | {"size": 4})
        by_handle = (await files.do("FStat", handle=handle))["Stat"]
        await files.close(handle)
    assert path.read_bytes() == b"0123"
    assert (by_handle["size"], by_handle["mode"]) == (4, stat.S_IFREG | 0o600)


@pytest.mark.parametrize("op", ["Stat", "List", "OpenFile", "ReadLink", "Remove", "RemoveDir", "RealPath", "OpenDir"])
async def test_an_operation_on_a_missing_file_reports_it(agentd, tmp_path, op):
    path = str(tmp_path / "missing")
    async with connected(agentd) as agent:
        files = Files(agent)
        fields = {"Stat": {"follow_symlink": True}, "RemoveDir": {"recursive": True}}.get(op, {})
        with pytest.raises(FileOperationError, match="No such file or directory"):
            await (files.open(path, "read") if op == "OpenFile" else files.do(op, path=path, **fields))
        await agent.check_alive()


async def test_create_new_refuses_an_existing_file(agentd, tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    async with connected(agentd) as agent:
        with pytest.raises(FileOperationError, match="File exists"):
            await Files(agent).open(str(path), "write", "create_new")
    assert path.read_bytes() == b"old"


async def test_a_closed_handle_is_invalid(agentd, tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"data")
    async with connected(agentd) as agent:
        files = Files(agent)
        handle = await files.open(str(path), "read")
        await files.close(handle)
        for operation in (files.close(handle), files.do("FStat", handle=handle), files.read(handle)):
            with pytest.raises(FileOperationError):
                await operation
