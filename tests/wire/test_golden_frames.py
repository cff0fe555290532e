"""Frames of the official client through a Connection."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.json_format import MessageToDict

from pulsemark.metadata import read_message_metadata, verify_checksum
from pulsemark.proto import pulsar_api_pb2 as pb
from pulsemark.wire import Command, Connection, Role, Send, commands

DATA = Path(__file__).resolve().parents[1] / "data" / "pulsar-client-3.13.0-frames.json"
FRAMES = json.loads(DATA.read_text(encoding="utf-8"))["frames"]
BODY_NAMES = {field.number: field.name for field in pb.BaseCommand.DESCRIPTOR.fields}


@pytest.mark.parametrize("golden", FRAMES, ids=lambda g: f"{g['command']}: {g['what']}")
def test_official_frames_are_events(golden: Any) -> None:
    """Every frame of the official client is one event with the fields it was sent with."""
    server = Connection(Role.SERVER)
    if golden["command"] != "CONNECT":
        server.receive_data(commands.connect("c"))
        assert len(list(server.events())) == 1
    server.receive_data(bytes.fromhex(golden["frame"]))

    (event,) = server.events()

    kind = pb.BaseCommand.Type.Value(golden["command"])
    assert isinstance(event, Send if golden["command"] == "SEND" else Command)
    assert isinstance(event, Send | Command)
    body = event.command if isinstance(event, Send) else event.body
    assert (
        MessageToDict(body, preserving_proto_field_name=True) == golden["fields"][BODY_NAMES[kind]]
    )
    if isinstance(event, Send):
        assert verify_checksum(event.headers_and_payload)
        metadata = read_message_metadata(event.headers_and_payload)
        assert MessageToDict(metadata, preserving_proto_field_name=True) == golden["metadata"]


def test_one_stream_of_all_official_frames() -> None:
    """A whole session, received byte by byte, has as many events as frames."""
    frames = [golden for golden in FRAMES if golden["command"] != "CONNECT"]
    stream = commands.connect("c") + b"".join(bytes.fromhex(g["frame"]) for g in frames)
    server = Connection(Role.SERVER)
    found: list[Any] = []

    for byte in stream:
        server.receive_data(bytes([byte]))
        found += server.events()

    assert len(found) == len(frames) + 1
    assert server.pending_bytes == 0


def test_our_send_has_the_official_bytes() -> None:
    """The raw client's SEND is byte-equal to the official one around the same message."""
    golden = next(g for g in FRAMES if g["what"] == "batch of three, zlib" and "metadata" in g)
    frame = bytes.fromhex(golden["frame"])
    behind = frame[8 + int.from_bytes(frame[4:8], "big") :]

    assert b"".join(commands.send(3, 0, behind, num_messages=3)) == frame
