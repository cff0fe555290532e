"""Every call of the seek service with every kind of credentials, on a broker with permissions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from pulsemark.broker import BrokerThread
from pulsemark.broker.grpc.seek_service import NEEDS
from pulsemark.finder import rpc
from pulsemark.proto import seek_pb2 as pb
from pulsemark.testing import RawClient
from tests.support.attackers import (
    attacked_broker,
    forged,
    role_with,
    roles_without,
    signed,
    state_of,
)
from tests.support.secured import rest, set_up

TOPIC = "persistent://acme/ns/t"
REQUESTS: dict[str, Any] = {
    "SeekByTime": pb.SeekByTimeRequest(topic=TOPIC, time_ms=0),
    "SeekByIndex": pb.SeekByIndexRequest(topic=TOPIC, index=0),
    "Range": pb.RangeRequest(topic=TOPIC, from_ms=0, to_ms=1),
    "ReadEntries": pb.ReadEntriesRequest(topic=TOPIC, max_entries=1),
    "ResetCursor": pb.ResetCursorRequest(topic=TOPIC, subscription="s", index=0),
    "AppendControl": pb.AppendControlRequest(
        topic=TOPIC, type=pb.CONTROL_TYPE_CHECKPOINT, name="x"
    ),
    "Epochs": pb.EpochsRequest(topic=TOPIC),
    "Audit": pb.AuditRequest(topic=TOPIC),
    "FollowState": pb.FollowStateRequest(),
}
REFLECTION = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
Code = grpc.StatusCode


@pytest.fixture(scope="module")
def attacked() -> Iterator[BrokerThread]:
    """A broker with a topic, a message and a subscription after it."""
    with attacked_broker(grpc_port=0) as broker:
        set_up(broker, signed("admin"))
        boss = signed("boss")
        auth = {"auth_method_name": "token", "auth_data": boss.encode()}
        with RawClient.from_url(broker.service_url, **auth) as client:
            client.create_producer(TOPIC).send(b"message")
        path = "/admin/v2/persistent/acme/ns/t/subscription/s"
        assert rest(broker, "PUT", path, boss).status == 204
        yield broker


def call(broker: BrokerThread, method: str, token: str | None, request: Any = None) -> Any:
    """The status of a call."""
    metadata = () if token is None else (("authorization", f"Bearer {token}"),)
    kind = rpc.SERVICE.methods_by_name[method]
    wanted = REQUESTS[method] if request is None else request
    with grpc.insecure_channel(broker.grpc_url) as channel:
        make = channel.unary_stream if kind.server_streaming else channel.unary_unary
        made = make(rpc.path(method), **rpc.client_codec(method))
        try:
            answer = made(wanted, metadata=metadata, timeout=20)
            if kind.server_streaming:
                list(answer)
        except grpc.RpcError as error:
            return error.code()
    return Code.OK


def test_every_call_has_a_need() -> None:
    """A new call of the service fails here without a row."""
    methods = set(rpc.SERVICE.methods_by_name)
    assert set(NEEDS) == methods
    assert set(REQUESTS) == methods


@pytest.mark.parametrize("method", sorted(NEEDS))
def test_refused(attacked: BrokerThread, method: str) -> None:
    """Forged credentials are unauthenticated, roles without the right denied; nothing changes."""
    before = state_of(attacked)
    for kind, token in forged().items():
        assert call(attacked, method, token) is Code.UNAUTHENTICATED, kind
    for role in roles_without(NEEDS[method]):
        assert call(attacked, method, signed(role)) is Code.PERMISSION_DENIED, role
    assert state_of(attacked) == before


@pytest.mark.parametrize("method", sorted(NEEDS))
def test_allowed(attacked: BrokerThread, method: str) -> None:
    """The role with just the right that it takes is let through."""
    for role in (role_with(NEEDS[method]), "admin"):
        status = call(attacked, method, signed(role))
        assert status not in (Code.UNAUTHENTICATED, Code.PERMISSION_DENIED), role


@pytest.mark.parametrize(
    "name", ["", "t", "persistent://acme/ns/../t", "persistent://a/b/c/d", "x" * 900]
)
def test_names_that_are_none(attacked: BrokerThread, name: str) -> None:
    """A name of no topic, or of one of another tenant, gives no rights."""
    request = pb.SeekByTimeRequest(topic=name, time_ms=0)
    assert call(attacked, "SeekByTime", signed("reader"), request) is Code.PERMISSION_DENIED


def test_reflection_needs_a_role(attacked: BrokerThread) -> None:
    """The description of the service is for clients that are authenticated."""
    for token, wanted in ((None, Code.UNAUTHENTICATED), (signed("nobody"), Code.OK)):
        metadata = () if token is None else (("authorization", f"Bearer {token}"),)
        with grpc.insecure_channel(attacked.grpc_url) as channel:
            try:
                list(channel.stream_stream(REFLECTION)(iter(()), metadata=metadata, timeout=20))
                status = Code.OK
            except grpc.RpcError as error:
                status = error.code()
        assert status is wanted
