"""Headers as properties: every header comes back as it was, text stays readable."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsemark.kafka.records.properties import add_properties, headers_of
from pulsemark.proto.pulsar_api_pb2 import MessageMetadata

VALUES = st.one_of(
    st.none(),
    st.binary(max_size=20),
    st.text(max_size=20).map(str.encode),
    st.sampled_from([b"null:", b"base64:", b"base64:AA==", b"base64:?", b"null:x", b"\xff"]),
)
HEADERS = st.lists(st.tuples(st.text(max_size=10).map(str.encode), VALUES), max_size=6).map(tuple)


@given(HEADERS)
def test_headers_come_back(headers: tuple[tuple[bytes, bytes | None], ...]) -> None:
    """Order, repeated names, binary and null values survive, over the wire too."""
    metadata = MessageMetadata(producer_name="p", sequence_id=0, publish_time=1)
    add_properties(metadata.properties, headers)
    again = MessageMetadata.FromString(metadata.SerializeToString())
    assert headers_of(again.properties) == headers


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b"plain", "plain"),
        ("grüße".encode(), "grüße"),
        (b"", ""),
        (None, "null:"),
        (b"\x00\x01\x02\x03", "\x00\x01\x02\x03"),
        (b"\xff\xfe", "base64://4="),
        (b"null:", "base64:bnVsbDo="),
        (b"base64:AA==", "base64:YmFzZTY0OkFBPT0="),
    ],
)
def test_what_a_pulsar_client_sees(value: bytes | None, expected: str) -> None:
    """Text is itself; only what is not text, or looks like an escape, is escaped."""
    metadata = MessageMetadata()
    add_properties(metadata.properties, ((b"name", value),))
    assert [(p.key, p.value) for p in metadata.properties] == [("name", expected)]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("text", b"text"),
        ("base64:AAEC", b"\x00\x01\x02"),
        ("base64:not base64", b"base64:not base64"),
        ("null:", None),
        ("null: is text", b"null: is text"),
    ],
)
def test_what_a_pulsar_producer_sends(value: str, expected: bytes | None) -> None:
    """A Pulsar producer can send binary and null headers; what only begins so is text."""
    metadata = MessageMetadata()
    metadata.properties.add(key="name", value=value)
    assert headers_of(metadata.properties) == ((b"name", expected),)


def test_names_that_are_no_text() -> None:
    """A header's name that is not UTF-8 shows its wrong bytes."""
    metadata = MessageMetadata()
    add_properties(metadata.properties, ((b"a\xff", b"v"),))
    assert metadata.properties[0].key == "a\\xff"
