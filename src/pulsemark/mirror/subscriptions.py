"""Subscriptions that follow a mirror (`pulsemark mirror --subscriptions`).

A subscription's progress in the source is a position: everything up to it is acknowledged. The
copies have the source's positions as tags, in their order. So the position in the target is found
exactly, by a binary search for the first copy of an entry after it, whatever indexes and positions
the target gave. No progress is kept elsewhere: after a restart all positions are searched again.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from ..client import ConnectionLostError, RequestRefusedError
from ..finder.errors import DeadlineExceededError, ServerUnavailableError
from ..ledger import LedgerExtent, Position, TopicNotFoundError
from ..metadata import peek
from ..metadata.source_stamp import source_stamp_of
from ..proto import pulsar_api_pb2 as pb
from ..proto.cursor_pb2 import CursorRecord
from ..wire import LATEST, MessageId
from .broker_target import BrokerTarget
from .endpoints import folder_of, is_kafka
from .entries import Options, SourcePosition, Target
from .errors import EndpointError
from .folders import FolderTarget
from .follow_source import BrokerFollowed, FollowSource, open_followed

if TYPE_CHECKING:
    from ..finder.client import SeekClient
    from ..finder.messages import RemoteEntry

_AFTER_ALL: SourcePosition = (1 << 64, 0)
CARRY_S = 1.0
"""Between two looks at the source's subscriptions, as long as a broker keeps cursors in memory."""


class BrokerCopies:
    """A broker's topics and subscriptions, over its gRPC port. Raises TopicNotFoundError.

    This port shows the tags of entries. A `FolderTarget` has the same methods.
    """

    def __init__(self, target: BrokerTarget, client: SeekClient) -> None:
        self._target = target
        self._client = client

    def ledgers(self, topic: str) -> Sequence[LedgerExtent]:
        """The ledgers that have entries, oldest first."""
        return self._client.history(topic)[1]

    def heads(self, topic: str, start: Position) -> Iterator[RemoteEntry]:
        """The entries from ``start`` on, lazily."""
        return self._client.read_entries(topic, start=start, prefixes_only=True)

    def move(self, topic: str, name: str, at: Position | None, record: CursorRecord) -> bool:
        """Move or create a subscription; ``at`` None: the end. False: it has consumers."""
        properties = dict(record.subscription_properties)
        try:
            consumer = self._target.service.connection(topic).subscribe(
                topic,
                name,
                earliest=True,
                force_topic_creation=False,
                subscription_properties=properties,
            )
        except RequestRefusedError as error:
            if error.error in (pb.ConsumerBusy, pb.TopicNotFound):
                return False
            raise
        consumer.seek(message_id=LATEST if at is None else MessageId(*at))
        if not consumer.is_closed:
            consumer.close()
        return True


Copies: TypeAlias = BrokerCopies | FolderTarget


class _Known(NamedTuple):
    """The target's position of a subscription, and the source's position that it stands for."""

    position: SourcePosition
    at: Position | None
    end: Position | None
    """The topic's end at that time, if the subscription is there."""


class SubscriptionCarrier:
    """Copies the progress of durable subscriptions, except the mirror's ``own``."""

    def __init__(self, source: FollowSource, copies: Copies, cluster: str, own: str) -> None:
        self._source = source
        self._copies = copies
        self._cluster = cluster
        self._own = own
        self._known: dict[tuple[str, str], _Known] = {}

    def carry(self, topics: Collection[str]) -> None:
        """Move subscriptions that moved. Raises ClientError, LedgerError, SeekCallError."""
        try:
            cursors = self._source.state(b"").cursors
            for (topic, name), content in cursors.items():
                if topic in topics and name != self._own:
                    self._carry_one(topic, name, CursorRecord.FromString(content))
        except (ServerUnavailableError, DeadlineExceededError) as error:
            self._source.close()
            raise ConnectionLostError(f"subscriptions: {error}") from error

    def forget(self) -> None:
        """Forget known positions: a side that was away may have lost unsynced ones."""
        self._known.clear()

    def close(self) -> None:
        """Close the source."""
        self._source.close()

    def _carry_one(self, topic: str, name: str, record: CursorRecord) -> None:
        position = record.mark_delete_ledger_id, record.mark_delete_entry_id
        known = self._known.get((topic, name))
        if known is not None and known.position == position and known.at is not None:
            return
        try:
            ledgers = self._copies.ledgers(topic)
            end = None
            if ledgers:
                last = ledgers[-1]
                end = Position(last.first.ledger_id, last.end_entry_id)
            if known is not None and known.position == position and known.end == end:
                return
            at = self._after(topic, ledgers, position)
        except TopicNotFoundError:
            return  # nothing was mirrored yet
        if self._copies.move(topic, name, at, record):
            self._known[topic, name] = _Known(position, at, end)

    def _after(
        self, topic: str, ledgers: Sequence[LedgerExtent], position: SourcePosition
    ) -> Position | None:
        """The first copy after a position in the source; None: it is not copied yet."""
        *starts, total = accumulate(
            (each.end_entry_id - each.first.entry_id for each in ledgers), initial=0
        )
        number = bisect_right(
            range(total),
            position,
            key=lambda number: self._first_copied(topic, _position(ledgers, starts, number)),
        )
        return _position(ledgers, starts, number) if number < total else None

    def _first_copied(self, topic: str, start: Position) -> SourcePosition:
        """The source's position of the first copy from `start` on."""
        for entry in self._copies.heads(topic, start):
            stamp = source_stamp_of(peek(entry.prefix))
            if stamp is not None and stamp.cluster == self._cluster:
                return stamp.position
        return _AFTER_ALL


def _position(ledgers: Sequence[LedgerExtent], starts: Sequence[int], number: int) -> Position:
    """The position of the topic's ``number``-th entry."""
    which = max(n for n, start in enumerate(starts) if start <= number)
    first = ledgers[which].first
    return Position(first.ledger_id, first.entry_id + number - starts[which])


def open_carrier(endpoint: str, target: Target, options: Options) -> SubscriptionCarrier:
    """Make the carrier of the subscriptions at ``endpoint``. Raises EndpointError and what
    `open_followed` does.
    """
    at = options.source_grpc or endpoint
    if at == endpoint and folder_of(endpoint) is None:
        raise EndpointError(endpoint, "--subscriptions needs the source's gRPC port: --source-grpc")
    copies: Copies | None = target if isinstance(target, FolderTarget) else None
    if isinstance(target, BrokerTarget):
        if options.target_grpc is None:
            what = "--subscriptions needs the target's gRPC port: --target-grpc"
            raise EndpointError(target.endpoint, what)
        there = open_followed(
            options.target_grpc, replace(options, source_token=options.target_token)
        )
        if not isinstance(there, BrokerFollowed):
            raise EndpointError(options.target_grpc, "--target-grpc is not a broker's gRPC port")
        copies = BrokerCopies(target, there.calls)
    if copies is None or is_kafka(endpoint):
        raise EndpointError(endpoint, "--subscriptions needs a broker or a folder on each side")
    source = open_followed(at, options)
    return SubscriptionCarrier(source, copies, options.source_cluster, options.subscription)
