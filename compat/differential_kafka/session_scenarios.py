"""Fetch sessions (KIP-227): what is told, forgotten, refused, and in which order."""

from __future__ import annotations

from typing import Any

from kafka.protocol.admin import DeleteRecordsRequest, DeleteTopicsRequest
from kafka.protocol.consumer import FetchRequest

from pulsemark.testing.raw_kafka import fetch_fields

from .admin_scenarios import make_topic
from .peers import Peer
from .record_scenarios import complete, records_of, send
from .record_sets import MIXED, set_of

VERSIONS = range(7, 12)

_Forgotten = FetchRequest.ForgottenTopic
_Deleted = DeleteRecordsRequest.DeleteRecordsTopic
Partition = tuple[str, int, int]
"""Topic, partition and fetch offset."""


class Session:
    """One client's session, in one version."""

    def __init__(self, peer: Peer, version: int) -> None:
        self._peer = peer
        self._version = version
        self.id = 0

    def ask(
        self,
        label: str,
        epoch: int,
        asked: list[Partition],
        forgotten: list[tuple[str, int]] | None = None,
        session: int | None = None,
        most: int = 1 << 20,
    ) -> None:
        """A Fetch; the partitions are recorded in the order of the answer."""
        fields = fetch_fields([(*each, 1 << 20, -1) for each in asked], 0, 1, most)
        fields["session_id"] = self.id if session is None else session
        fields["session_epoch"] = epoch
        fields["forgotten_topics_data"] = [
            _Forgotten(topic=topic, partitions=[index]) for topic, index in forgotten or ()
        ]
        made = self._peer.main.call(FetchRequest, self._version, **fields)
        if not epoch:
            self.id = made.session_id
        shown = _shown(made)
        if self._peer.converts:  # Kafka 2.8 reads them in another order
            shown["parts"] = sorted(shown["parts"]) if most > 1 else len(shown["parts"])
        self._peer.record(f"{label} (v{self._version})", shown)


def _shown(made: Any) -> dict[str, Any]:
    order = []
    for topic in made.responses:
        for part in topic.partitions:
            data = bytes(part.records or b"")
            offsets = [record[0] for record in records_of(data)]
            order.append(
                f"{topic.topic} {part.partition_index}: code {part.error_code}, end "
                f"{part.high_watermark}, start {part.log_start_offset}, {offsets} "
                f"{complete(data) == data}"
            )
    # Kafka puts topics that it does not know last.
    order.sort(key=lambda part: ": code 3," in part)
    return {"error_code": made.error_code, "session_id": made.session_id, "parts": order}


def fetch_sessions(peer: Peer) -> None:
    for version in (each for each in VERSIONS if each in peer.versions(FetchRequest)):
        topic = make_topic(peer, f"session{version}", partitions=3)
        other = make_topic(peer, f"session{version}-other")
        for name in (topic, other):
            send(peer, "a set", name, 7, set_of(2, "none", MIXED))
        _changes(peer, version, topic, other)
        _refusals(peer, version, topic)
        _ends(peer, version, topic)
        _gone(peer, version, topic, other)


def _changes(peer: Peer, version: int, topic: str, other: str) -> None:
    session = Session(peer, version)
    session.ask("full", 0, [(topic, 0, 0), (topic, 1, 0), (other, 0, 0)])
    session.ask("no change", 1, [])
    session.ask("another offset", 2, [(topic, 0, 5)])
    session.ask("the end", 3, [(topic, 0, 6), (other, 0, 6)])
    session.ask("nothing new", 4, [])
    send(peer, "more", topic, 7, set_of(2, "none", MIXED))
    session.ask("a new end", 5, [])
    session.ask("still there", 6, [])
    session.ask("taken", 7, [(topic, 0, 12)])
    session.ask("a new partition", 8, [(topic, 2, 0)])
    session.ask("one forgotten", 9, [], [(topic, 0)])
    session.ask("unknown ones forgotten", 10, [], [(topic, 0), ("none", 4)])
    session.ask("named and forgotten", 11, [(other, 0, 0)], [(other, 0)])
    session.ask("named again", 12, [(other, 0, 6)])
    session.ask("out of range", 13, [(other, 0, 99)])
    session.ask("still out of range", 14, [])
    session.ask("in range again", 15, [(other, 0, 6)])
    session.ask("a topic that is missing", 16, [("no-such-topic", 0, 0)])
    session.ask("still missing", 17, [])
    session.ask("a partition that is missing", 18, [(topic, 9, 0)], [("no-such-topic", 0)])
    session.ask("the same twice", 19, [(topic, 0, 0), (topic, 0, 12)], [(topic, 9)])
    session.ask("all from the start", 20, [(topic, 0, 0), (other, 0, 0)])
    session.ask("one set at most", 21, [], most=1)
    session.ask("the next set", 22, [], most=1)
    session.ask("and the next", 23, [], most=1)


def _refusals(peer: Peer, version: int, topic: str) -> None:
    session = Session(peer, version)
    session.ask("full", 0, [(topic, 0, 0)])
    for epoch in (2, 5, 2**31 - 1, -2):
        session.ask(f"epoch {epoch} instead of 1", epoch, [(topic, 0, 0)])
    session.ask("the right one", 1, [])
    session.ask("again", 1, [])
    # Kafka 3.9.2 fails on 2^31 - 1: its cache has no part for it.
    for number in (0, -1, 2**30):
        session.ask(f"id {number}", 1, [(topic, 0, 0)], session=number)
    session.ask("an id that is not known, and epoch 0", 0, [(topic, 0, 0)], session=2**30)


def _ends(peer: Peer, version: int, topic: str) -> None:
    session = Session(peer, version)
    session.ask("full", 0, [(topic, 0, 12)])
    session.ask("all forgotten", 1, [], [(topic, 0)])
    session.ask("after its end", 2, [(topic, 0, 0)])
    session.ask("nothing", 0, [], session=0)
    session.ask("one for nothing", 1, [(topic, 0, 12)])
    session.ask("full", 0, [(topic, 0, 12)], session=0)
    first = session.id
    session.ask("full, with its id", 0, [(topic, 0, 12)])
    session.ask("the one before", 1, [], session=first)
    session.ask("closed", -1, [(topic, 0, 12)])
    session.ask("after it was closed", 1, [])
    session.ask("closed, without a session", -1, [(topic, 0, 0)], session=0)


def _gone(peer: Peer, version: int, topic: str, other: str) -> None:
    session = Session(peer, version)
    session.ask("full", 0, [(topic, 0, 12), (other, 0, 6)])
    part = _Deleted.DeleteRecordsPartition(partition_index=0, offset=6)
    deleted = [_Deleted(name=topic, partitions=[part])]
    peer.quietly(DeleteRecordsRequest, 1, topics=deleted, timeout_ms=5_000)
    session.ask("another start", 1, [])
    session.ask("the same start", 2, [])
    peer.quietly(DeleteTopicsRequest, 1, topic_names=[other], timeout_ms=5_000)
    session.ask("a deleted topic", 3, [])
    session.ask("a topic that stays deleted", 4, [])


SESSION_SCENARIOS = {"fetch-sessions": fetch_sessions}
