"""The producer of a RawClient: a producer that also makes the messages it sends."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any

from ..client.channels import ProducerChannel, RawConsumer, RawMessage, Receipt
from ..client.errors import RequestRefusedError, SendRefusedError
from ..wire import Buffer
from .raw_messages import BatchMember, batched_message, unbatched_message

__all__ = [
    "RawConsumer",
    "RawMessage",
    "RawProducer",
    "Receipt",
    "RequestRefusedError",
    "SendRefusedError",
]


class RawProducer(ProducerChannel):
    """A producer of a RawClient. `post` sends without waiting, `receipts` waits."""

    def send(
        self,
        payload: bytes | None,
        *,
        publish_time_ms: int | None = None,
        sequence_id: int | None = None,
        **message: Any,
    ) -> Receipt:
        """Send one unbatched message with this publish time; None is now.

        `message`: more arguments of unbatched_message.
        """
        if sequence_id is None:
            sequence_id = self._next_sequence_id
        body = unbatched_message(
            payload,
            publish_time_ms=_now_ms() if publish_time_ms is None else publish_time_ms,
            sequence_id=sequence_id,
            producer_name=self.name,
            **message,
        )
        return self.send_raw(body, sequence_id=sequence_id)

    def send_batch(
        self,
        members: Sequence[bytes | BatchMember],
        *,
        publish_time_ms: int | None = None,
        sequence_id: int | None = None,
        **message: Any,
    ) -> Receipt:
        """Send one batch; arguments as in send and batched_message."""
        if sequence_id is None:
            sequence_id = self._next_sequence_id
        body = batched_message(
            members,
            publish_time_ms=_now_ms() if publish_time_ms is None else publish_time_ms,
            sequence_id=sequence_id,
            producer_name=self.name,
            **message,
        )
        return self.send_raw(
            body,
            sequence_id=sequence_id,
            num_messages=len(members),
            highest_sequence_id=sequence_id + max(len(members) - 1, 0),
        )

    def send_many(
        self,
        messages: Iterable[Buffer],
        *,
        num_messages: int = 1,
        window: int = 1000,
        timeout_s: float | None = None,
    ) -> list[Receipt]:
        """Send headers-and-payloads, each of `num_messages`, and return all receipts in order.

        At most `window` SENDs are unanswered at any time. Raises SendRefusedError.
        """
        found: list[Receipt] = []
        posted = 0
        for message in messages:
            if posted - len(found) >= window:
                found += self.receipts(max(window // 2, 1), timeout_s)
            self.post(message, num_messages=num_messages)
            posted += 1
        found += self.receipts(posted - len(found), timeout_s)
        return found


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
