"""Names of topics that are refused: the texts are Pulsar's, because clients show them."""

from __future__ import annotations

import pytest

from pulsemark.testing.raw_client import RequestRefusedError

BLANK = "Topic local name must not be blank."
SHORT = "it should be in the format of <tenant>/<namespace>/<topic> or <topic>"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("persistent://public/default", "Invalid topic name: persistent://public/default"),
        ("", f"Invalid short topic name '', {SHORT}"),
        ("a/b", f"Invalid short topic name 'a/b', {SHORT}"),
        ("x://public/default/t", "Invalid topic domain: 'x'"),
        ("persistent:///a/b", "Invalid namespace format. namespace: /a"),
        (
            "persistent://public/default/ ",
            f"Invalid topic name: persistent://public/default/ . {BLANK}",
        ),
    ],
)
def test_an_invalid_name_is_refused_in_pulsars_words(raw, name, text):
    """LOOKUP and PARTITIONED_METADATA answer InvalidTopicName with the reason."""
    for ask in (raw.lookup, raw.partitions):
        with pytest.raises(RequestRefusedError) as caught:
            ask(name)
        assert caught.value.error_name == "InvalidTopicName"
        assert caught.value.message == f"Invalid topic name: {text}"


def test_an_absent_namespace_has_a_text_of_its_own_for_each_command(raw):
    """Not found at lookup; a producer, which has looked the topic up, is to do that again."""
    name = "persistent://public/nowhere/t"
    with pytest.raises(RequestRefusedError) as caught:
        raw.lookup(name)
    assert caught.value.message == "Namespace not found"
    with pytest.raises(RequestRefusedError, match="redo the lookup") as caught:
        raw.create_producer(name)
    assert caught.value.error_name == "ServiceNotReady"
