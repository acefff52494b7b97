"""Services beside a sandbox: healthy before they are told, reached by name, never in the way, and gone with it."""

import datetime
from typing import Any

from google.protobuf.duration_pb2 import Duration

from clients import connect
from clients.boxes import box, history, is_kind, kinds, script, shell, until
from clients.words import Kind, State

TOLD = (Kind.SERVICE_READY, Kind.SERVICE_FAILED)

# Says how often it was started, in all starts of its sandbox.
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
    """A check that is made often."""
    often = datetime.timedelta(milliseconds=20)
    if hasattr(client.types.HealthcheckConfig, "DESCRIPTOR"):
        often, delta = Duration(), often
        often.FromTimedelta(delta)
    return client.types.HealthcheckConfig(test=test, interval=often, **options)


def server(client: Any, **options: Any) -> Any:
    """A server that is healthy once it answers."""
    healthy = check(client, "CMD", "python3", "-c", ASK, retries=1000)
    command = ["python3", "-c", SERVER]
    return client.types.CompanionContainerSpec(
        name="db", image="host", command=command, healthcheck=healthy, **options
    )


def about_service(event: Any) -> Any:
    """What an event says about a service; published clients have another name for it."""
    return event.service if hasattr(event, "service") else event.companion_container


async def told(client: Any, name: str, after: int = 0) -> Any:
    """The next event about a service."""
    return (await until(client, name, is_kind(*TOLD), from_sequence=after))[-1]


async def asked(client: Any, name: str) -> bytes:
    """What the server says to the sandbox."""
    return (await shell(client, name, f'python3 -c "{ASK}"'))[1].strip()


async def test_a_service_is_healthy_when_it_is_told_and_keeps_its_files_with_the_sandbox(client):
    hook = "echo $WHOSE $(id -un) >> hooked"
    service = server(client, envs={"WHOSE": "db"}, post_start_on_primary=(hook,))
    async with box(client, companion_containers=(service,)) as name:
        seen = await told(client, name)
        assert (seen.event_type, seen.sandbox_state) == (Kind.SERVICE_READY, State.READY)
        assert about_service(seen).name == "db" and not about_service(seen).error_code
        # Once it is told there is nothing to wait for.
        assert await asked(client, name) == b"1"
        assert (await shell(client, name, "cat hooked; grep -c db /etc/hosts"))[1] == b"db agbox\n1\n"
        await client.stop_sandbox(name)
        resumed = await client.resume_sandbox(name)
        assert (await told(client, name, after=seen.sequence)).event_type == Kind.SERVICE_READY
        assert resumed.state == State.READY and await asked(client, name) == b"2"
        assert (await shell(client, name, "cat hooked"))[1] == b"db agbox\n" * 2
        happened = kinds(await history(client, name))
        assert happened.count(Kind.SERVICE_READY) == 2 and Kind.SERVICE_FAILED not in happened
        assert happened.index(Kind.READY) < happened.index(Kind.SERVICE_READY)


async def test_a_service_that_does_not_run_is_told_once_and_delays_nobody(client):
    service = client.types.CompanionContainerSpec(name="base", image="/no/such/image", command=["true"])
    async with box(client, companion_containers=(service,)) as name:
        seen = await told(client, name)
        assert (seen.event_type, about_service(seen).name) == (Kind.SERVICE_FAILED, "base")
        assert about_service(seen).error_code == "COMPANION_CONTAINER_FAILED"
        assert "/no/such/image" in about_service(seen).error_message
        assert (await client.run(name, ["true"])).exit_code == 0
        assert [one.name for one in (await client.get_sandbox(name)).companion_containers] == ["base"]
        await client.stop_sandbox(name)
        assert kinds(await history(client, name)).count(Kind.SERVICE_FAILED) == 1


async def test_a_service_that_is_not_healthy_is_told_once_and_its_sandbox_goes_on(client):
    sick = client.types.CompanionContainerSpec(
        name="sick",
        image="host",
        command=["sleep", "1000"],
        healthcheck=check(client, "CMD-SHELL", "exit 4", retries=2),
    )
    async with box(client, companion_containers=(sick,)) as name:
        seen = await told(client, name)
        assert seen.event_type == Kind.SERVICE_FAILED
        assert "unhealthy" in about_service(seen).error_message and "exit code 4" in about_service(seen).error_message
        assert (await client.run(name, ["true"])).exit_code == 0
        assert [kind for kind in kinds(await history(client, name)) if kind in TOLD] == [Kind.SERVICE_FAILED]


async def test_a_hook_that_fails_is_not_silent(client):
    service = server(client, post_start_on_primary=("exit 7",))
    async with box(client, companion_containers=(service,)) as name:
        seen = await told(client, name)
        assert seen.event_type == Kind.SERVICE_FAILED and "exit code 7" in about_service(seen).error_message


async def test_a_service_that_ends_again_and_again_is_given_up_and_its_sandbox_is_not(client):
    service = client.types.CompanionContainerSpec(name="loop", image="host", command=script("exit 3"))
    async with box(client, companion_containers=(service,)) as name:
        seen = (await until(client, name, is_kind(Kind.SERVICE_FAILED)))[-1]
        assert about_service(seen).error_code == "CONTAINER_CRASHLOOP"
        assert (await client.get_sandbox(name)).state == State.READY


async def test_a_service_outlives_the_daemon_and_is_told_no_second_time(start_daemon):
    daemon = start_daemon()
    async with connect(daemon) as client:
        name = (await client.create_sandbox(image="host", companion_containers=(server(client),))).sandbox_id
        seen = await told(client, name)
    daemon.restart()
    async with connect(daemon) as client:
        assert await asked(client, name) == b"1"
        await client.stop_sandbox(name)
        await client.resume_sandbox(name)
        assert (await told(client, name, after=seen.sequence)).event_type == Kind.SERVICE_READY
        assert kinds(await history(client, name)).count(Kind.SERVICE_READY) == 2
        assert await asked(client, name) == b"2"
        await client.delete_sandbox(name)
    assert not [*(daemon.home / "services").glob("*")] and not daemon.left()
