"""Changes in ZooKeeper by a store's one owner, with answers that are lost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import pytest

from pulsemark.coordination import ConnectionLossError, Create, Operation, Set
from pulsemark.ledger import CatalogError
from pulsemark.ledger.bookkeeper.owned_tree import OwnedTree
from pulsemark.ledger.errors import OwnershipLostError, UnsupportedVersionError
from tests.support.faulty_coordination import FaultyCoordination, FaultyTree

ROOT = "/stores/one"
VALUE = f"{ROOT}/values/x"


async def owner_of(tree: FaultyTree, name: str) -> OwnedTree:
    """A new owner, who has taken over."""
    owned = OwnedTree(tree.session(), ROOT, name, limit_s=1)
    await owned.take_over()
    return owned


def failing_once(tree: FaultyTree, when: Literal["before", "after"]) -> None:
    """The next transaction loses its answer, before or after its effect."""

    async def fault(session: FaultyCoordination, name: str, path: str, now: str) -> None:
        if name == "transaction" and now == when:
            tree.fault = None
            raise ConnectionLossError(path)

    tree.fault = fault


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_change_without_an_answer_is_made_once(when: Literal["before", "after"]) -> None:
    """Whether the request or its answer was lost, the change is made exactly once."""
    tree = FaultyTree()
    owned = await owner_of(tree, "a")
    failing_once(tree, when)
    await owned.change([Create(VALUE, b"1")])
    assert await owned.get(VALUE) == b"1"
    failing_once(tree, when)
    await owned.change([Set(VALUE, b"2", 0)])
    assert await tree.session().get(VALUE) == (b"2", 1)


async def test_a_lost_owner_changes_nothing() -> None:
    """After another owner has taken over, a change fails as a whole, and every later one."""
    tree = FaultyTree()
    first = await owner_of(tree, "a")
    await first.change([Create(VALUE, b"1")])
    second = await owner_of(tree, "b")
    for _ in range(2):
        with pytest.raises(OwnershipLostError):
            await first.change([Set(VALUE, b"late")])
    assert not await first.is_owner()
    assert await second.is_owner()
    await second.change([Set(VALUE, b"2")])
    assert await second.get(VALUE) == b"2"


async def test_a_change_that_cannot_be_made_changes_nothing() -> None:
    """If one operation fails, none is made, and the owner goes on."""
    tree = FaultyTree()
    owned = await owner_of(tree, "a")
    with pytest.raises(CatalogError):
        await owned.change([Create(VALUE, b"1"), Set(f"{ROOT}/values/none", b"")])
    assert await owned.get(VALUE) is None
    with pytest.raises(CatalogError, match="bytes"):
        await owned.change([Create(VALUE, bytes(1_000_001))])
    await owned.change([Create(VALUE, b"1")])
    assert await owned.is_owner()


async def test_an_outcome_that_stays_unknown_ends_the_ownership() -> None:
    """If ZooKeeper stays away after a change was sent, the owner never goes on by guessing."""
    tree = FaultyTree()
    owned = await owner_of(tree, "a")

    async def fault(session: FaultyCoordination, name: str, path: str, now: str) -> None:
        if now == "after":
            raise ConnectionLossError(path)

    tree.fault = fault
    with pytest.raises(OwnershipLostError, match="not known"):
        await owned.change([Create(VALUE, b"1")])
    tree.fault = None
    with pytest.raises(OwnershipLostError):
        await owned.change([])
    assert await (await owner_of(tree, "b")).get(VALUE) == b"1"


async def test_a_newer_format_is_refused() -> None:
    """A store that a newer version made is not taken over."""
    tree = FaultyTree()
    await owner_of(tree, "a")
    await tree.session().set(f"{ROOT}/format", b"2")
    with pytest.raises(UnsupportedVersionError):
        await owner_of(tree, "b")


async def test_a_change_that_comes_late_is_not_taken_for_the_next_one() -> None:
    """A change is given up, since ZooKeeper does not answer, and arrives after all: the next change
    fails, instead of being taken for made.
    """
    tree = FaultyTree()
    owned = await owner_of(tree, "a")
    late: list[Sequence[Operation]] = []
    session = owned.coordination
    sent = session.transaction

    async def transaction(operations: Sequence[Operation]) -> list[str | int | None]:
        if not late:
            late.append(operations)
        if late[0] is operations or operations[1:] == late[0][1:]:
            raise ConnectionLossError(operations[0].path)
        if len(late) == 1:
            late.append(operations)
            await tree.session().transaction(late[0])
        return await sent(operations)

    session.transaction = transaction  # type: ignore[method-assign]
    with pytest.raises(CatalogError, match="connection lost"):
        await owned.change([Create(VALUE, b"given up")])
    with pytest.raises(OwnershipLostError):
        await owned.change([Create(f"{ROOT}/values/y", b"next")])
    other = await owner_of(tree, "b")
    assert await other.get(f"{ROOT}/values/y") is None
    assert await other.get(VALUE) == b"given up"


async def test_a_change_after_one_that_was_given_up() -> None:
    """A change that was given up and never arrives does not keep the next one from being made."""
    tree = FaultyTree()
    owned = await owner_of(tree, "a")

    async def fault(session: FaultyCoordination, name: str, path: str, now: str) -> None:
        if name == "transaction":
            raise ConnectionLossError(path)

    tree.fault = fault
    with pytest.raises(CatalogError, match="connection lost"):
        await owned.change([Create(VALUE, b"given up")])
    tree.fault = None
    failing_once(tree, "after")
    await owned.change([Create(VALUE, b"next")])
    assert await owned.get(VALUE) == b"next"
    assert await owned.is_owner()
