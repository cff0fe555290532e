"""pulsar_api.proto against Pulsar's own numbers and the official client's own bytes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.json_format import MessageToDict

from pulsemark.proto import pulsar_api_pb2 as pb

DATA = Path(__file__).resolve().parents[1] / "data"
NUMBERS = json.loads((DATA / "pulsar-api-numbers.json").read_text(encoding="utf-8"))
FRAMES = json.loads((DATA / "pulsar-client-3.13.0-frames.json").read_text(encoding="utf-8"))[
    "frames"
]


def test_every_field_has_pulsars_number() -> None:
    """Messages, their fields and the fields' numbers are exactly those of Pulsar's table."""
    ours = {
        name: {field.name: field.number for field in message.fields}
        for name, message in pb.DESCRIPTOR.message_types_by_name.items()
    }

    assert ours == NUMBERS["messages"]


def test_every_enum_value_has_pulsars_number() -> None:
    """Enums, nested ones too, have exactly the names and numbers of Pulsar's table."""
    enums = dict(pb.DESCRIPTOR.enum_types_by_name)
    for name, message in pb.DESCRIPTOR.message_types_by_name.items():
        enums |= {f"{name}.{inner}": enum for inner, enum in message.enum_types_by_name.items()}
    ours = {
        name: {value.name: value.number for value in enum.values} for name, enum in enums.items()
    }

    assert ours == NUMBERS["enums"]


def test_a_body_has_the_number_of_its_type() -> None:
    """A BaseCommand's body field has its type's number, which builders rely on."""
    types = set(pb.BaseCommand.Type.values())
    bodies = {field.number for field in pb.BaseCommand.DESCRIPTOR.fields if field.name != "type"}

    assert bodies <= types


@pytest.mark.parametrize("golden", FRAMES, ids=lambda g: f"{g['command']}: {g['what']}")
def test_official_frames_read_as_the_official_definition_reads_them(golden: Any) -> None:
    """Our definition sees in the official client's bytes what Pulsar's own definition sees."""
    frame = bytes.fromhex(golden["frame"])
    total, size = int.from_bytes(frame[:4], "big"), int.from_bytes(frame[4:8], "big")
    assert total == len(frame) - 4

    command = pb.BaseCommand.FromString(frame[8 : 8 + size])
    behind = frame[8 + size :]

    assert MessageToDict(command, preserving_proto_field_name=True) == golden["fields"]
    assert command.SerializeToString() == frame[8 : 8 + size]
    if behind:
        size = int.from_bytes(behind[6:10], "big")
        metadata = pb.MessageMetadata.FromString(behind[10 : 10 + size])
        assert MessageToDict(metadata, preserving_proto_field_name=True) == golden["metadata"]
