"""Refused requests: their code, reason and metadata. A refused request changes nothing.

The plain client raises if code or message in the details differ from the trailer, and if there is not exactly one
`ErrorInfo` of the right domain. So every refusal here is also a test of that.
"""

import asyncio

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration

from clients.errors import SandboxClientError, translated
from clients.helpers import new_id, new_sandbox, script, writable_mount
from clients.stubs import messages
from harness.pipe import Gate

pytestmark = pytest.mark.plain

CREATE = messages.CreateSpec
MOUNT, COPY, PORT = messages.MountSpec, messages.CopySpec, messages.PortMapping
SERVICE, CHECK = messages.CompanionContainerSpec, messages.HealthcheckConfig


# The name of a case has no brackets, because pytest puts it in brackets.
PLAIN = str.maketrans("[]", "()")


async def refusal(call) -> SandboxClientError:
    with pytest.raises(SandboxClientError) as refused:
        await call
    assert refused.value.message
    return refused.value


def details(refused: SandboxClientError) -> tuple[str, str, dict[str, str]]:
    return refused.code.name, refused.reason, refused.metadata


# === invalid specs ===

INVALID = [
    ("image", {"image": ""}),
    ("image", {"image": " "}),
    ("idle_ttl", {"idle_ttl": Duration(seconds=-1)}),
    ("idle_ttl", {"idle_ttl": Duration(nanos=-1)}),
    ("gpus", {"gpus": "one"}),
    ("envs", {"envs": {"AGENTS_SANDBOX_SUPPLEMENTAL_GROUPS": "1"}}),
    ("mounts[0].source", {"mounts": [MOUNT(target="/x")]}),
    ("mounts[0].source", {"mounts": [MOUNT(source="etc", target="/x")]}),
    ("mounts[0].source", {"mounts": [MOUNT(source="~root/x", target="/x")]}),
    ("mounts[0].source", {"mounts": [MOUNT(source="/no/such/thing", target="/x")]}),
    ("mounts[0].source", {"mounts": [MOUNT(source="/dev/null", target="/x")]}),
    ("mounts[0].target", {"mounts": [MOUNT(source="/etc")]}),
    ("mounts[0].target", {"mounts": [MOUNT(source="/etc", target="x")]}),
    ("mounts[1].target", {"mounts": [MOUNT(source="/etc", target="/x"), MOUNT(source="/usr", target="/x/")]}),
    ("copies[0].source", {"copies": [COPY(source="/", target="/x")]}),
    ("copies[0].source", {"copies": [COPY(source="/no/such/thing", target="/x")]}),
    ("copies[0].target", {"copies": [COPY(source="/etc", target="relative")]}),
    ("copies[0].target", {"mounts": [MOUNT(source="/etc", target="/x")], "copies": [COPY(source="/etc", target="/x")]}),
    ("ports[0].container_port", {"ports": [PORT(container_port=0, host_port=1)]}),
    ("ports[0].host_port", {"ports": [PORT(container_port=1, host_port=65536)]}),
    ("ports[1].host_port", {"ports": [PORT(container_port=1, host_port=9), PORT(container_port=2, host_port=9)]}),
    ("ports[0].protocol", {"ports": [PORT(container_port=1, host_port=9, protocol=7)]}),
    ("companion_containers[0].name", {"companion_containers": [SERVICE(image="host")]}),
    ("companion_containers[0].image", {"companion_containers": [SERVICE(name="one")]}),
    ("companion_containers[1].name", {"companion_containers": [SERVICE(name="one", image="host")] * 2}),
    (
        "companion_containers[0].post_start_on_primary",
        {"companion_containers": [SERVICE(name="one", image="host", post_start_on_primary=["true"])]},
    ),
    ("companion_containers[0].command[0]", {"companion_containers": [SERVICE(name="one", image="host", command=[""])]}),
    *(
        (
            "companion_containers[0].healthcheck.test",
            {"companion_containers": [SERVICE(name="one", image="host", healthcheck=CHECK(test=test))]},
        )
        for test in ([], ["CMD"], ["CMD-SHELL"], ["NONE", "x"], ["RUN", "x"])
    ),
    ("command[1]", {"command": ["sh", ""]}),
    *(("cpu_limit", {"cpu_limit": text}) for text in ("0", "-1", "nan", "inf", "0.0001", "two")),
    *(("memory_limit", {"memory_limit": text}) for text in ("0", "-1", "much", "12q")),
    *(("disk_limit", {"disk_limit": text}) for text in ("0", "-1", "much")),
    ("builtin_tools[0]", {"builtin_tools": [""]}),
    ("builtin_tools[0]", {"builtin_tools": ["hammer"]}),
    ("builtin_tools[1]", {"builtin_tools": ["npm", "npm"]}),
]


@pytest.mark.parametrize(
    ("field", "spec"),
    [pytest.param(*case, id=f"{number} {case[0].translate(PLAIN)}") for number, case in enumerate(INVALID)],
)
#= control.errors.errors-carry-errorinfo-domain
#= control.images.image-request-daemon-default
#= promises.control-plane.errors-without-errorinfo
async def test_an_invalid_spec_is_refused_and_creates_no_sandbox(client, field, spec):
    name = new_id()
    refused = await refusal(
        client.call("CreateSandbox", create_spec=CREATE(**{"image": "host"} | spec), sandbox_id=name)
    )
    assert details(refused) == ("INVALID_ARGUMENT", "INVALID_ARGUMENT", {"field": field})
    assert (await refusal(client.get_sandbox(name))).reason == "SANDBOX_NOT_FOUND"


async def test_a_refused_sandbox_does_not_use_its_id(client):
    name = new_id()
    await refusal(client.create_sandbox(image="", sandbox_id=name))
    async with new_sandbox(client, sandbox_id=name) as made:
        assert made == name


@pytest.mark.parametrize(
    "yaml",
    [
        pytest.param("image: [", id="unparsable"),
        pytest.param("image: host\nimages: host", id="unknown key"),
        pytest.param("image: host\nidle_ttl: soon", id="bad duration"),
        pytest.param("image: host\ncommand: []", id="empty command"),
        pytest.param('image: host\ncommand: [sh, ""]', id="empty word"),
        pytest.param("image: host\nports: [{container_port: 1, host_port: 9, protocol: smoke}]", id="bad protocol"),
    ],
)
async def test_an_invalid_file_is_refused(client, yaml):
    refused = await refusal(client.call("CreateSandbox", config_yaml=yaml.encode()))
    assert details(refused) == ("INVALID_ARGUMENT", "INVALID_ARGUMENT", {"field": "config_yaml"})


#= control.images.image-request-daemon-default
async def test_a_file_without_an_image_is_refused(client):
    name = new_id()
    refused = await refusal(client.call("CreateSandbox", config_yaml=b"labels: {a: b}", sandbox_id=name))
    assert details(refused) == ("INVALID_ARGUMENT", "INVALID_ARGUMENT", {"field": "image"})
    assert (await refusal(client.get_sandbox(name))).reason == "SANDBOX_NOT_FOUND"


async def test_a_create_without_a_spec_is_refused(client):
    refused = await refusal(client.call("CreateSandbox"))
    assert details(refused) == ("INVALID_ARGUMENT", "INVALID_ARGUMENT", {"field": "create_spec"})


@pytest.mark.parametrize(
    "name", ["abc", "x" * 201, "-abcd", "abcd-", "_abcd", "ab cd", "ab/cd", "../..", "äbcd", "ab.cd"]
)
async def test_an_invalid_id_is_refused(client, sandbox, name):
    refused = await refusal(client.create_sandbox(image="host", sandbox_id=name))
    assert details(refused) == ("INVALID_ARGUMENT", "INVALID_ARGUMENT", {"field": "sandbox_id"})
    refused = await refusal(client.create_exec(sandbox, ["true"], exec_id=name))
    assert details(refused) == ("INVALID_ARGUMENT", "INVALID_ARGUMENT", {"field": "exec_id"})


@pytest.mark.parametrize("name", ["A-_9", new_id("Long_Ones-").ljust(200, "Z")], ids=["short", "long"])
async def test_every_id_of_the_documented_form_is_accepted(client, name):
    async with new_sandbox(client, sandbox_id=name) as sandbox:
        handle = await client.run(sandbox, ["true"], exec_id=name)
        assert (sandbox, handle.exec_id, handle.exit_code) == (name, name, 0)


@pytest.mark.parametrize("protocol", ["UDP", "SCTP"])
async def test_ports_of_other_protocols_are_refused_with_the_reason(client, protocol):
    port = PORT(container_port=1, host_port=9, protocol=f"PORT_PROTOCOL_{protocol}")
    refused = await refusal(client.create_sandbox(image="host", ports=[port]))
    assert details(refused) == ("INVALID_ARGUMENT", "PORT_PROTOCOL_UNSUPPORTED", {"field": "ports[0].protocol"})
    assert protocol in refused.message


async def test_gpus_are_refused_with_the_reason(client):
    refused = await refusal(client.create_sandbox(image="host", gpus="all"))
    assert details(refused) == ("FAILED_PRECONDITION", "GPU_UNAVAILABLE", {"field": "gpus"})


async def test_a_symlink_is_refused_as_a_source(client, tmp_path):
    link = tmp_path / "link"
    link.symlink_to("/etc")
    for spec in ({"mounts": [MOUNT(source=str(link), target="/x")]}, {"copies": [COPY(source=str(link), target="/x")]}):
        refused = await refusal(client.create_sandbox(image="host", **spec))
        assert (refused.code.name, refused.reason) == ("INVALID_ARGUMENT", "INVALID_ARGUMENT")
        assert refused.metadata["field"].endswith("[0].source")


# === requests that cannot be fulfilled ===


async def test_requests_for_missing_sandboxes_and_execs_are_not_found(client):
    metadata = {"sandbox_id": "nobody"}
    for method in ("GetSandbox", "StopSandbox", "ResumeSandbox", "DeleteSandbox"):
        refused = await refusal(client.call(method, **metadata))
        assert details(refused) == ("NOT_FOUND", "SANDBOX_NOT_FOUND", metadata), method
    refused = await refusal(client.call("CreateExec", **metadata, command=["true"]))
    assert details(refused) == ("NOT_FOUND", "SANDBOX_NOT_FOUND", metadata)
    refused = await refusal(anext(client.subscribe_sandbox_events("nobody")))
    assert details(refused) == ("NOT_FOUND", "SANDBOX_NOT_FOUND", metadata)
    for method in ("GetExec", "CancelExec"):
        refused = await refusal(client.call(method, exec_id="nothing"))
        assert details(refused) == ("NOT_FOUND", "EXEC_NOT_FOUND", {"exec_id": "nothing"}), method


async def test_an_id_is_never_reused(client, sandbox):
    metadata = {"sandbox_id": sandbox}
    taken = ("ALREADY_EXISTS", "SANDBOX_ID_ALREADY_EXISTS", metadata)
    assert details(await refusal(client.create_sandbox(image="host", sandbox_id=sandbox))) == taken
    exec_id = new_id("exec")
    await client.run(sandbox, ["true"], exec_id=exec_id)
    async with new_sandbox(client) as other:
        for where in (sandbox, other):
            refused = await refusal(client.create_exec(where, ["true"], exec_id=exec_id))
            assert details(refused) == ("ALREADY_EXISTS", "EXEC_ID_ALREADY_EXISTS", {"exec_id": exec_id})
    await client.delete_sandbox(sandbox)
    assert details(await refusal(client.create_sandbox(image="host", sandbox_id=sandbox))) == taken


async def test_requests_in_the_wrong_state_are_refused(client, sandbox):
    metadata = {"sandbox_id": sandbox}
    invalid = ("FAILED_PRECONDITION", "SANDBOX_INVALID_STATE", metadata)
    not_ready = ("FAILED_PRECONDITION", "SANDBOX_NOT_READY", metadata)
    assert details(await refusal(client.resume_sandbox(sandbox))) == invalid
    await client.stop_sandbox(sandbox)
    assert details(await refusal(client.stop_sandbox(sandbox))) == invalid
    assert details(await refusal(client.create_exec(sandbox, ["true"]))) == not_ready
    await client.delete_sandbox(sandbox)
    for method in (client.stop_sandbox, client.resume_sandbox):
        assert details(await refusal(method(sandbox))) == invalid
    assert details(await refusal(client.create_exec(sandbox, ["true"]))) == not_ready


async def test_an_empty_command_is_refused(client, sandbox):
    for command in ([], [""]):
        refused = await refusal(client.create_exec(sandbox, command))
        assert details(refused) == ("INVALID_ARGUMENT", "INVALID_ARGUMENT", {"field": "command"})


async def test_an_exec_that_has_ended_cannot_be_cancelled(client, sandbox):
    handle = await client.run(sandbox, ["true"])
    refused = await refusal(client.cancel_exec(handle.exec_id))
    assert details(refused) == ("FAILED_PRECONDITION", "EXEC_ALREADY_TERMINAL", {"exec_id": handle.exec_id})


async def test_an_empty_label_selector_does_not_delete_all_sandboxes(client, sandbox):
    refused = await refusal(client.delete_sandboxes({}))
    assert details(refused) == ("INVALID_ARGUMENT", "INVALID_ARGUMENT", {"field": "label_selector"})
    assert (await client.run(sandbox, ["true"])).exit_code == 0


async def test_refusals_come_in_the_documented_order(client, sandbox):
    # The state comes before the command, and the command before the id.
    refused = await refusal(client.create_exec(sandbox, [], exec_id="x"))
    assert refused.metadata == {"field": "command"}
    await client.stop_sandbox(sandbox)
    assert (await refusal(client.create_exec(sandbox, [], exec_id="x"))).reason == "SANDBOX_NOT_READY"
    # The spec of a sandbox comes before its id.
    refused = await refusal(client.create_sandbox(image="", sandbox_id="x"))
    assert refused.metadata == {"field": "image"}


# === refusals of gRPC itself ===


#= control.errors.errors-carry-errorinfo-domain
async def test_an_unknown_method_is_refused_with_error_details(client):
    unknown = client.channel.unary_unary("/agbox.v1.SandboxService/Fly", lambda _: b"", lambda answer: answer)
    with pytest.raises(grpc.RpcError) as error:
        await unknown(None)
    refused = translated(error.value)
    assert (refused.code.name, refused.reason) == ("UNIMPLEMENTED", "METHOD_UNKNOWN")


async def test_a_malformed_message_is_refused_and_has_no_effect(client):
    ping = client.channel.unary_unary(
        "/agbox.v1.SandboxService/GetSandbox", lambda _: b"\xff" * 64, lambda answer: answer
    )
    with pytest.raises(grpc.RpcError) as error:
        await ping(None)
    assert translated(error.value).reason
    assert (await client.ping()).daemon == "agboxd"


async def test_a_message_that_is_too_large_is_refused(client):
    refused = await refusal(client.create_sandbox(image="host", labels={"large": "x" * (5 << 20)}))
    assert (refused.code.name, refused.reason) == ("RESOURCE_EXHAUSTED", "MESSAGE_TOO_LARGE")


#= control.snapshot-stream.getexec-carries-sequence-valid
async def test_a_cancelled_stream_does_not_cancel_accepted_work(client, shared):
    gate = Gate(shared)
    async with new_sandbox(client, mounts=(writable_mount(client, shared),)) as name:
        handle = await client.create_exec(name, script(gate.wait))
        waiting = asyncio.ensure_future(client.create_exec(name, script("exit 3"), exec_id=new_id("exec"), wait=True))
        events = client.subscribe_sandbox_events(name)
        await anext(events)
        await events.aclose()
        assert (await waiting).exit_code == 3
        await gate.open()
        async for event in client.subscribe_sandbox_events(name, from_sequence=handle.last_event_sequence):
            if event.exec.exec_id == handle.exec_id:
                break
        assert (await client.get_exec(handle.exec_id)).exit_code == 0
