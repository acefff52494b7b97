"""The other services: reflection, health, and `carrel.v1`."""

import grpc
import pytest

from clients.errors import translated

pytestmark = pytest.mark.plain

NAMES = {"agbox.v1.SandboxService", "carrel.v1.Sandboxes", "grpc.health.v1.Health"}


def test_reflection_lists_the_services_and_their_descriptors(daemon):
    from google.protobuf.descriptor_pool import DescriptorPool
    from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

    with grpc.insecure_channel(f"unix://{daemon.socket}") as channel:
        database = ProtoReflectionDescriptorDatabase(channel)
        assert NAMES <= set(database.get_services())
        pool = DescriptorPool(database)
        service = pool.FindServiceByName("agbox.v1.SandboxService")
        assert service.file.name == "service.proto"
        assert len(service.methods) == 13
        event = pool.FindMessageTypeByName("agbox.v1.SandboxEvent")
        assert [(field.name, field.number) for field in event.oneofs_by_name["details"].fields] == [
            ("sandbox_phase", 9),
            ("exec", 10),
            ("service", 11),
        ]
        assert pool.FindServiceByName("carrel.v1.Sandboxes").methods_by_name["WatchSandboxes"].output_type


def test_health_reports_serving(daemon):
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    with grpc.insecure_channel(f"unix://{daemon.socket}") as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        for name in ("", "agbox.v1.SandboxService", "carrel.v1.Sandboxes"):
            answer = stub.Check(health_pb2.HealthCheckRequest(service=name), timeout=5)
            assert answer.status == health_pb2.HealthCheckResponse.SERVING, name
        with pytest.raises(grpc.RpcError) as error:
            stub.Check(health_pb2.HealthCheckRequest(service="nobody"), timeout=5)
        assert translated(error.value).code is grpc.StatusCode.NOT_FOUND


@pytest.mark.parametrize(
    "authority", [None, "localhost", "agents-sandbox", "tmp%2Fx%2Fagboxd.sock", "/run/x.sock", "x" * 300]
)
def test_any_authority_is_accepted(daemon, authority):
    from clients.stubs import messages, services

    options = [] if authority is None else [("grpc.default_authority", authority)]
    with grpc.insecure_channel(f"unix://{daemon.socket}", options) as channel:
        stub = services.SandboxServiceStub(channel)
        # Later requests send the authority as an index into the header table.
        for _ in range(3):
            assert stub.Ping(messages.PingRequest(), timeout=5).daemon == "agboxd"
