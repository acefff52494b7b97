"""Five mebibytes in each direction: inside messages up to generation 7, in bulk records with credit from 8 on."""

import asyncio
import os

import pytest

from clients.agent import connected
from clients.files import WINDOW, Files, get, put
from clients.messages import FILES, TO_GUEST, TO_HOST, Record

pytestmark = [pytest.mark.release("agent_client"), pytest.mark.release("files"), pytest.mark.generation(lowest=2)]

SIZE = 5 << 20


#= carrel.files-trees-connections.inline-below-generation-8
@pytest.mark.generation(highest=7)
async def test_five_mebibytes_are_sent_inside_messages(agentd, tmp_path):
    data, path = os.urandom(SIZE), tmp_path / "file"
    async with connected(agentd) as agent:
        written = await put(agent, str(path), data)
        assert path.read_bytes() == data
        read = await get(agent, str(path))
    assert read.data == data
    assert (written.records, read.records) == (0, 0) and read.messages >= 2


#= carrel.files-trees-connections.inline-below-generation-8
@pytest.mark.generation(lowest=8)
async def test_five_mebibytes_are_sent_in_records_within_the_credit(agentd, tmp_path):
    data, path = os.urandom(SIZE), tmp_path / "file"
    async with connected(agentd) as agent:
        written = await put(agent, str(path), data)
        assert path.read_bytes() == data
        read = await get(agent, str(path))
    assert read.data == data
    assert (written.messages, read.messages) == (0, 0)
    assert read.credits == SIZE // WINDOW


@pytest.mark.generation(lowest=8)
async def test_a_writer_that_is_out_of_credit_is_granted_more(agentd, tmp_path):
    # More than the largest initial window, so that more credit has to be granted.
    data, path = bytes(1 << 20) * 40, tmp_path / "file"
    async with connected(agentd) as agent:
        written = await put(agent, str(path), data)
    assert written.credits > 0 and path.stat().st_size == len(data)


@pytest.mark.generation(lowest=8)
async def test_without_an_offer_a_file_is_sent_inside_messages(agentd, tmp_path):
    data, path = os.urandom(SIZE), tmp_path / "file"
    path.write_bytes(data)
    async with connected(agentd) as agent:
        files = Files(agent)
        handle = await files.open(str(path), "read")
        read = await files.read(handle, offer=False)
    assert read.data == data and read.records == 0


@pytest.mark.generation(lowest=8)
async def test_a_reader_that_grants_no_credit_receives_no_more_data(agentd, tmp_path):
    path = tmp_path / "file"
    path.write_bytes(bytes(3 * WINDOW))
    async with connected(agentd) as agent:
        handle = await Files(agent).open(str(path), "read")
        offer = {"format": 1, "max_record_payload": 256 << 10, "guest_to_host_credit_limit": WINDOW}
        request = {"op": {"Read": {"handle": handle, "offset": 0, "len": None}}, "bulk": offer}
        stream = await agent.open("core.fs.request", request)
        await stream.expect("core.bulk.accepted")
        consumed = 0
        while consumed < WINDOW:
            consumed += len((await stream.next()).data)
        assert consumed == WINDOW
        waiting = asyncio.create_task(stream.next())
        for _ in range(3):
            await agent.check_alive()
        assert not waiting.done(), "a record came without credit"
        credit = {"kind": FILES, "flow": TO_HOST, "consumed_offset": consumed, "credit_limit": 4 * WINDOW}
        await stream.send("core.bulk.credit", credit)
        consumed += len((await waiting).data)
        while isinstance(message := await stream.next(), Record):
            consumed += len(message.data)
        assert consumed == 3 * WINDOW and message.payload["final_offset"] == consumed
        assert (await stream.expect("core.fs.response"))["ok"]


#= carrel.files-trees-connections.transfer-cancelled-broken-hole
@pytest.mark.generation(lowest=8)
@pytest.mark.parametrize("flow", [TO_GUEST, TO_HOST], ids=["write", "read"])
async def test_a_cancelled_transfer_ends_with_an_error(agentd, tmp_path, flow):
    path = tmp_path / "file"
    path.write_bytes(bytes(3 * WINDOW))
    async with connected(agentd) as agent:
        files = Files(agent)
        handle = await files.open(str(path), "read", "write")
        op = {("Write" if flow == TO_GUEST else "Read"): {"handle": handle, "offset": 0, "len": None}}
        credit = 0 if flow == TO_GUEST else WINDOW
        offer = {"format": 1, "max_record_payload": 256 << 10, "guest_to_host_credit_limit": credit}
        stream = await agent.open("core.fs.request", {"op": op, "bulk": offer})
        await stream.expect("core.bulk.accepted")
        await stream.send("core.bulk.cancel", {"kind": FILES, "reason": 1, "message": "changed my mind"})
        last = [message async for message in stream if not isinstance(message, Record)][-1]
        assert last.type == "core.fs.response" and last.payload["ok"] is False and last.payload["error"]
        # The handle outlives the transfer.
        await files.close(handle)


#= carrel.files-trees-connections.transfer-cancelled-broken-hole
@pytest.mark.generation(lowest=8)
async def test_a_record_at_the_wrong_offset_ends_only_its_own_transfer(agentd, tmp_path):
    async with connected(agentd) as agent:
        files = Files(agent)
        handle = await files.open(str(tmp_path / "file"), "write", "create")
        offer = {"format": 1, "max_record_payload": 256 << 10, "guest_to_host_credit_limit": 0}
        op = {"Write": {"handle": handle, "offset": 0, "len": None}}
        stream = await agent.open("core.fs.request", {"op": op, "bulk": offer})
        await stream.expect("core.bulk.accepted")
        # A gap in the offsets: nothing before it was sent.
        await stream.send_record(Record(FILES, TO_GUEST, 1 << 40, b"far away"))
        last = [message async for message in stream][-1]
        assert last.type in ("core.fs.response", "core.error") and last.payload.get("ok") is not True
        await agent.check_alive()
