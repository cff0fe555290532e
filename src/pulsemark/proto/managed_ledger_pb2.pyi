from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class OffloadContext(_message.Message):
    __slots__ = ("complete", "bookkeeper_deleted")
    COMPLETE_FIELD_NUMBER: _ClassVar[int]
    BOOKKEEPER_DELETED_FIELD_NUMBER: _ClassVar[int]
    complete: bool
    bookkeeper_deleted: bool
    def __init__(self, complete: bool = ..., bookkeeper_deleted: bool = ...) -> None: ...

class LedgerInfo(_message.Message):
    __slots__ = ("ledger_id", "entries", "size_bytes", "closed_ms", "offload_context")
    LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    CLOSED_MS_FIELD_NUMBER: _ClassVar[int]
    OFFLOAD_CONTEXT_FIELD_NUMBER: _ClassVar[int]
    ledger_id: int
    entries: int
    size_bytes: int
    closed_ms: int
    offload_context: OffloadContext
    def __init__(self, ledger_id: _Optional[int] = ..., entries: _Optional[int] = ..., size_bytes: _Optional[int] = ..., closed_ms: _Optional[int] = ..., offload_context: _Optional[_Union[OffloadContext, _Mapping[str, object]]] = ...) -> None: ...

class NestedPosition(_message.Message):
    __slots__ = ("ledger_id", "entry_id")
    LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
    ENTRY_ID_FIELD_NUMBER: _ClassVar[int]
    ledger_id: int
    entry_id: int
    def __init__(self, ledger_id: _Optional[int] = ..., entry_id: _Optional[int] = ...) -> None: ...

class KeyValue(_message.Message):
    __slots__ = ("key", "value")
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    key: str
    value: str
    def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...

class ManagedLedgerInfo(_message.Message):
    __slots__ = ("ledgers", "terminated_position", "properties")
    LEDGERS_FIELD_NUMBER: _ClassVar[int]
    TERMINATED_POSITION_FIELD_NUMBER: _ClassVar[int]
    PROPERTIES_FIELD_NUMBER: _ClassVar[int]
    ledgers: _containers.RepeatedCompositeFieldContainer[LedgerInfo]
    terminated_position: NestedPosition
    properties: _containers.RepeatedCompositeFieldContainer[KeyValue]
    def __init__(self, ledgers: _Optional[_Iterable[_Union[LedgerInfo, _Mapping[str, object]]]] = ..., terminated_position: _Optional[_Union[NestedPosition, _Mapping[str, object]]] = ..., properties: _Optional[_Iterable[_Union[KeyValue, _Mapping[str, object]]]] = ...) -> None: ...

class MessageRange(_message.Message):
    __slots__ = ("lower", "upper")
    LOWER_FIELD_NUMBER: _ClassVar[int]
    UPPER_FIELD_NUMBER: _ClassVar[int]
    lower: NestedPosition
    upper: NestedPosition
    def __init__(self, lower: _Optional[_Union[NestedPosition, _Mapping[str, object]]] = ..., upper: _Optional[_Union[NestedPosition, _Mapping[str, object]]] = ...) -> None: ...

class ManagedCursorInfo(_message.Message):
    __slots__ = ("cursors_ledger_id", "mark_delete_ledger_id", "mark_delete_entry_id", "individual_deleted_messages", "last_active_ms")
    CURSORS_LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
    MARK_DELETE_LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
    MARK_DELETE_ENTRY_ID_FIELD_NUMBER: _ClassVar[int]
    INDIVIDUAL_DELETED_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    LAST_ACTIVE_MS_FIELD_NUMBER: _ClassVar[int]
    cursors_ledger_id: int
    mark_delete_ledger_id: int
    mark_delete_entry_id: int
    individual_deleted_messages: _containers.RepeatedCompositeFieldContainer[MessageRange]
    last_active_ms: int
    def __init__(self, cursors_ledger_id: _Optional[int] = ..., mark_delete_ledger_id: _Optional[int] = ..., mark_delete_entry_id: _Optional[int] = ..., individual_deleted_messages: _Optional[_Iterable[_Union[MessageRange, _Mapping[str, object]]]] = ..., last_active_ms: _Optional[int] = ...) -> None: ...

class InfoCompression(_message.Message):
    __slots__ = ("compression", "uncompressed_size_bytes")
    COMPRESSION_FIELD_NUMBER: _ClassVar[int]
    UNCOMPRESSED_SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    compression: int
    uncompressed_size_bytes: int
    def __init__(self, compression: _Optional[int] = ..., uncompressed_size_bytes: _Optional[int] = ...) -> None: ...
