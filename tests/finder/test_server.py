"""Port, token, TLS, health, reflection, and an orderly stop."""

from __future__ import annotations

import asyncio
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from pulsemark.finder import ClientTls, SeekClient, rpc
from pulsemark.finder.errors import (
    BindError,
    SeekCallError,
    ServerUnavailableError,
    UnauthenticatedError,
)
from pulsemark.finder.server import MAX_REQUEST_BYTES, SeekServer, ServerOptions, ServerTls
from pulsemark.finder.service import TopicSource
from pulsemark.proto import seek_pb2 as pb
from tests.support.certificates import Certificates


@pytest.fixture
def orders(topics):
    """Three entries."""
    return topics.fill([b"a", b"b", b"c"])


# Token


def test_only_the_right_token_opens(serve, topics, orders):
    """Without it, or with a wrong one, every call is UNAUTHENTICATED; with it all work."""
    server = serve(topics, ServerOptions(token="s3cret"))
    for token in (None, "S3cret", "s3cret2", "s"):
        with SeekClient(server.target, token=token) as seek:
            with pytest.raises(UnauthenticatedError):
                seek.by_index(topics.ORDERS, 0)
            with pytest.raises(UnauthenticatedError):
                list(seek.read_entries(topics.ORDERS))
            with pytest.raises(UnauthenticatedError):
                seek.reset_cursor(topics.ORDERS, "audit", index=0)
    with SeekClient(server.target, token="s3cret") as seek:
        assert seek.by_index(topics.ORDERS, 0).index == 0
        assert len(list(seek.read_entries(topics.ORDERS))) == 3


@pytest.mark.parametrize("token", ["", " ", "two words", "ß", "line\n"])
def test_a_token_that_no_header_can_carry_is_refused(token):
    """On both sides, at once: an empty token would be an open door."""
    with pytest.raises(ValueError, match=r"^token: "):
        SeekClient("127.0.0.1:1", token=token)
    with pytest.raises(ValueError, match=r"^token: "):
        ServerOptions(token=token)


@pytest.mark.parametrize(
    "headers",
    [
        [("authorization", "s3cret")],
        [("authorization", "Basic s3cret")],
        [("authorization", "Bearer s3cret"), ("authorization", "Bearer s3cret")],
        [("x-authorization", "Bearer s3cret")],
    ],
)
def test_the_token_must_come_as_one_bearer(serve, topics, orders, headers):
    """Anything but exactly one `authorization: Bearer <token>` is refused."""
    target = serve(topics, ServerOptions(token="s3cret")).target
    with grpc.insecure_channel(target) as channel:
        seek = channel.unary_unary(rpc.path("SeekByIndex"), **rpc.client_codec("SeekByIndex"))
        with pytest.raises(grpc.RpcError) as refused:
            seek(pb.SeekByIndexRequest(topic=topics.ORDERS, index=0), metadata=headers)
        assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED


def test_probes_need_no_token_but_reflection_does(serve, topics):
    """Health says nothing but up or down; the rest is for those who were let in."""
    server = serve(topics, ServerOptions(token="s3cret"))
    with SeekClient(server.target) as seek:
        assert seek.is_serving()
    with grpc.insecure_channel(server.target) as channel:
        reflection = reflection_pb2_grpc.ServerReflectionStub(channel)
        with pytest.raises(grpc.RpcError) as refused:
            list(reflection.ServerReflectionInfo(iter([list_services()])))
        assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED


def test_a_token_in_the_open_is_warned_about(serve, topics, caplog):
    """Reachable from outside, with a token, without TLS: worth a word in the log."""
    serve(topics, ServerOptions(host="0.0.0.0", token="s3cret"))
    assert any("without TLS" in record.message for record in caplog.records)
    caplog.clear()
    serve(topics, ServerOptions(token="s3cret"))
    assert not any("without TLS" in record.message for record in caplog.records)


# TLS


@pytest.fixture(scope="session")
def certificates(tmp_path_factory):
    """An authority, certificates of a server and a client, and another authority's client."""
    folder = tmp_path_factory.mktemp("certificates")
    made = Certificates(folder)
    made.authority("ca")
    made.authority("other")
    for name, by in (("server", "ca"), ("client", "ca"), ("stranger", "other")):
        made.issue(name, by, "DNS:localhost,DNS:seek.test,IP:127.0.0.1")
    return folder


def test_tls_serves_those_who_trust_it(serve, topics, orders, certificates):
    """With the right authority calls pass, under another expected name too; others get nothing."""
    folder = certificates
    tls = ServerTls(certificate=folder / "server.pem", key=folder / "server.key")
    server = serve(topics, ServerOptions(tls=tls, token="s3cret"))
    for name in (None, "seek.test"):
        trusting = ClientTls(ca=folder / "ca.pem", server_name=name)
        with SeekClient(server.target, tls=trusting, token="s3cret") as seek:
            assert seek.by_index(topics.ORDERS, 1).index == 1
    for distrusting in (
        ClientTls(ca=folder / "other.pem"),
        ClientTls(ca=folder / "ca.pem", server_name="elsewhere.test"),
        None,
    ):
        with (
            SeekClient(server.target, tls=distrusting, token="s3cret") as seek,
            pytest.raises(ServerUnavailableError),
        ):
            seek.by_index(topics.ORDERS, 1)


def test_client_certificates_can_be_demanded(serve, topics, orders, certificates):
    """With a client authority, only clients with a certificate from it are let in."""
    folder = certificates
    tls = ServerTls(
        certificate=folder / "server.pem", key=folder / "server.key", client_ca=folder / "ca.pem"
    )
    server = serve(topics, ServerOptions(tls=tls))

    def client(name):
        own = {"certificate": folder / f"{name}.pem", "key": folder / f"{name}.key"} if name else {}
        return SeekClient(server.target, tls=ClientTls(ca=folder / "ca.pem", **own))

    with client("client") as seek:
        assert seek.by_index(topics.ORDERS, 1).index == 1
    for name in (None, "stranger"):
        with client(name) as seek, pytest.raises(ServerUnavailableError):
            seek.by_index(topics.ORDERS, 1)


@pytest.mark.parametrize(
    ("certificate", "key", "client_ca"),
    [
        ("server.pem", "client.key", None),
        ("absent.pem", "server.key", None),
        ("server.pem", "absent.key", None),
        ("server.pem", "server.key", "absent.pem"),
        ("server.pem", "server.key", "server.key"),
    ],
)
def test_wrong_tls_files_fail_at_the_start(
    serve, topics, certificates, certificate, key, client_ca
):
    """A key that does not fit must not wait for the first client to be noticed."""
    tls = ServerTls(
        certificate=certificates / certificate,
        key=certificates / key,
        client_ca=certificates / client_ca if client_ca else None,
    )
    with pytest.raises(OSError):  # noqa: PT011 - ssl.SSLError and FileNotFoundError have no more in common
        serve(topics, ServerOptions(tls=tls))


def test_half_a_client_certificate_is_refused(tmp_path):
    """Certificate and key come together."""
    with pytest.raises(ValueError, match="together"):
        ClientTls(certificate=tmp_path / "client.pem")


# Health and reflection


def test_health_follows_the_servers_life(serve, topics):
    """SERVING while it runs; watchers get NOT_SERVING when the stop begins."""

    async def life():
        server = SeekServer(topics)
        await server.start()
        async with grpc.aio.insecure_channel(server.target) as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            for name in ("", rpc.SERVICE_NAME):
                answer = await stub.Check(health_pb2.HealthCheckRequest(service=name))
                assert answer.status == health_pb2.HealthCheckResponse.SERVING
            with pytest.raises(grpc.aio.AioRpcError) as unknown:
                await stub.Check(health_pb2.HealthCheckRequest(service="nobody"))
            assert unknown.value.code() is grpc.StatusCode.NOT_FOUND
            watch = stub.Watch(health_pb2.HealthCheckRequest(service=rpc.SERVICE_NAME))
            first = await watch.read()
            stopping = asyncio.create_task(server.stop(0.5))
            second = await watch.read()
            watch.cancel()
            await stopping
        return first.status, second.status

    serving, not_serving = asyncio.run(life())
    assert serving == health_pb2.HealthCheckResponse.SERVING
    assert not_serving == health_pb2.HealthCheckResponse.NOT_SERVING


def list_services():
    """What grpcurl asks first."""
    return reflection_pb2.ServerReflectionRequest(list_services="")


class Reflected:
    """A client that knows nothing but a host and a port, as grpcurl does."""

    def __init__(self, channel):
        self._channel = channel
        self._stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        self._pool = descriptor_pool.DescriptorPool()
        self._files = set()

    def services(self):
        """What `grpcurl list` shows."""
        [answer] = self._stub.ServerReflectionInfo(iter([list_services()]))
        return [service.name for service in answer.list_services_response.service]

    def service(self, name):
        """What `grpcurl describe` shows."""
        request = reflection_pb2.ServerReflectionRequest(file_containing_symbol=name)
        self._add(request)
        return self._pool.FindServiceByName(name)

    def _add(self, request):
        [answer] = self._stub.ServerReflectionInfo(iter([request]))
        for data in answer.file_descriptor_response.file_descriptor_proto:
            file = descriptor_pb2.FileDescriptorProto.FromString(data)
            if file.name in self._files:
                continue
            self._files.add(file.name)
            for name in file.dependency:
                self._add(reflection_pb2.ServerReflectionRequest(file_by_filename=name))
            self._pool.Add(file)

    def call(self, method, **fields):
        """A call with messages made from the descriptors."""
        request = message_factory.GetMessageClass(method.input_type)(**fields)
        answer = message_factory.GetMessageClass(method.output_type)
        path = f"/{method.containing_service.full_name}/{method.name}"
        kind = self._channel.unary_stream if method.server_streaming else self._channel.unary_unary
        return kind(
            path,
            request_serializer=type(request).SerializeToString,
            response_deserializer=answer.FromString,
        )(request)


def test_a_client_can_be_built_from_reflection_alone(serve, topics, orders):
    """Without our proto file at hand, the service can be listed, described and called."""
    with grpc.insecure_channel(serve(topics).target) as channel:
        reflected = Reflected(channel)
        assert reflected.services() == sorted(
            [
                "grpc.health.v1.Health",
                "grpc.reflection.v1alpha.ServerReflection",
                "pulsemark.seek.v1.SeekService",
            ]
        )
        service = reflected.service("pulsemark.seek.v1.SeekService")
        assert service is not rpc.SERVICE
        assert [m.name for m in service.methods] == [m.name for m in rpc.SERVICE.methods]
        by_time = service.methods_by_name["SeekByTime"]
        found = reflected.call(by_time, topic=topics.ORDERS, time_ms=topics.FIRST_MS + 10)
        assert (found.position.entry_id, found.index, found.end) == (1, 1, False)
        read = service.methods_by_name["ReadEntries"]
        responses = list(reflected.call(read, topic=topics.ORDERS))
        assert [p.body for r in responses for p in r.pieces] == [b"a", b"b", b"c"]
        detail = reflected._pool.FindMessageTypeByName("pulsemark.seek.v1.ErrorDetail")
        assert "index_out_of_range" in detail.fields_by_name


# Port, limits, stop


def test_a_taken_port_is_reported_and_never_shared(serve, topics):
    """Two servers on one port would answer in turns; the second is refused."""
    port = serve(topics).port
    with pytest.raises(BindError) as caught:
        serve(topics, ServerOptions(port=port))
    assert (caught.value.host, caught.value.port) == ("127.0.0.1", port)
    assert isinstance(caught.value, OSError)


def test_a_port_taken_by_others_is_reported(serve, topics):
    """The same where somebody else listens."""
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(BindError):
        serve(topics, ServerOptions(port=taken.getsockname()[1]))


def test_a_request_of_silly_size_is_refused_unread(serve, topics, orders):
    """Requests are small; what is not is refused by its size alone."""
    with SeekClient(serve(topics).target) as seek:
        with pytest.raises(SeekCallError, match="RESOURCE_EXHAUSTED"):
            seek.by_time("x" * (MAX_REQUEST_BYTES + 1), 1)
        assert seek.by_index(topics.ORDERS, 0).index == 0


@pytest.mark.parametrize("name", ["search_threads", "max_concurrent_calls"])
def test_options_that_cannot_work_are_refused_by_name(name):
    """No threads, no answers."""
    settings: dict[str, Any] = {name: 0}
    with pytest.raises(ValueError, match=f"^{name}: "):
        ServerOptions(**settings)


def test_a_stop_lets_calls_under_way_finish(topics, orders):
    """Within the grace a call gets its answer, new ones are refused, and the port is free again."""
    gate, stuck = threading.Event(), threading.Event()

    class Stuck(TopicSource):
        def log(self, topic):
            stuck.set()
            assert gate.wait(30)
            return orders

        def ends(self, topic):
            raise AssertionError("not asked for")

    async def scene():
        loop = asyncio.get_running_loop()
        server = SeekServer(Stuck(), ServerOptions(stop_grace_s=30))
        await server.start()
        with SeekClient(server.target) as early, ThreadPoolExecutor() as pool:
            answer = loop.run_in_executor(pool, early.by_index, topics.ORDERS, 0)
            await loop.run_in_executor(pool, stuck.wait, 10)
            stopping = asyncio.create_task(server.stop())
            await asyncio.sleep(0)
            with SeekClient(server.target, timeout_s=0.5) as late:
                for _ in range(100):
                    try:
                        assert not await loop.run_in_executor(pool, late.is_serving)
                    except ServerUnavailableError:
                        break
                    except SeekCallError as error:
                        # It came in the very moment the stop began: gRPC keeps it unanswered or
                        # cancels it.
                        assert error.code in {"DEADLINE_EXCEEDED", "CANCELLED"}
                    await asyncio.sleep(0.01)
                else:
                    raise AssertionError("it never stopped listening")
            assert not stopping.done()
            gate.set()
            await stopping
            return (await answer).index, server.port

    index, port = asyncio.run(scene())
    assert index == 0
    with socket.create_server(("127.0.0.1", port)):
        pass


def test_a_stop_without_grace_ends_streams(topics, orders):
    """Grace 0 cancels what is under way: the client gets the error that the server is gone."""

    async def scene():
        loop = asyncio.get_running_loop()
        server = SeekServer(topics)
        await server.start()
        await server.stop(0)
        await server.stop(0)
        with SeekClient(server.target) as seek, pytest.raises(ServerUnavailableError):
            await loop.run_in_executor(None, seek.by_index, topics.ORDERS, 0)

    asyncio.run(scene())
