from pulsemark.proto import broker_entry_pb2 as _broker_entry_pb2
from google.protobuf import descriptor as _descriptor
from typing import ClassVar as _ClassVar

DESCRIPTOR: _descriptor.FileDescriptor
COST_CENTRE_FIELD_NUMBER: _ClassVar[int]
cost_centre: _descriptor.FieldDescriptor
BILLED_SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
billed_size_bytes: _descriptor.FieldDescriptor
