"""docs/entry-format.md is a specification: what it says is checked against the code."""

import contextlib
import io
import itertools
import json
import re
from pathlib import Path

import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto

from pulsemark.metadata import (
    MESSAGE_METADATA_SIZE_MAX_BYTES,
    PREFIX_METADATA_SIZE_MAX_BYTES,
    BrokerEntryMetadata,
    crc32c,
    pack_stamp,
    read_message_metadata,
    split,
)
from pulsemark.proto import broker_entry_pb2

TESTS = Path(__file__).parent.parent
DOCUMENT = (TESTS.parent / "docs" / "entry-format.md").read_text(encoding="utf-8")
GOLDEN = json.loads((TESTS / "data" / "pulsar-4.0.8-entries.json").read_text(encoding="utf-8"))

TYPE_NAMES = {
    FieldDescriptor.TYPE_UINT32: "uint32",
    FieldDescriptor.TYPE_UINT64: "uint64",
    FieldDescriptor.TYPE_BOOL: "bool",
    FieldDescriptor.TYPE_STRING: "string",
}


def proto_of(message_class):
    """A message's definition as protobuf's own message about messages."""
    proto = DescriptorProto()
    message_class.DESCRIPTOR.CopyToProto(proto)
    return proto


def table(first_heading):
    """The cells of the table whose first column has this heading, without its head."""
    lines = DOCUMENT.splitlines()
    start = next(n for n, line in enumerate(lines) if line.startswith(f"| {first_heading} |"))
    rows = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return rows


def code_blocks(language):
    """The contents of the fenced blocks of one language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", DOCUMENT, re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def example():
    """The worked example's bytes."""
    (block,) = code_blocks("hex")
    return bytes.fromhex("".join(block.split()))


class TestExample:
    def test_is_a_real_entry(self, example):
        """The example is, byte by byte, the first entry that Pulsar stored in the golden file."""
        assert example.hex() == GOLDEN["groups"][0]["entries"][0]["entry_hex"]

    def test_table_is_complete(self, example):
        """The rows of the example's table follow each other and together are the entry."""
        offset = 0
        for at, cell, _ in table("offset"):
            assert int(at) == offset
            part = bytes.fromhex(cell.strip("`"))
            assert example[offset : offset + len(part)] == part
            offset += len(part)
        assert offset == len(example)

    def test_meanings(self, example):
        """The values that the table gives are those that the code reads."""
        meaning = {int(offset): text for offset, _, text in table("offset")}
        metadata, body = split(example)
        message = read_message_metadata(body)
        assert metadata is not None
        assert meaning[2].startswith(f"{metadata.ByteSize()} bytes of BrokerEntryMetadata")
        assert meaning[7] == str(metadata.broker_timestamp)
        assert meaning[14] == str(metadata.index)
        assert meaning[21].startswith(f"{message.ByteSize()} bytes of MessageMetadata")
        assert f"{len(message.producer_name)} bytes" in meaning[25]
        assert meaning[27] == message.producer_name
        assert meaning[39].endswith(f"`sequence_id` = {message.sequence_id}")
        assert meaning[42] == str(message.publish_time)
        assert meaning[48] == f"payload: {example[48:].decode()}"
        assert int.from_bytes(example[17:21], "big") == crc32c(example[21:])
        assert "from offset 21 to the end" in meaning[17]

    def test_the_code_runs(self, example):
        """The document's Python code, run on the example, prints what the example holds."""
        (code,) = code_blocks("python")
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(code, {"entry": example})
        assert printed.getvalue() == "1795236769556 golden-plain\nb'hello'\n"


class TestRegistry:
    def test_fields(self):
        """The registry lists the .proto file's fields: number, name, type and default."""
        descriptor = BrokerEntryMetadata.DESCRIPTOR
        rows = table("number")
        assert [int(row[0]) for row in rows] == sorted(descriptor.fields_by_number)
        for number, name, type_name, missing, _ in rows:
            field = descriptor.fields_by_number[int(number)]
            assert name == f"`{field.name}`"
            if field.type == FieldDescriptor.TYPE_ENUM:
                assert field.enum_type is not None
                assert type_name == field.enum_type.name
                assert missing == field.enum_type.values_by_number[field.default_value].name
            elif field.type == FieldDescriptor.TYPE_MESSAGE:
                assert field.message_type is not None
                assert type_name == field.message_type.name
                assert missing == "none"
            else:
                assert type_name == TYPE_NAMES[field.type]
                if field.has_default_value:
                    assert missing == str(field.default_value).lower()
                else:
                    assert missing.startswith(("no ", "not known"))

    def test_enums(self):
        """The enums' values are those of the .proto file, and no enum is left out."""
        enums = broker_entry_pb2.DESCRIPTOR.enum_types_by_name
        rows = dict(table("enum"))
        assert set(rows) == set(enums)
        for name, values in rows.items():
            expected = [f"{value.name} = {value.number}" for value in enums[name].values]
            assert values.split(", ") == expected

    def test_ranges(self):
        """The numbers' owners follow each other, and Pulsar's future ones cannot be taken."""
        ranges = [tuple(map(int, row[0].split("-"))) for row in table("numbers")]
        assert ranges[0][0] == 1
        for (_, last), (first, _) in itertools.pairwise(ranges):
            assert first == last + 1
        reserved = proto_of(BrokerEntryMetadata).reserved_range
        assert [(taken.start, taken.end) for taken in reserved] == [(3, 100)]
        extensions = proto_of(BrokerEntryMetadata).extension_range
        assert [(free.start, free.end - 1) for free in extensions] == [ranges[2]]
        ours = [number for number in BrokerEntryMetadata.DESCRIPTOR.fields_by_number if number > 2]
        assert all(ranges[1][0] <= number <= ranges[1][1] for number in ours)

    def test_tag_parts(self):
        """A tag is what the document says: a required string and required bytes."""
        fields = [
            (field.name, field.number, field.type, field.label)
            for field in proto_of(broker_entry_pb2.KeyBytes).field
        ]
        required = FieldDescriptorProto.LABEL_REQUIRED
        assert fields == [
            ("key", 1, FieldDescriptorProto.TYPE_STRING, required),
            ("value", 2, FieldDescriptorProto.TYPE_BYTES, required),
        ]


class TestNumbers:
    def test_limits(self):
        """The limits in the text are those of the code."""
        assert f"at most {PREFIX_METADATA_SIZE_MAX_BYTES} bytes of BrokerEntryMetadata" in DOCUMENT
        assert f"{MESSAGE_METADATA_SIZE_MAX_BYTES} bytes of MessageMetadata" in DOCUMENT

    def test_sizes(self):
        """A prefix with time and index has the sizes that the document gives."""
        assert "15 to 18 bytes for a topic's first 268 million messages" in DOCUMENT
        assert "never more than 28" in DOCUMENT
        assert len(pack_stamp(1_800_000_000_000, 0)) == 15
        assert len(pack_stamp(1_800_000_000_000, 268_000_000)) == 18
        assert len(pack_stamp(2**64 - 1, 2**64 - 1)) == 28
