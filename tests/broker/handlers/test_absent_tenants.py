"""Lookups in a tenant that does not exist, with authorisation."""

from __future__ import annotations

import pytest

from pulsemark.client.errors import RequestRefusedError
from pulsemark.proto.pulsar_api_pb2 import ServerError
from pulsemark.testing import RawClient
from tests.support.secured import secured_broker, set_up, token_of


def test_an_absent_tenant_has_no_topics():
    """TopicNotFound, as in Pulsar; in a tenant of others it is AuthorizationError."""
    with secured_broker() as broker:
        set_up(broker)
        with RawClient.from_url(
            broker.service_url, auth_method_name="token", auth_data=token_of("reader").encode()
        ) as client:
            for topic, code in (
                ("persistent://absent/ns/t", ServerError.TopicNotFound),
                ("persistent://other/ns/t", ServerError.AuthorizationError),
            ):
                for ask in (client.partitions, client.lookup):
                    with pytest.raises(RequestRefusedError) as caught:
                        ask(topic)
                    assert caught.value.error == code
