"""The client's own duties: laziness, imports, life."""

from __future__ import annotations

import subprocess
import sys

import pytest

from pulsemark.finder import ClientClosedError, SeekCallError, SeekClient


def test_grpc_is_imported_only_by_those_who_use_it():
    """Searching beside the ledger must not pay for gRPC, nor must raising its errors."""
    program = (
        "import sys; import pulsemark.finder, pulsemark.finder.errors;"
        "assert 'grpc' not in sys.modules;"
        "from pulsemark.finder import SeekClient;"
        "assert 'grpc' in sys.modules and SeekClient.__name__ == 'SeekClient'"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_every_exported_name_is_there():
    """`__all__` and the lazy names agree; an unknown name is an AttributeError."""
    import pulsemark.finder as face

    assert {name for name in face.__all__ if getattr(face, name) is None} == set()
    assert set(face.__all__) <= set(dir(face))
    with pytest.raises(AttributeError, match="no attribute 'SeekClint'"):
        face.SeekClint  # noqa: B018


def test_an_entry_iterator_that_is_never_begun_makes_no_call(topics, serve):
    """read_entries is lazy: without a first entry asked for, there is no call to clean up."""
    asked = []

    class Source:
        def log(self, topic):
            asked.append(topic)
            return topics.log(topic)

    topics.fill([b"a"])
    with SeekClient(serve(Source()).target) as seek:
        entries = seek.read_entries(topics.ORDERS)
        seek.by_index(topics.ORDERS, 0)
        assert asked == [topics.ORDERS]
        assert [entry.body for entry in entries] == [b"a"]
        assert asked == [topics.ORDERS] * 2


def test_a_closed_client_calls_no_more(topics, serve):
    """After the `with` block the connection is gone."""
    topics.fill([b"a"])
    with SeekClient(serve(topics).target) as seek:
        assert seek.is_serving()
    for call in (
        lambda: seek.by_index(topics.ORDERS, 0),
        lambda: next(seek.read_entries(topics.ORDERS)),
        seek.is_serving,
    ):
        with pytest.raises(ClientClosedError, match="the client was closed"):
            call()
    assert issubclass(ClientClosedError, SeekCallError)
