"""How a broker becomes a member."""

from typing import Any

import pytest

from pulsemark.cluster import member as joining
from pulsemark.coordination import State
from pulsemark.ledger import CatalogError
from tests.support.faulty_coordination import FaultyTree


@pytest.mark.parametrize(
    ("made", "said"),
    [
        ({}, "no node /wrong/LAYOUT: no cluster here"),
        ({"/wrong": b""}, "no node /wrong/LAYOUT: no cluster here"),
        ({"/wrong": b"", "/wrong/LAYOUT": b"1\nflat:1"}, "/wrong/LAYOUT says b'1"),
    ],
)
async def test_a_path_without_bookkeeper(monkeypatch, made, said):
    """A broker whose store's path has no BookKeeper, or one of another layout, does not join: the
    error names the path, nothing is made there, and no session is left.
    """
    tree = FaultyTree()
    sessions = [tree.session()]
    for path, data in made.items():
        await sessions[0].create(path, data)
    before = tree.paths()

    async def connect(_hosts, **_options):
        sessions.append(tree.session())
        return sessions[-1]

    monkeypatch.setattr(joining, "connect", connect)
    nothing: Any = None
    member = joining.bookkeeper_member("zk://127.0.0.1:1/wrong")
    with pytest.raises(CatalogError, match=said):
        await member.open_store(nothing, nothing)
    assert tree.paths() == before
    assert sessions[1].state is State.LOST
