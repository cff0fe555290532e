"""The errors in bytes from the peer, with texts for people.

Every violation of the framing or of the order of commands ends the connection, as in Pulsar (see
also the comments of PulsarApi.proto). After a violation, it is not known where the next frame
begins, or the peer does not speak the protocol. Only an `InvalidTopicNameError` is answered.
"""

from __future__ import annotations


class ProtocolError(Exception):
    """The peer violated the protocol; the connection must be closed."""


class InvalidTopicNameError(ValueError):
    """`name` is not the name of a topic; `reason` says why, in a text for the client."""

    def __init__(self, name: str, reason: str) -> None:
        shown = name if len(name) <= 80 else f"{name[:77]}..."
        super().__init__(f"invalid topic name {shown!r}: {reason}")
        self.name = name
        self.reason = reason
