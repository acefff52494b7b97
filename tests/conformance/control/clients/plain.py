"""A client that uses only gRPC, and waits exactly as the published one does.

It sends the request; takes the answer or one read as the baseline; is done if that is the goal; subscribes from the
sequence of the baseline with the deadline of a call; ignores events up to the baseline; and reads again on each later
one. A stream that ends is an error: it neither reconnects nor polls.
"""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
from google.protobuf.duration_pb2 import Duration

from . import errors
from .stubs import messages, services
from .enums import ExecState, SandboxState


@dataclass(frozen=True)
class ExecHandle:
    """An exec, with the files of its output where the answer named them."""

    status: Any
    stdout_log_path: str | None = None
    stderr_log_path: str | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.status, name)


class Client:
    """The methods of the published client over plain stubs, with the same default timeouts."""

    errors = errors
    types = messages

    def __init__(
        self,
        socket: Path,
        *,
        timeout_seconds: float = 5.0,
        stream_timeout_seconds: float | None = None,
        operation_timeout_seconds: float = 60.0,
    ) -> None:
        self._call_seconds = timeout_seconds
        self._stream_seconds = timeout_seconds if stream_timeout_seconds is None else stream_timeout_seconds
        self._operation_seconds = operation_timeout_seconds
        # The authority is the default that gRPC derives from the path.
        # The connection is not shared, as if this were a separate process.
        options = [("grpc.use_local_subchannel_pool", 1)]
        self.channel = grpc.aio.insecure_channel(f"unix://{socket}", options)
        self.stub = services.SandboxServiceStub(self.channel)

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.channel.close()

    async def call(self, method: str, **fields: Any) -> Any:
        """Any unary call; a refusal is raised as its error class."""
        rpc = getattr(self.stub, method)
        request = getattr(messages, f"{method}Request")(**fields)
        try:
            return await rpc(request, timeout=self._call_seconds)
        except grpc.RpcError as error:
            raise errors.translated(error) from error

    # === the published methods ===

    async def ping(self) -> Any:
        return await self.call("Ping")

    async def create_sandbox(
        self,
        *,
        config_yaml: str | bytes | None = None,
        sandbox_id: str = "",
        idle_ttl: datetime.timedelta | None = None,
        wait: bool = True,
        **fields: Any,
    ) -> Any:
        if idle_ttl is not None:
            fields["idle_ttl"] = Duration()
            fields["idle_ttl"].FromTimedelta(idle_ttl)
        spec = messages.CreateSpec(**fields)
        yaml = config_yaml.encode() if isinstance(config_yaml, str) else config_yaml
        answer = await self.call("CreateSandbox", create_spec=spec, sandbox_id=sandbox_id, config_yaml=yaml)
        return await self._until(answer.sandbox, SandboxState.READY) if wait else answer.sandbox

    async def get_sandbox(self, sandbox_id: str) -> Any:
        return (await self.call("GetSandbox", sandbox_id=sandbox_id)).sandbox

    async def list_sandboxes(
        self, *, include_deleted: bool = False, label_selector: Mapping[str, str] | None = None
    ) -> list[Any]:
        fields = {"include_deleted": include_deleted, "label_selector": dict(label_selector or {})}
        return list((await self.call("ListSandboxes", **fields)).sandboxes)

    async def resume_sandbox(self, sandbox_id: str, *, wait: bool = True) -> Any:
        return await self._request("ResumeSandbox", sandbox_id, SandboxState.READY, wait)

    async def stop_sandbox(self, sandbox_id: str, *, wait: bool = True) -> Any:
        return await self._request("StopSandbox", sandbox_id, SandboxState.STOPPED, wait)

    async def delete_sandbox(self, sandbox_id: str, *, wait: bool = True) -> Any:
        return await self._request("DeleteSandbox", sandbox_id, SandboxState.DELETED, wait)

    async def delete_sandboxes(self, label_selector: Mapping[str, str], *, wait: bool = True) -> Any:
        answer = await self.call("DeleteSandboxes", label_selector=dict(label_selector))
        if wait:
            baselines = await asyncio.gather(*(self.get_sandbox(one) for one in answer.deleted_sandbox_ids))
            await asyncio.gather(*(self._until(baseline, SandboxState.DELETED) for baseline in baselines))
        return answer

    async def create_exec(
        self,
        sandbox_id: str,
        command: Sequence[str],
        *,
        exec_id: str = "",
        cwd: str = "/workspace",
        env_overrides: Mapping[str, str] | None = None,
        wait: bool = False,
    ) -> ExecHandle:
        fields = {"sandbox_id": sandbox_id, "command": list(command), "exec_id": exec_id, "cwd": cwd}
        answer = await self.call("CreateExec", **fields, env_overrides=dict(env_overrides or {}))
        status = await self._status(answer.exec_id)
        if wait:
            status = await self._until_ended(status)
        return ExecHandle(status, answer.stdout_log_path, answer.stderr_log_path)

    async def run(self, sandbox_id: str, command: Sequence[str], **options: Any) -> ExecHandle:
        return await self.create_exec(sandbox_id, command, wait=True, **options)

    async def cancel_exec(self, exec_id: str, *, wait: bool = True) -> ExecHandle:
        await self.call("CancelExec", exec_id=exec_id)
        status = await self._status(exec_id)
        return ExecHandle(await self._until_ended(status) if wait else status)

    async def get_exec(self, exec_id: str) -> ExecHandle:
        return ExecHandle(await self._status(exec_id))

    async def list_active_execs(self, *, sandbox_id: str | None = None) -> list[Any]:
        fields = {} if sandbox_id is None else {"sandbox_id": sandbox_id}
        return list((await self.call("ListActiveExecs", **fields)).execs)

    async def subscribe_sandbox_events(
        self, sandbox_id: str, *, from_sequence: int = 0, include_current_snapshot: bool = False
    ) -> AsyncIterator[Any]:
        request = messages.SubscribeSandboxEventsRequest(
            sandbox_id=sandbox_id, from_sequence=from_sequence, include_current_snapshot=include_current_snapshot
        )
        stream = self.stub.SubscribeSandboxEvents(request, timeout=self._stream_seconds)
        try:
            async for event in stream:
                yield event
        except grpc.RpcError as error:
            raise errors.translated(error) from error
        finally:
            stream.cancel()

    # === waiting ===

    async def _request(self, method: str, sandbox_id: str, goal: SandboxState, wait: bool) -> Any:
        await self.call(method, sandbox_id=sandbox_id)
        baseline = await self.get_sandbox(sandbox_id)
        return await self._until(baseline, goal) if wait else baseline

    async def _until(self, baseline: Any, goal: SandboxState) -> Any:
        if baseline.state == goal:
            return baseline
        _raise_if_failed(baseline)
        since = baseline.last_event_sequence
        async with asyncio.timeout(self._operation_seconds):
            async with aclosing(self.subscribe_sandbox_events(baseline.sandbox_id, from_sequence=since)) as events:
                async for event in events:
                    if event.sequence <= since:
                        continue
                    current = await self.get_sandbox(baseline.sandbox_id)
                    if current.state == goal:
                        return current
                    _raise_if_failed(current)
        raise errors.SandboxClientError(f"the stream ended before {baseline.sandbox_id} was {goal.name}")

    async def _status(self, exec_id: str) -> Any:
        status = (await self.call("GetExec", exec_id=exec_id)).exec
        assert status.last_event_sequence > 0, status
        return status

    async def _until_ended(self, baseline: Any) -> Any:
        if baseline.state != ExecState.RUNNING:
            return baseline
        since = baseline.last_event_sequence
        async with asyncio.timeout(self._operation_seconds):
            async with aclosing(self.subscribe_sandbox_events(baseline.sandbox_id, from_sequence=since)) as events:
                async for event in events:
                    if event.sequence <= since or event.exec.exec_id != baseline.exec_id:
                        continue
                    current = await self._status(baseline.exec_id)
                    if current.state != ExecState.RUNNING:
                        return current
        raise errors.SandboxClientError(f"the stream ended before {baseline.exec_id} did")


def _raise_if_failed(handle: Any) -> None:
    if handle.state == SandboxState.FAILED:
        raise errors.SandboxClientError(f"{handle.sandbox_id} has failed: {handle.error_code} {handle.error_message}")
