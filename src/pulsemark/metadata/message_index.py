"""The index of one message, from the index of its entry."""

from __future__ import annotations


def message_index(index: int, message_count: int, batch_index: int = -1) -> int:
    """The index of a message: `index - message_count + 1 + batch_index`.

    The stamp carries the index of the entry's LAST message (PIP-70), from which those of all its
    messages follow, because an entry's messages have neighbouring indexes.

    Args:
        index: the index that the entry is stamped with.
        message_count: messages in the entry.
        batch_index: the message's place in its batch, from 0; -1, as Pulsar's clients have it, for
            a message that is an entry of its own.

    Raises:
        ValueError: no such message is in the entry, or the entry cannot be a topic's.
    """
    if message_count < 1 or index < message_count - 1:
        raise ValueError(f"no entry of {message_count} messages ends at index {index}")
    place = 0 if batch_index == -1 and message_count == 1 else batch_index
    if not 0 <= place < message_count:
        raise ValueError(f"an entry of {message_count} messages has no message {batch_index}")
    return index - message_count + 1 + place
