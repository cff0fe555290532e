"""What a topic checks of a message before it is appended. Topics that take every message have none.

The checks are those of the policies maxMessageSize, encryptionRequired, delayedDelivery (its
longest delay), deduplication and publishRate.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...ledger import Appended
from ...metadata import Buffer, MessageFormatError, read_message_metadata
from ...proto.pulsar_api_pb2 import CommandSend, ServerError
from ..errors import RefusedError
from ..subscriptions.delayed import deliver_at_ms
from ..subscriptions.positions import messages_in

if TYPE_CHECKING:
    from ...metadata import Clock
    from ..policies.rate_limits import PublishLimit, Throttled
    from ..policies.topic_rules import TopicRules
    from .deduplication import Deduplication
    from .producer import Producer

__all__ = ["Admission"]


class Admission:
    """The checks of one topic."""

    __slots__ = ("_clock", "_rules", "deduplication", "publish_limit")

    def __init__(
        self,
        rules: TopicRules,
        deduplication: Deduplication | None,
        publish_limit: PublishLimit | None,
        clock: Clock,
    ) -> None:
        self.deduplication = deduplication
        self.publish_limit = publish_limit
        self._rules = rules
        self._clock = clock

    @property
    def checks_something(self) -> bool:
        """Whether it has anything to do."""
        rules = self._rules
        return bool(
            self.deduplication is not None
            or self.publish_limit is not None
            or rules.max_message_size_bytes
            or rules.needs_encryption
            or rules.max_delay_ms
        )

    def admit(self, producer: Producer, command: CommandSend, body: Buffer) -> Appended | None:
        """Check a message; return the entry after which it must be stored, if there is one.

        Raises `RefusedError`, `DuplicateMessageError`.
        """
        rules = self._rules
        limit_bytes = rules.max_message_size_bytes
        if limit_bytes and len(body) > limit_bytes:
            raise RefusedError(ServerError.NotAllowedError, "Exceed maximum message size")
        if rules.needs_encryption and not _is_encrypted(body):
            raise RefusedError(ServerError.MetadataError, "Messages must be encrypted")
        if rules.max_delay_ms:
            self._check_delay(body, rules.max_delay_ms)
        if self.deduplication is None:
            return None
        return self.deduplication.admit(producer.name, command)

    def _check_delay(self, body: Buffer, longest_ms: int) -> None:
        if deliver_at_ms(body) - self._clock.now_ms() > longest_ms:
            reason = f"Exceeds max allowed delivery delay of {longest_ms} milliseconds"
            raise RefusedError(ServerError.NotAllowedError, reason)

    def appended(
        self,
        connection: Throttled,
        producer: Producer,
        command: CommandSend,
        body: Buffer,
        appended: Appended,
    ) -> None:
        """An admitted message was appended."""
        if self.deduplication is not None:
            self.deduplication.appended(producer.name, command, body, appended)
        if self.publish_limit is not None:
            said = command.num_messages
            messages = messages_in(body, said) if said > 1 else said
            self.publish_limit.published(connection, messages, len(body))


def _is_encrypted(body: Buffer) -> bool:
    try:
        return bool(read_message_metadata(body).encryption_keys)
    except MessageFormatError:
        return False
