"""The index of one message, from the index of its entry."""

from __future__ import annotations


def message_index(index: int, message_count: int, batch_index: int = -1) -> int:
    """The index of a message: `index - message_count + 1 + batch_index`.

    The stamp holds the index of the entry's LAST message (PIP-70). The indexes of an entry's
    messages are consecutive, so the others follow from it.

    Args:
        index: the index that the entry is stamped with.
        message_count: messages in the entry.
        batch_index: the message's place in its batch, from 0. For a message that is not in a batch
            it is -1, as in Pulsar's clients.

    Raises:
        ValueError: the entry has no such message, or no entry of that many messages can end at
            that index.
    """
    if message_count < 1 or index < message_count - 1:
        raise ValueError(f"no entry of {message_count} messages ends at index {index}")
    place = 0 if batch_index == -1 and message_count == 1 else batch_index
    if not 0 <= place < message_count:
        raise ValueError(f"an entry of {message_count} messages has no message {batch_index}")
    return index - message_count + 1 + place
