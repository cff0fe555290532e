"""What a topic's mirror may do: continue the order of its source, without gaps and doubles.

A mirror is a producer that was opened with the property `pulsemark.mirror.source-cluster`. It sends
each entry with the source's facts in front (see `metadata.source_stamp`). The topic's policy
`mirrorSources` says from which clusters it accepts mirrors.

- A mirror goes on after the topic's last entry from its source. The broker looks for that entry
  each time a mirror is opened, and answers with its position as the last sequence id.
- An entry that the topic has already is not stored again; its receipt has the position (-1, -1), as
  Pulsar answers a duplicate.
- A record set of a Kafka client comes with its tags, which are checked against its bytes.
- If one entry is refused or fails, all later ones of this producer are refused, too. Else the topic
  would have a hole that the next mirror does not see. The mirror opens its producer again.
"""

from __future__ import annotations

from ...ledger import Appended
from ...metadata import BrokerEntryMetadata, Buffer, PrefixError
from ...metadata.source_stamp import SourceStamp, split_mirrored
from ...proto.pulsar_api_pb2 import ServerError
from ..errors import RefusedError

__all__ = ["DuplicateError", "Mirror"]


class DuplicateError(Exception):
    """The topic has this entry of the source already."""


class Mirror:
    """The state of one mirror's producer.

    Attributes: cluster (the source's name), allowed (whether the topic's policy still names it),
    follows (its last entry; the next one must not be stored without it).
    """

    __slots__ = ("_refused", "_stored", "cluster", "follows")

    def __init__(self, cluster: str, stored: tuple[int, int] | None) -> None:
        """`stored`: the source's position of the topic's last entry from this cluster."""
        self.cluster = cluster
        self.follows: Appended | None = None
        self._stored = stored
        self._refused = ""

    def admit(
        self, sent: Buffer, sources: frozenset[str], message_count: int
    ) -> tuple[memoryview, BrokerEntryMetadata, tuple[int, int]]:
        """The producer's bytes, the fields to store beside the stamp, and the source's position.

        Raises `DuplicateError`, and `RefusedError` for what a mirror must not send.
        """
        if self._refused:
            reason = f"an earlier entry of this mirror was refused: {self._refused}"
            raise RefusedError(ServerError.ServiceNotReady, reason)
        if not allows(sources, self.cluster):
            raise RefusedError(ServerError.NotAllowedError, not_allowed(self.cluster))
        try:
            stamp, body = split_mirrored(sent)
        except PrefixError as error:
            raise RefusedError(ServerError.NotAllowedError, str(error)) from error
        if stamp.cluster != self.cluster:
            reason = f"the entry is from cluster {stamp.cluster!r}, the mirror {self.cluster!r}"
            raise RefusedError(ServerError.NotAllowedError, reason)
        if self._stored is not None and stamp.position <= self._stored:
            raise DuplicateError
        _check_record_set(stamp, body, message_count)
        return body, stamp.metadata(), stamp.position

    def appended(self, position: tuple[int, int], appended: Appended) -> None:
        """An admitted entry is in the ledger."""
        self._stored, self.follows = position, appended

    def refuse_the_rest(self, reason: str) -> None:
        """An entry was refused: so are all later ones."""
        self._refused = self._refused or reason


def _check_record_set(stamp: SourceStamp, body: memoryview, message_count: int) -> None:
    """Check the bytes of a Kafka client's set. Raises `RefusedError`."""
    tags = stamp.record_set
    if tags is None:
        if bytes(body[:4]) == bytes(4):
            reason = "a record set of a Kafka client must come with its source_format"
            raise RefusedError(ServerError.NotAllowedError, reason)
        return
    # Imported in a thread when the mirror began: most brokers never have one.
    from ...kafka.records import RecordSetError, check_mirrored

    try:
        if tags.message_count != message_count:
            reason = f"num_messages is {message_count}, the set has {tags.message_count}"
            raise RefusedError(ServerError.NotAllowedError, reason)
        check_mirrored(body, tags.source_format, message_count)
    except RecordSetError as error:
        reason = f"the record set of entry {stamp.ledger_id}:{stamp.entry_id}: {error.reason}"
        raise RefusedError(ServerError.ChecksumError, reason) from error


def allows(sources: frozenset[str], cluster: str) -> bool:
    """Whether a policy's list of clusters allows this one."""
    return cluster in sources or "*" in sources


def not_allowed(cluster: str) -> str:
    """The text for a mirror that the topic's policy does not allow."""
    return f"mirrors from cluster {cluster!r} are not allowed here: see the policy mirrorSources"
