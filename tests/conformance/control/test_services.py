"""Services of a sandbox: health, names, failures, and removal with their sandbox."""

import datetime
from typing import Any

from google.protobuf.duration_pb2 import Duration

from clients import connect
from clients.enums import EventType, SandboxState
from clients.helpers import event_types, history, is_event, new_sandbox, script, shell, until

SERVICE_EVENTS = (EventType.SERVICE_READY, EventType.SERVICE_FAILED)

# Sends the number of its starts, over all starts of its sandbox.
SERVER = """
import socket
with open("/root/starts", "a") as file:
    file.write("x")
server = socket.create_server(("127.0.0.1", 5432))
while True:
    with server.accept()[0] as client:
        client.sendall(b"%d" % len(open("/root/starts").read()))
"""
ASK = "import socket; print(socket.create_connection(('db', 5432)).recv(9).decode())"


def check(client: Any, *test: str, **options: Any) -> Any:
    """A health check with a short interval."""
    interval = datetime.timedelta(milliseconds=20)
    if hasattr(client.types.HealthcheckConfig, "DESCRIPTOR"):
        interval, delta = Duration(), interval
        interval.FromTimedelta(delta)
    return client.types.HealthcheckConfig(test=test, interval=interval, **options)


def server(client: Any, **options: Any) -> Any:
    """A server that is healthy when it answers."""
    healthy = check(client, "CMD", "python3", "-c", ASK, retries=1000)
    command = ["python3", "-c", SERVER]
    return client.types.CompanionContainerSpec(
        name="db", image="host", command=command, healthcheck=healthy, **options
    )


def service_of(event: Any) -> Any:
    """The service of an event; published clients have another name for the field."""
    return event.service if hasattr(event, "service") else event.companion_container


async def next_service_event(client: Any, name: str, after: int = 0) -> Any:
    """The next event about a service."""
    return (await until(client, name, is_event(*SERVICE_EVENTS), from_sequence=after))[-1]


async def ask_server(client: Any, name: str) -> bytes:
    """The answer of the server to the sandbox."""
    return (await shell(client, name, f'python3 -c "{ASK}"'))[1].strip()


async def test_a_ready_service_is_healthy_and_keeps_its_files_across_a_resume(client):
    hook = "echo $WHOSE $(id -un) >> hooked"
    service = server(client, envs={"WHOSE": "db"}, post_start_on_primary=(hook,))
    async with new_sandbox(client, companion_containers=(service,)) as name:
        event = await next_service_event(client, name)
        assert (event.event_type, event.sandbox_state) == (EventType.SERVICE_READY, SandboxState.READY)
        assert service_of(event).name == "db" and not service_of(event).error_code
        # After the event, the service answers at once.
        assert await ask_server(client, name) == b"1"
        assert (await shell(client, name, "cat hooked; grep -c db /etc/hosts"))[1] == b"db agbox\n1\n"
        await client.stop_sandbox(name)
        resumed = await client.resume_sandbox(name)
        assert (await next_service_event(client, name, after=event.sequence)).event_type == EventType.SERVICE_READY
        assert resumed.state == SandboxState.READY and await ask_server(client, name) == b"2"
        assert (await shell(client, name, "cat hooked"))[1] == b"db agbox\n" * 2
        happened = event_types(await history(client, name))
        assert happened.count(EventType.SERVICE_READY) == 2 and EventType.SERVICE_FAILED not in happened
        assert happened.index(EventType.READY) < happened.index(EventType.SERVICE_READY)


#= control.events.details-service
async def test_a_service_that_cannot_start_is_reported_once_and_delays_no_command(client):
    service = client.types.CompanionContainerSpec(name="base", image="/no/such/image", command=["true"])
    async with new_sandbox(client, companion_containers=(service,)) as name:
        event = await next_service_event(client, name)
        assert (event.event_type, service_of(event).name) == (EventType.SERVICE_FAILED, "base")
        assert service_of(event).error_code == "COMPANION_CONTAINER_FAILED"
        assert "/no/such/image" in service_of(event).error_message
        assert (await client.run(name, ["true"])).exit_code == 0
        assert [one.name for one in (await client.get_sandbox(name)).companion_containers] == ["base"]
        await client.stop_sandbox(name)
        assert event_types(await history(client, name)).count(EventType.SERVICE_FAILED) == 1


async def test_an_unhealthy_service_is_reported_once_and_its_sandbox_continues(client):
    sick = client.types.CompanionContainerSpec(
        name="sick",
        image="host",
        command=["sleep", "1000"],
        healthcheck=check(client, "CMD-SHELL", "exit 4", retries=2),
    )
    async with new_sandbox(client, companion_containers=(sick,)) as name:
        event = await next_service_event(client, name)
        assert event.event_type == EventType.SERVICE_FAILED
        assert "unhealthy" in service_of(event).error_message and "exit code 4" in service_of(event).error_message
        assert (await client.run(name, ["true"])).exit_code == 0
        happened = event_types(await history(client, name))
        assert [event_type for event_type in happened if event_type in SERVICE_EVENTS] == [EventType.SERVICE_FAILED]


async def test_a_failed_hook_is_reported(client):
    service = server(client, post_start_on_primary=("exit 7",))
    async with new_sandbox(client, companion_containers=(service,)) as name:
        event = await next_service_event(client, name)
        assert event.event_type == EventType.SERVICE_FAILED and "exit code 7" in service_of(event).error_message


async def test_a_service_in_a_crash_loop_fails_and_its_sandbox_does_not(client):
    service = client.types.CompanionContainerSpec(name="loop", image="host", command=script("exit 3"))
    async with new_sandbox(client, companion_containers=(service,)) as name:
        event = (await until(client, name, is_event(EventType.SERVICE_FAILED)))[-1]
        assert service_of(event).error_code == "CONTAINER_CRASHLOOP"
        assert (await client.get_sandbox(name)).state == SandboxState.READY


async def test_a_service_outlives_the_daemon_and_is_not_reported_again(start_daemon):
    daemon = start_daemon()
    async with connect(daemon) as client:
        name = (await client.create_sandbox(image="host", companion_containers=(server(client),))).sandbox_id
        event = await next_service_event(client, name)
    daemon.restart()
    async with connect(daemon) as client:
        assert await ask_server(client, name) == b"1"
        await client.stop_sandbox(name)
        await client.resume_sandbox(name)
        assert (await next_service_event(client, name, after=event.sequence)).event_type == EventType.SERVICE_READY
        assert event_types(await history(client, name)).count(EventType.SERVICE_READY) == 2
        assert await ask_server(client, name) == b"2"
        await client.delete_sandbox(name)
    assert not [*(daemon.home / "services").glob("*")] and not daemon.leftovers()
