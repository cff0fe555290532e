"""Bytes that no client library sends: cut and odd requests, versions and headers."""

from __future__ import annotations

import struct

from .peers import Peer


def head(key: int, version: int, client: bytes | None = b"raw") -> bytes:
    """A request header of version 1."""
    data = struct.pack(">hhi", key, version, 77)
    return data + (b"\xff\xff" if client is None else struct.pack(">h", len(client)) + client)


def frame(data: bytes) -> bytes:
    """With its size in front."""
    return struct.pack(">i", len(data)) + data


def null_array() -> bytes:
    return b"\xff\xff\xff\xff"


def frames(peer: Peer) -> None:
    """Each answer is recorded; the text of ApiVersions differs, so only error codes of it."""
    for label, data in {
        "a size of 0": struct.pack(">i", 0),
        "a size of -1": struct.pack(">i", -1),
        "a size of 2 GiB": struct.pack(">i", 2**31 - 1),
        "unknown kind 999": frame(head(999, 0)),
        "kind -1": frame(head(-1, 0)),
        "Metadata in version 99": frame(head(3, 99) + null_array()),
        "Metadata in version -1": frame(head(3, -1) + null_array()),
        "Produce in version 99": frame(head(0, 99)),
        "no body": frame(head(3, 1)),
        "a negative array": frame(head(3, 1) + struct.pack(">i", -2)),
        "a huge array": frame(head(3, 1) + struct.pack(">i", 2**31 - 1)),
        "a cut string": frame(head(3, 1) + struct.pack(">ih", 1, 99) + b"x"),
        "a null string": frame(head(3, 1) + struct.pack(">ih", 1, -1)),
        "a string of length -2": frame(head(3, 1) + struct.pack(">ih", 1, -2)),
        "not UTF-8": frame(head(3, 1) + struct.pack(">ih", 1, 2) + b"\xff\xfe"),
        "cut header": frame(struct.pack(">hhi", 3, 1, 77)),
        "a client id that is cut": frame(struct.pack(">hhih", 3, 1, 77, 50) + b"x"),
        "ListGroups cut in the header": frame(struct.pack(">hh", 16, 0)),
        "JoinGroup with a null group": frame(head(11, 0) + b"\xff\xff"),
        "Heartbeat with a null group": frame(head(12, 0) + b"\xff\xff" + bytes(6)),
        "Fetch with null topics": frame(head(1, 4) + struct.pack(">iiiib", -1, 0, 0, 9, 0) + null_array()),
        "Produce with null topics": frame(head(0, 3) + b"\xff\xff" + struct.pack(">hi", -1, 9) + null_array()),
        "ListOffsets with null topics": frame(head(2, 1) + struct.pack(">i", -1) + null_array()),
        "DescribeGroups with null": frame(head(15, 0) + null_array()),
        "OffsetFetch v1 with null topics": frame(head(9, 1) + struct.pack(">h", 1) + b"g" + null_array()),
        "CreateTopics with null": frame(head(19, 1) + null_array() + bytes(5)),
        "DeleteTopics with null": frame(head(20, 1) + null_array() + bytes(4)),
        "DeleteGroups with null": frame(head(42, 0) + null_array()),
        "DescribeConfigs with null": frame(head(32, 0) + null_array()),
        "AlterConfigs with null": frame(head(33, 0) + null_array() + bytes(1)),
    }.items():  # fmt: skip
        peer.raw(label, data)
    for label, data in {
        "a null client id": frame(head(16, 0, None)),
        "an empty client id": frame(head(16, 0, b"")),
        "a client id that is not UTF-8": frame(head(16, 0, b"\xff")),
        "bytes after the body": frame(head(10, 0) + struct.pack(">h", 1) + b"g" + b"more"),
        "ApiVersions 0": frame(head(18, 0)),
        "ApiVersions 3": frame(head(18, 3) + b"\x00\x04abc\x041.0\x00"),
        "ApiVersions 3 with tags": frame(head(18, 3) + b"\x01\x64\x01x\x04abc\x041.0\x00"),
        "ApiVersions 3, bad software name": frame(head(18, 3) + b"\x00\x02 \x02 \x00"),
        "ApiVersions 3 without tags": frame(head(18, 3) + b"\x00\x04abc\x041.0"),
        "ApiVersions 4 and 99": frame(head(18, 99) + b"\x00"),
        "ApiVersions -1": frame(head(18, -1)),
    }.items():
        _code(peer, label, data)


def _code(peer: Peer, label: str, data: bytes) -> None:
    """Correlation id and the next two bytes of an answer: an error code, or the answer's begin."""
    connection = peer.connect()
    try:
        connection.send_bytes(data)
        answer = connection.receive_frame()
        peer.record(label, answer[:6].hex())
        connection.send_bytes(frame(head(18, 0)))
        peer.record(f"{label}, and then", connection.receive_frame()[:6].hex())
    except TimeoutError:
        peer.record(label, "<nothing>")
    except OSError:
        peer.record(label, "<closed>")


def order(peer: Peer) -> None:
    """Requests that are sent together are answered in their order, also if one is slow."""
    connection = peer.connect()
    group = struct.pack(">h", 5) + b"order"
    slow = head(1, 4) + struct.pack(">iiiibi", -1, 300, 1, 1 << 20, 0, 0)
    connection.send_bytes(b"".join(frame(head(10, 0) + group) for _ in range(3)) + frame(slow))
    connection.send_bytes(frame(struct.pack(">hhih", 16, 0, 78, -1)))
    ids = [connection.receive_frame()[:4].hex() for _ in range(5)]
    peer.record("five in order", ids)


WIRE_SCENARIOS = {"frames": frames, "order": order}
