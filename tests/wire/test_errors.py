"""Violations carry their facts."""

from __future__ import annotations

import pytest

from pulsemark.wire import errors
from pulsemark.wire.errors import ProtocolError

EXAMPLES: list[tuple[ProtocolError, dict[str, object], str]] = [
    (
        errors.FrameTooLargeError(11, 10),
        {"size_bytes": 11, "limit_bytes": 10},
        "frame of 11 bytes is above the limit of 10",
    ),
    (
        errors.CommandTooLargeError(11, 10),
        {"size_bytes": 11, "limit_bytes": 10},
        "command of 11 bytes is above the limit of 10",
    ),
    (
        errors.FrameSizeError(4, None),
        {"total_size_bytes": 4, "command_size_bytes": None},
        "totalSize 4 cannot be a frame's sizes",
    ),
    (
        errors.FrameSizeError(9, 7),
        {"total_size_bytes": 9, "command_size_bytes": 7},
        "totalSize 9 and commandSize 7 cannot be a frame's sizes",
    ),
    (
        errors.MalformedCommandError(None, 3),
        {"type": None, "size_bytes": 3},
        "command of 3 bytes cannot be parsed",
    ),
    (errors.UnknownCommandError(99), {"type": 99}, "unknown command type 99"),
    (errors.UnknownCommandError(None), {"type": None}, "command without type"),
    (
        errors.MissingFieldError(6, "SEND", ("a", "b")),
        {"type": 6, "name": "SEND", "fields": ("a", "b")},
        "SEND lacks a, b",
    ),
    (
        errors.InvalidTextError(23, "LOOKUP", "topic"),
        {"type": 23, "name": "LOOKUP", "field": "topic"},
        "LOOKUP.topic is not UTF-8",
    ),
    (
        errors.LongListError(5, "PRODUCER", "metadata", 20_000, 16_384),
        {"type": 5, "name": "PRODUCER", "field": "metadata", "count": 20_000, "most": 16_384},
        "PRODUCER.metadata has 20000 values; at most 16384 are allowed",
    ),
    (
        errors.InvalidFieldError(11, "FLOW", "messagePermits", 0),
        {"type": 11, "name": "FLOW", "field": "messagePermits", "value": 0},
        "FLOW.messagePermits must not be 0",
    ),
    (
        errors.UnexpectedCommandError(2, "CONNECT", "came a second time"),
        {"type": 2, "name": "CONNECT", "reason": "came a second time"},
        "CONNECT came a second time",
    ),
]


@pytest.mark.parametrize(("error", "facts", "text"), EXAMPLES)
def test_facts_are_attributes_and_are_in_the_text(
    error: ProtocolError, facts: dict[str, object], text: str
) -> None:
    """What a handler needs is an attribute; the text is for people."""
    assert {name: getattr(error, name) for name in facts} == facts
    assert str(error) == text


def test_every_error_has_an_example() -> None:
    """No violation is missing from the table above."""
    leaves = {
        value
        for value in vars(errors).values()
        if isinstance(value, type)
        and issubclass(value, ProtocolError)
        and not value.__subclasses__()
    }

    assert leaves == {type(error) for error, _, _ in EXAMPLES}


def test_a_bad_topic_name_is_no_violation() -> None:
    """A request with a bad name is answered; the connection goes on."""
    assert not issubclass(errors.InvalidTopicNameError, ProtocolError)
    assert issubclass(errors.InvalidTopicNameError, ValueError)
