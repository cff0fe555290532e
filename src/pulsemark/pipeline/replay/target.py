"""One topic of the target: what it has of a replay already, and publishing the rest.

A replay stores each entry once, also when it, its workers or the target were killed:

- **Producer name.** A part of the plan always has the same producer name, and a broker lets only
  one producer of a name into a topic. So there is one run at a time that publishes a part.
- **Sequence ids.** They are the indexes of the source. A topic that deduplicates drops what it has.
- **Looking.** A broker that was killed reads its newest entries again to learn their sequence ids,
  and takes them from the producers' own headers, which untouched entries keep. So it forgets ours.
  Therefore, when a topic is opened again, the target's entries after the last one that was
  acknowledged are read, and compared byte by byte with those that come next.

Without deduplication only the last one holds. Then an entry that was on its way when the replay was
killed could be stored while the target is read, and be missed. So such a topic is refused, unless
the user wants it. Whether a topic deduplicates is seen after the first entry: its producer is
opened again, and a broker that deduplicates knows its sequence id.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ...client import (
    RawProducer,
    RawReader,
    Receipt,
    RequestRefusedError,
    SendRefusedError,
    Service,
)
from ...proto import pulsar_api_pb2 as pb
from ..errors import ReplayError
from .checkpoint import Part, Progress
from .options import ReplayOptions

if TYPE_CHECKING:
    from .outgoing import Outgoing

__all__ = ["COME_AGAIN", "TargetTopic", "service_of"]

COME_AGAIN = (pb.ServiceNotReady, pb.ProducerBusy, pb.PersistenceError)
"""Refusals that pass: the topic moves, the connection of an earlier run is not gone yet, or the
disk fails."""


def service_of(options: ReplayOptions) -> Service:
    """The target's cluster; nothing is connected yet."""
    if options.token is None:
        return Service(options.service_url)
    return Service(options.service_url, auth_method_name="token", auth_data=options.token.encode())


class TargetTopic:
    """The target's side of one part, over one connection.

    Attributes: progress (what is acknowledged).
    """

    def __init__(
        self, service: Service, part: Part, name: str, progress: Progress, options: ReplayOptions
    ) -> None:
        """Open the producer. Raises ReplayError for a refusal that does not pass, ClientError."""
        self.progress = progress
        self._service = service
        self._part = part
        self._name = name
        self._options = options
        self._pending: deque[Outgoing] = deque()
        self._producer = self._open()

    def _open(self) -> RawProducer:
        try:
            return RawProducer(
                self._service,
                self._part.target_topic,
                name=self._name,
                gathers=True,
                reconnect_attempts=0,
            )
        except RequestRefusedError as error:
            if error.error in COME_AGAIN:
                raise
            raise self._refused(error) from error

    def _refused(self, error: Exception) -> ReplayError:
        reason = f"the target {self._part.target_topic} does not take it: {error}"
        return ReplayError(self._part.topic, reason)

    # What is there already

    def note_beginning(self) -> None:
        """Note what the topic has before the first entry of the replay."""
        if not self.progress.began:
            with RawReader(self._service, self._part.target_topic) as reader:
                self.progress = self.progress.with_fields(began=True, before=reader.last)

    def pass_over_stored(self, entries: Iterator[Outgoing]) -> Iterator[Outgoing]:
        """The entries without those that the target has. Raises ReplayError."""
        known = self._producer.last_sequence_id
        following = next(entries, None)
        for stored in self._stored_since(known):
            following = self._pass_empty(following, entries)
            if following is not None and stored[1] == following.body:
                self._acknowledge(following, stored[0])
                following = next(entries, None)
        while following is not None and following.last_index <= known:
            self._acknowledge(following, None)
            following = next(entries, None)
        if following is not None:
            yield following
        yield from entries

    def _pass_empty(
        self, following: Outgoing | None, entries: Iterator[Outgoing]
    ) -> Outgoing | None:
        while following is not None and not following.message_count:
            self._acknowledge(following, None)
            following = next(entries, None)
        return following

    def _stored_since(self, known: int) -> Iterator[tuple[tuple[int, int], bytes]]:
        """The target's entries after the last one that was acknowledged, with their positions."""
        start = self.progress.last or self.progress.before
        with RawReader(self._service, self._part.target_topic, start) as reader:
            if reader.last is None or start == reader.last:
                self._check_there(start == reader.last, known)
                return
            is_first = True
            for entry in reader.entries():
                if is_first:
                    self._check_there(entry.position == start, known)
                    is_first = False
                if start is None or entry.position > start:
                    yield entry.position, entry.body
            if is_first:
                self._check_there(False, known)

    def _check_there(self, is_there: bool, known: int) -> None:
        """The last acknowledged entry must still be there, or else the broker must know of it."""
        progress = self.progress
        if is_there or progress.last is None or known >= progress.next_index - 1:
            return
        reason = (
            f"the target {self._part.target_topic} no longer has entry {progress.last}, so it was"
            " deleted or trimmed meanwhile; to go on, begin a replay with a new checkpoint from"
            f" index {progress.next_index} on"
        )
        raise ReplayError(self._part.topic, reason)

    # Publishing

    def publish(self, entry: Outgoing) -> None:
        """Send an entry, or only pass it if it has no messages. Raises ReplayError, ClientError."""
        self._pending.append(entry)
        if not entry.message_count:
            self.settle()
            return
        try:
            self._producer.publish(
                entry.body,
                num_messages=entry.message_count,
                sequence_id=entry.first_index,
                highest_sequence_id=entry.last_index,
            )
        except (SendRefusedError, ValueError) as error:
            self._raise(error)
        if self.progress.deduplicates is None:
            self.flush()
            self._look_for_deduplication()

    def settle(self) -> None:
        """Note the receipts that have arrived; does not wait."""
        try:
            self._note(self._producer.receipts())
        except SendRefusedError as error:
            self._raise(error)

    def flush(self) -> None:
        """Wait for all receipts."""
        try:
            self._note(self._producer.flush())
        except SendRefusedError as error:
            self._raise(error)

    def _raise(self, error: SendRefusedError | ValueError) -> None:
        if isinstance(error, SendRefusedError) and error.error in COME_AGAIN:
            raise error
        raise self._refused(error) from error

    def _note(self, receipts: list[Receipt]) -> None:
        for receipt in receipts:
            self._note_empty()
            entry = self._pending.popleft()
            assert entry.first_index == receipt.sequence_id, "receipts come in order"
            place = (receipt.ledger_id, receipt.entry_id)
            self._acknowledge(entry, place if receipt.ledger_id >= 0 else None)
        self._note_empty()

    def _note_empty(self) -> None:
        while self._pending and not self._pending[0].message_count:
            self._acknowledge(self._pending.popleft(), None)

    def _acknowledge(self, entry: Outgoing, place: tuple[int, int] | None) -> None:
        progress = self.progress
        self.progress = progress.with_fields(
            next_index=entry.last_index + 1,
            messages=progress.messages + entry.message_count,
            entries=progress.entries + bool(entry.message_count),
            size_bytes=progress.size_bytes + len(entry.body),
            last=place or progress.last,
        )

    def _look_for_deduplication(self) -> None:
        self._producer.close()
        self._producer = self._open()
        deduplicates = self._producer.last_sequence_id >= 0
        self.progress = self.progress.with_fields(deduplicates=deduplicates)

    def check_deduplication(self) -> None:
        """Raise ReplayError if the topic does not deduplicate, and must."""
        if self.progress.deduplicates is False and not self._options.without_deduplication:
            reason = (
                f"the target {self._part.target_topic} does not deduplicate, so a replay that is"
                " killed could store an entry twice. Switch it on there (pulsar-admin namespaces"
                " set-deduplication --enable, or topicPolicies), or allow it (option"
                " --without-deduplication), and run the same command again: it goes on"
            )
            raise ReplayError(self._part.topic, reason)

    def close(self) -> None:
        """Close the producer."""
        self._producer.close()
