from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class EntryRange(_message.Message):
    __slots__ = ("ledger_id", "first_entry_id", "last_entry_id")
    LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
    FIRST_ENTRY_ID_FIELD_NUMBER: _ClassVar[int]
    LAST_ENTRY_ID_FIELD_NUMBER: _ClassVar[int]
    ledger_id: int
    first_entry_id: int
    last_entry_id: int
    def __init__(self, ledger_id: _Optional[int] = ..., first_entry_id: _Optional[int] = ..., last_entry_id: _Optional[int] = ...) -> None: ...

class BatchAck(_message.Message):
    __slots__ = ("ledger_id", "entry_id", "ack_set")
    LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
    ENTRY_ID_FIELD_NUMBER: _ClassVar[int]
    ACK_SET_FIELD_NUMBER: _ClassVar[int]
    ledger_id: int
    entry_id: int
    ack_set: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, ledger_id: _Optional[int] = ..., entry_id: _Optional[int] = ..., ack_set: _Optional[_Iterable[int]] = ...) -> None: ...

class CursorRecord(_message.Message):
    __slots__ = ("topic_id", "subscription", "kind", "mark_delete_ledger_id", "mark_delete_entry_id", "acked", "batches", "properties", "subscription_properties")
    class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        SNAPSHOT: _ClassVar[CursorRecord.Kind]
        CHANGE: _ClassVar[CursorRecord.Kind]
        DELETED: _ClassVar[CursorRecord.Kind]
    SNAPSHOT: CursorRecord.Kind
    CHANGE: CursorRecord.Kind
    DELETED: CursorRecord.Kind
    class PropertiesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class SubscriptionPropertiesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    MARK_DELETE_LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
    MARK_DELETE_ENTRY_ID_FIELD_NUMBER: _ClassVar[int]
    ACKED_FIELD_NUMBER: _ClassVar[int]
    BATCHES_FIELD_NUMBER: _ClassVar[int]
    PROPERTIES_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTION_PROPERTIES_FIELD_NUMBER: _ClassVar[int]
    topic_id: int
    subscription: str
    kind: CursorRecord.Kind
    mark_delete_ledger_id: int
    mark_delete_entry_id: int
    acked: _containers.RepeatedCompositeFieldContainer[EntryRange]
    batches: _containers.RepeatedCompositeFieldContainer[BatchAck]
    properties: _containers.ScalarMap[str, int]
    subscription_properties: _containers.ScalarMap[str, str]
    def __init__(self, topic_id: _Optional[int] = ..., subscription: _Optional[str] = ..., kind: _Optional[_Union[CursorRecord.Kind, str]] = ..., mark_delete_ledger_id: _Optional[int] = ..., mark_delete_entry_id: _Optional[int] = ..., acked: _Optional[_Iterable[_Union[EntryRange, _Mapping[str, object]]]] = ..., batches: _Optional[_Iterable[_Union[BatchAck, _Mapping[str, object]]]] = ..., properties: _Optional[_Mapping[str, int]] = ..., subscription_properties: _Optional[_Mapping[str, str]] = ...) -> None: ...
