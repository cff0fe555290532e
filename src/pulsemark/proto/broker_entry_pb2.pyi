from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class EntryKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DATA: _ClassVar[EntryKind]
    CONTROL: _ClassVar[EntryKind]

class ControlType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CONTROL_UNSPECIFIED: _ClassVar[ControlType]
    CONTROL_TXN_COMMIT: _ClassVar[ControlType]
    CONTROL_TXN_ABORT: _ClassVar[ControlType]
    CONTROL_LEADER_CHANGE: _ClassVar[ControlType]
    CONTROL_REPLICATED_SUBSCRIPTION: _ClassVar[ControlType]
    CONTROL_TXN_START: _ClassVar[ControlType]
    CONTROL_CHECKPOINT: _ClassVar[ControlType]
    CONTROL_USER: _ClassVar[ControlType]

class SourceFormat(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SOURCE_PULSAR: _ClassVar[SourceFormat]
    SOURCE_KAFKA_MAGIC_0: _ClassVar[SourceFormat]
    SOURCE_KAFKA_MAGIC_1: _ClassVar[SourceFormat]
    SOURCE_KAFKA_MAGIC_2: _ClassVar[SourceFormat]
DATA: EntryKind
CONTROL: EntryKind
CONTROL_UNSPECIFIED: ControlType
CONTROL_TXN_COMMIT: ControlType
CONTROL_TXN_ABORT: ControlType
CONTROL_LEADER_CHANGE: ControlType
CONTROL_REPLICATED_SUBSCRIPTION: ControlType
CONTROL_TXN_START: ControlType
CONTROL_CHECKPOINT: ControlType
CONTROL_USER: ControlType
SOURCE_PULSAR: SourceFormat
SOURCE_KAFKA_MAGIC_0: SourceFormat
SOURCE_KAFKA_MAGIC_1: SourceFormat
SOURCE_KAFKA_MAGIC_2: SourceFormat

class BrokerEntryMetadata(_message.Message):
    __slots__ = ("broker_timestamp", "index", "message_count", "entry_kind", "control_type", "leader_epoch", "source_format", "relative_offset_honoured", "has_keys", "raw_size_bytes", "tombstone", "application_tags", "producer_name", "send_time_ms", "broker_name", "source_cluster", "source_index", "source_time_ms", "source_ledger_id", "source_entry_id", "inner_base_offset", "log_has_holes", "control_name", "transaction")
    BROKER_TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_COUNT_FIELD_NUMBER: _ClassVar[int]
    ENTRY_KIND_FIELD_NUMBER: _ClassVar[int]
    CONTROL_TYPE_FIELD_NUMBER: _ClassVar[int]
    LEADER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FORMAT_FIELD_NUMBER: _ClassVar[int]
    RELATIVE_OFFSET_HONOURED_FIELD_NUMBER: _ClassVar[int]
    HAS_KEYS_FIELD_NUMBER: _ClassVar[int]
    RAW_SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    TOMBSTONE_FIELD_NUMBER: _ClassVar[int]
    APPLICATION_TAGS_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_NAME_FIELD_NUMBER: _ClassVar[int]
    SEND_TIME_MS_FIELD_NUMBER: _ClassVar[int]
    BROKER_NAME_FIELD_NUMBER: _ClassVar[int]
    SOURCE_CLUSTER_FIELD_NUMBER: _ClassVar[int]
    SOURCE_INDEX_FIELD_NUMBER: _ClassVar[int]
    SOURCE_TIME_MS_FIELD_NUMBER: _ClassVar[int]
    SOURCE_LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
    SOURCE_ENTRY_ID_FIELD_NUMBER: _ClassVar[int]
    INNER_BASE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    LOG_HAS_HOLES_FIELD_NUMBER: _ClassVar[int]
    CONTROL_NAME_FIELD_NUMBER: _ClassVar[int]
    TRANSACTION_FIELD_NUMBER: _ClassVar[int]
    broker_timestamp: int
    index: int
    message_count: int
    entry_kind: EntryKind
    control_type: ControlType
    leader_epoch: int
    source_format: SourceFormat
    relative_offset_honoured: bool
    has_keys: bool
    raw_size_bytes: int
    tombstone: bool
    application_tags: _containers.RepeatedCompositeFieldContainer[KeyBytes]
    producer_name: str
    send_time_ms: int
    broker_name: str
    source_cluster: str
    source_index: int
    source_time_ms: int
    source_ledger_id: int
    source_entry_id: int
    inner_base_offset: int
    log_has_holes: bool
    control_name: str
    transaction: str
    def __init__(self, broker_timestamp: _Optional[int] = ..., index: _Optional[int] = ..., message_count: _Optional[int] = ..., entry_kind: _Optional[_Union[EntryKind, str]] = ..., control_type: _Optional[_Union[ControlType, str]] = ..., leader_epoch: _Optional[int] = ..., source_format: _Optional[_Union[SourceFormat, str]] = ..., relative_offset_honoured: bool = ..., has_keys: bool = ..., raw_size_bytes: _Optional[int] = ..., tombstone: bool = ..., application_tags: _Optional[_Iterable[_Union[KeyBytes, _Mapping[str, object]]]] = ..., producer_name: _Optional[str] = ..., send_time_ms: _Optional[int] = ..., broker_name: _Optional[str] = ..., source_cluster: _Optional[str] = ..., source_index: _Optional[int] = ..., source_time_ms: _Optional[int] = ..., source_ledger_id: _Optional[int] = ..., source_entry_id: _Optional[int] = ..., inner_base_offset: _Optional[int] = ..., log_has_holes: bool = ..., control_name: _Optional[str] = ..., transaction: _Optional[str] = ...) -> None: ...

class KeyBytes(_message.Message):
    __slots__ = ("key", "value")
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    key: str
    value: bytes
    def __init__(self, key: _Optional[str] = ..., value: _Optional[bytes] = ...) -> None: ...
