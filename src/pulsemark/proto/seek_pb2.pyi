from google.protobuf import any_pb2 as _any_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class SearchMethod(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SEARCH_METHOD_UNSPECIFIED: _ClassVar[SearchMethod]
    SEARCH_METHOD_INDEX: _ClassVar[SearchMethod]
    SEARCH_METHOD_PREFIXES: _ClassVar[SearchMethod]

class Content(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CONTENT_UNSPECIFIED: _ClassVar[Content]
    CONTENT_ENTRIES: _ClassVar[Content]
    CONTENT_PREFIXES: _ClassVar[Content]

class EntryKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ENTRY_KIND_DATA: _ClassVar[EntryKind]
    ENTRY_KIND_CONTROL: _ClassVar[EntryKind]

class ControlType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CONTROL_TYPE_UNSPECIFIED: _ClassVar[ControlType]
    CONTROL_TYPE_TXN_COMMIT: _ClassVar[ControlType]
    CONTROL_TYPE_TXN_ABORT: _ClassVar[ControlType]
    CONTROL_TYPE_LEADER_CHANGE: _ClassVar[ControlType]
    CONTROL_TYPE_REPLICATED_SUBSCRIPTION: _ClassVar[ControlType]
    CONTROL_TYPE_TXN_START: _ClassVar[ControlType]
    CONTROL_TYPE_CHECKPOINT: _ClassVar[ControlType]
    CONTROL_TYPE_USER: _ClassVar[ControlType]
SEARCH_METHOD_UNSPECIFIED: SearchMethod
SEARCH_METHOD_INDEX: SearchMethod
SEARCH_METHOD_PREFIXES: SearchMethod
CONTENT_UNSPECIFIED: Content
CONTENT_ENTRIES: Content
CONTENT_PREFIXES: Content
ENTRY_KIND_DATA: EntryKind
ENTRY_KIND_CONTROL: EntryKind
CONTROL_TYPE_UNSPECIFIED: ControlType
CONTROL_TYPE_TXN_COMMIT: ControlType
CONTROL_TYPE_TXN_ABORT: ControlType
CONTROL_TYPE_LEADER_CHANGE: ControlType
CONTROL_TYPE_REPLICATED_SUBSCRIPTION: ControlType
CONTROL_TYPE_TXN_START: ControlType
CONTROL_TYPE_CHECKPOINT: ControlType
CONTROL_TYPE_USER: ControlType

class Position(_message.Message):
    __slots__ = ("ledger_id", "entry_id")
    LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
    ENTRY_ID_FIELD_NUMBER: _ClassVar[int]
    ledger_id: int
    entry_id: int
    def __init__(self, ledger_id: _Optional[int] = ..., entry_id: _Optional[int] = ...) -> None: ...

class SeekByTimeRequest(_message.Message):
    __slots__ = ("topic", "time_ms", "method")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    TIME_MS_FIELD_NUMBER: _ClassVar[int]
    METHOD_FIELD_NUMBER: _ClassVar[int]
    topic: str
    time_ms: int
    method: SearchMethod
    def __init__(self, topic: _Optional[str] = ..., time_ms: _Optional[int] = ..., method: _Optional[_Union[SearchMethod, str]] = ...) -> None: ...

class SeekByTimeResponse(_message.Message):
    __slots__ = ("position", "first_index", "index", "message_count", "time_ms", "end", "reads", "bytes_read")
    POSITION_FIELD_NUMBER: _ClassVar[int]
    FIRST_INDEX_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_COUNT_FIELD_NUMBER: _ClassVar[int]
    TIME_MS_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    READS_FIELD_NUMBER: _ClassVar[int]
    BYTES_READ_FIELD_NUMBER: _ClassVar[int]
    position: Position
    first_index: int
    index: int
    message_count: int
    time_ms: int
    end: bool
    reads: int
    bytes_read: int
    def __init__(self, position: _Optional[_Union[Position, _Mapping[str, object]]] = ..., first_index: _Optional[int] = ..., index: _Optional[int] = ..., message_count: _Optional[int] = ..., time_ms: _Optional[int] = ..., end: bool = ..., reads: _Optional[int] = ..., bytes_read: _Optional[int] = ...) -> None: ...

class SeekByIndexRequest(_message.Message):
    __slots__ = ("topic", "index", "method")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    METHOD_FIELD_NUMBER: _ClassVar[int]
    topic: str
    index: int
    method: SearchMethod
    def __init__(self, topic: _Optional[str] = ..., index: _Optional[int] = ..., method: _Optional[_Union[SearchMethod, str]] = ...) -> None: ...

class SeekByIndexResponse(_message.Message):
    __slots__ = ("position", "batch_index", "first_index", "index", "message_count", "time_ms", "reads", "bytes_read")
    POSITION_FIELD_NUMBER: _ClassVar[int]
    BATCH_INDEX_FIELD_NUMBER: _ClassVar[int]
    FIRST_INDEX_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_COUNT_FIELD_NUMBER: _ClassVar[int]
    TIME_MS_FIELD_NUMBER: _ClassVar[int]
    READS_FIELD_NUMBER: _ClassVar[int]
    BYTES_READ_FIELD_NUMBER: _ClassVar[int]
    position: Position
    batch_index: int
    first_index: int
    index: int
    message_count: int
    time_ms: int
    reads: int
    bytes_read: int
    def __init__(self, position: _Optional[_Union[Position, _Mapping[str, object]]] = ..., batch_index: _Optional[int] = ..., first_index: _Optional[int] = ..., index: _Optional[int] = ..., message_count: _Optional[int] = ..., time_ms: _Optional[int] = ..., reads: _Optional[int] = ..., bytes_read: _Optional[int] = ...) -> None: ...

class RangeRequest(_message.Message):
    __slots__ = ("topic", "from_ms", "to_ms", "method")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    FROM_MS_FIELD_NUMBER: _ClassVar[int]
    TO_MS_FIELD_NUMBER: _ClassVar[int]
    METHOD_FIELD_NUMBER: _ClassVar[int]
    topic: str
    from_ms: int
    to_ms: int
    method: SearchMethod
    def __init__(self, topic: _Optional[str] = ..., from_ms: _Optional[int] = ..., to_ms: _Optional[int] = ..., method: _Optional[_Union[SearchMethod, str]] = ...) -> None: ...

class RangeResponse(_message.Message):
    __slots__ = ("first_index", "end_index", "count", "first", "end", "reads", "bytes_read")
    FIRST_INDEX_FIELD_NUMBER: _ClassVar[int]
    END_INDEX_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    READS_FIELD_NUMBER: _ClassVar[int]
    BYTES_READ_FIELD_NUMBER: _ClassVar[int]
    first_index: int
    end_index: int
    count: int
    first: Position
    end: Position
    reads: int
    bytes_read: int
    def __init__(self, first_index: _Optional[int] = ..., end_index: _Optional[int] = ..., count: _Optional[int] = ..., first: _Optional[_Union[Position, _Mapping[str, object]]] = ..., end: _Optional[_Union[Position, _Mapping[str, object]]] = ..., reads: _Optional[int] = ..., bytes_read: _Optional[int] = ...) -> None: ...

class ReadEntriesRequest(_message.Message):
    __slots__ = ("topic", "start", "end", "max_entries", "content", "control_only", "stored", "uncommitted")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    MAX_ENTRIES_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    CONTROL_ONLY_FIELD_NUMBER: _ClassVar[int]
    STORED_FIELD_NUMBER: _ClassVar[int]
    UNCOMMITTED_FIELD_NUMBER: _ClassVar[int]
    topic: str
    start: Position
    end: Position
    max_entries: int
    content: Content
    control_only: bool
    stored: bool
    uncommitted: bool
    def __init__(self, topic: _Optional[str] = ..., start: _Optional[_Union[Position, _Mapping[str, object]]] = ..., end: _Optional[_Union[Position, _Mapping[str, object]]] = ..., max_entries: _Optional[int] = ..., content: _Optional[_Union[Content, str]] = ..., control_only: bool = ..., stored: bool = ..., uncommitted: bool = ...) -> None: ...

class ReadEntriesResponse(_message.Message):
    __slots__ = ("pieces", "next_position", "end")
    PIECES_FIELD_NUMBER: _ClassVar[int]
    NEXT_POSITION_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    pieces: _containers.RepeatedCompositeFieldContainer[EntryPiece]
    next_position: Position
    end: bool
    def __init__(self, pieces: _Optional[_Iterable[_Union[EntryPiece, _Mapping[str, object]]]] = ..., next_position: _Optional[_Union[Position, _Mapping[str, object]]] = ..., end: bool = ...) -> None: ...

class EntryPiece(_message.Message):
    __slots__ = ("position", "body_size_bytes", "body_offset_bytes", "body", "prefix", "first_index", "index", "message_count", "time_ms", "append_time_ms", "kind", "tags")
    POSITION_FIELD_NUMBER: _ClassVar[int]
    BODY_SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    BODY_OFFSET_BYTES_FIELD_NUMBER: _ClassVar[int]
    BODY_FIELD_NUMBER: _ClassVar[int]
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    FIRST_INDEX_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_COUNT_FIELD_NUMBER: _ClassVar[int]
    TIME_MS_FIELD_NUMBER: _ClassVar[int]
    APPEND_TIME_MS_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    TAGS_FIELD_NUMBER: _ClassVar[int]
    position: Position
    body_size_bytes: int
    body_offset_bytes: int
    body: bytes
    prefix: bytes
    first_index: int
    index: int
    message_count: int
    time_ms: int
    append_time_ms: int
    kind: EntryKind
    tags: _containers.RepeatedCompositeFieldContainer[Tag]
    def __init__(self, position: _Optional[_Union[Position, _Mapping[str, object]]] = ..., body_size_bytes: _Optional[int] = ..., body_offset_bytes: _Optional[int] = ..., body: _Optional[bytes] = ..., prefix: _Optional[bytes] = ..., first_index: _Optional[int] = ..., index: _Optional[int] = ..., message_count: _Optional[int] = ..., time_ms: _Optional[int] = ..., append_time_ms: _Optional[int] = ..., kind: _Optional[_Union[EntryKind, str]] = ..., tags: _Optional[_Iterable[_Union[Tag, _Mapping[str, object]]]] = ...) -> None: ...

class Tag(_message.Message):
    __slots__ = ("name", "text", "data", "number", "negative", "real", "flag")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    NEGATIVE_FIELD_NUMBER: _ClassVar[int]
    REAL_FIELD_NUMBER: _ClassVar[int]
    FLAG_FIELD_NUMBER: _ClassVar[int]
    name: str
    text: str
    data: bytes
    number: int
    negative: int
    real: float
    flag: bool
    def __init__(self, name: _Optional[str] = ..., text: _Optional[str] = ..., data: _Optional[bytes] = ..., number: _Optional[int] = ..., negative: _Optional[int] = ..., real: _Optional[float] = ..., flag: bool = ...) -> None: ...

class AppendControlRequest(_message.Message):
    __slots__ = ("topic", "type", "name", "tags", "epoch")
    class TagsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: bytes
        def __init__(self, key: _Optional[str] = ..., value: _Optional[bytes] = ...) -> None: ...
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    TAGS_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    topic: str
    type: ControlType
    name: str
    tags: _containers.ScalarMap[str, bytes]
    epoch: int
    def __init__(self, topic: _Optional[str] = ..., type: _Optional[_Union[ControlType, str]] = ..., name: _Optional[str] = ..., tags: _Optional[_Mapping[str, bytes]] = ..., epoch: _Optional[int] = ...) -> None: ...

class AppendControlResponse(_message.Message):
    __slots__ = ("position", "index", "time_ms", "epoch")
    POSITION_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    TIME_MS_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    position: Position
    index: int
    time_ms: int
    epoch: int
    def __init__(self, position: _Optional[_Union[Position, _Mapping[str, object]]] = ..., index: _Optional[int] = ..., time_ms: _Optional[int] = ..., epoch: _Optional[int] = ...) -> None: ...

class EpochsRequest(_message.Message):
    __slots__ = ("topic", "stored")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    STORED_FIELD_NUMBER: _ClassVar[int]
    topic: str
    stored: bool
    def __init__(self, topic: _Optional[str] = ..., stored: bool = ...) -> None: ...

class EpochStart(_message.Message):
    __slots__ = ("epoch", "first_index", "position", "leader")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    FIRST_INDEX_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    LEADER_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    first_index: int
    position: Position
    leader: str
    def __init__(self, epoch: _Optional[int] = ..., first_index: _Optional[int] = ..., position: _Optional[_Union[Position, _Mapping[str, object]]] = ..., leader: _Optional[str] = ...) -> None: ...

class EpochsResponse(_message.Message):
    __slots__ = ("epochs", "next_index", "lost_before", "lost_after", "lost_before_ms", "ledgers", "has_holes", "stable_index")
    EPOCHS_FIELD_NUMBER: _ClassVar[int]
    NEXT_INDEX_FIELD_NUMBER: _ClassVar[int]
    LOST_BEFORE_FIELD_NUMBER: _ClassVar[int]
    LOST_AFTER_FIELD_NUMBER: _ClassVar[int]
    LOST_BEFORE_MS_FIELD_NUMBER: _ClassVar[int]
    LEDGERS_FIELD_NUMBER: _ClassVar[int]
    HAS_HOLES_FIELD_NUMBER: _ClassVar[int]
    STABLE_INDEX_FIELD_NUMBER: _ClassVar[int]
    epochs: _containers.RepeatedCompositeFieldContainer[EpochStart]
    next_index: int
    lost_before: str
    lost_after: str
    lost_before_ms: int
    ledgers: _containers.RepeatedCompositeFieldContainer[LedgerExtent]
    has_holes: bool
    stable_index: int
    def __init__(self, epochs: _Optional[_Iterable[_Union[EpochStart, _Mapping[str, object]]]] = ..., next_index: _Optional[int] = ..., lost_before: _Optional[str] = ..., lost_after: _Optional[str] = ..., lost_before_ms: _Optional[int] = ..., ledgers: _Optional[_Iterable[_Union[LedgerExtent, _Mapping[str, object]]]] = ..., has_holes: bool = ..., stable_index: _Optional[int] = ...) -> None: ...

class LedgerExtent(_message.Message):
    __slots__ = ("first", "end_entry_id", "first_index", "epoch")
    FIRST_FIELD_NUMBER: _ClassVar[int]
    END_ENTRY_ID_FIELD_NUMBER: _ClassVar[int]
    FIRST_INDEX_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    first: Position
    end_entry_id: int
    first_index: int
    epoch: int
    def __init__(self, first: _Optional[_Union[Position, _Mapping[str, object]]] = ..., end_entry_id: _Optional[int] = ..., first_index: _Optional[int] = ..., epoch: _Optional[int] = ...) -> None: ...

class FollowStateRequest(_message.Message):
    __slots__ = ("known_digest", "oldest_version", "newest_version")
    KNOWN_DIGEST_FIELD_NUMBER: _ClassVar[int]
    OLDEST_VERSION_FIELD_NUMBER: _ClassVar[int]
    NEWEST_VERSION_FIELD_NUMBER: _ClassVar[int]
    known_digest: bytes
    oldest_version: int
    newest_version: int
    def __init__(self, known_digest: _Optional[bytes] = ..., oldest_version: _Optional[int] = ..., newest_version: _Optional[int] = ...) -> None: ...

class FollowStateResponse(_message.Message):
    __slots__ = ("next_ledger_id", "digest", "topics", "values", "cursors", "version")
    NEXT_LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    CURSORS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    next_ledger_id: int
    digest: bytes
    topics: _containers.RepeatedCompositeFieldContainer[FollowedTopic]
    values: _containers.RepeatedCompositeFieldContainer[FollowedValue]
    cursors: _containers.RepeatedCompositeFieldContainer[FollowedCursor]
    version: int
    def __init__(self, next_ledger_id: _Optional[int] = ..., digest: _Optional[bytes] = ..., topics: _Optional[_Iterable[_Union[FollowedTopic, _Mapping[str, object]]]] = ..., values: _Optional[_Iterable[_Union[FollowedValue, _Mapping[str, object]]]] = ..., cursors: _Optional[_Iterable[_Union[FollowedCursor, _Mapping[str, object]]]] = ..., version: _Optional[int] = ...) -> None: ...

class FollowedTopic(_message.Message):
    __slots__ = ("name", "topic_id", "first", "end", "next_index", "entry_count", "append_time_ms")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    NEXT_INDEX_FIELD_NUMBER: _ClassVar[int]
    ENTRY_COUNT_FIELD_NUMBER: _ClassVar[int]
    APPEND_TIME_MS_FIELD_NUMBER: _ClassVar[int]
    name: str
    topic_id: int
    first: Position
    end: Position
    next_index: int
    entry_count: int
    append_time_ms: int
    def __init__(self, name: _Optional[str] = ..., topic_id: _Optional[int] = ..., first: _Optional[_Union[Position, _Mapping[str, object]]] = ..., end: _Optional[_Union[Position, _Mapping[str, object]]] = ..., next_index: _Optional[int] = ..., entry_count: _Optional[int] = ..., append_time_ms: _Optional[int] = ...) -> None: ...

class FollowedValue(_message.Message):
    __slots__ = ("kind", "key", "value")
    KIND_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    kind: str
    key: str
    value: bytes
    def __init__(self, kind: _Optional[str] = ..., key: _Optional[str] = ..., value: _Optional[bytes] = ...) -> None: ...

class FollowedCursor(_message.Message):
    __slots__ = ("topic", "subscription", "record")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
    RECORD_FIELD_NUMBER: _ClassVar[int]
    topic: str
    subscription: str
    record: bytes
    def __init__(self, topic: _Optional[str] = ..., subscription: _Optional[str] = ..., record: _Optional[bytes] = ...) -> None: ...

class ResetCursorRequest(_message.Message):
    __slots__ = ("topic", "subscription", "time_ms", "index", "position")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
    TIME_MS_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    topic: str
    subscription: str
    time_ms: int
    index: int
    position: Position
    def __init__(self, topic: _Optional[str] = ..., subscription: _Optional[str] = ..., time_ms: _Optional[int] = ..., index: _Optional[int] = ..., position: _Optional[_Union[Position, _Mapping[str, object]]] = ...) -> None: ...

class ResetCursorResponse(_message.Message):
    __slots__ = ("position", "batch_index", "end")
    POSITION_FIELD_NUMBER: _ClassVar[int]
    BATCH_INDEX_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    position: Position
    batch_index: int
    end: bool
    def __init__(self, position: _Optional[_Union[Position, _Mapping[str, object]]] = ..., batch_index: _Optional[int] = ..., end: bool = ...) -> None: ...

class AuditRequest(_message.Message):
    __slots__ = ("topic", "by", "from_ms", "to_ms")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    BY_FIELD_NUMBER: _ClassVar[int]
    FROM_MS_FIELD_NUMBER: _ClassVar[int]
    TO_MS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    by: _containers.RepeatedScalarFieldContainer[str]
    from_ms: int
    to_ms: int
    def __init__(self, topic: _Optional[str] = ..., by: _Optional[_Iterable[str]] = ..., from_ms: _Optional[int] = ..., to_ms: _Optional[int] = ...) -> None: ...

class AuditResponse(_message.Message):
    __slots__ = ("tags", "bucket_ms", "counted_from_index", "next_index", "log_first_index", "left", "uncounted", "dropped_rows", "dropped_messages", "kept_from_ms", "recounts", "rows", "missing")
    TAGS_FIELD_NUMBER: _ClassVar[int]
    BUCKET_MS_FIELD_NUMBER: _ClassVar[int]
    COUNTED_FROM_INDEX_FIELD_NUMBER: _ClassVar[int]
    NEXT_INDEX_FIELD_NUMBER: _ClassVar[int]
    LOG_FIRST_INDEX_FIELD_NUMBER: _ClassVar[int]
    LEFT_FIELD_NUMBER: _ClassVar[int]
    UNCOUNTED_FIELD_NUMBER: _ClassVar[int]
    DROPPED_ROWS_FIELD_NUMBER: _ClassVar[int]
    DROPPED_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    KEPT_FROM_MS_FIELD_NUMBER: _ClassVar[int]
    RECOUNTS_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    MISSING_FIELD_NUMBER: _ClassVar[int]
    tags: _containers.RepeatedScalarFieldContainer[str]
    bucket_ms: int
    counted_from_index: int
    next_index: int
    log_first_index: int
    left: int
    uncounted: int
    dropped_rows: int
    dropped_messages: int
    kept_from_ms: int
    recounts: int
    rows: _containers.RepeatedCompositeFieldContainer[AuditRow]
    missing: int
    def __init__(self, tags: _Optional[_Iterable[str]] = ..., bucket_ms: _Optional[int] = ..., counted_from_index: _Optional[int] = ..., next_index: _Optional[int] = ..., log_first_index: _Optional[int] = ..., left: _Optional[int] = ..., uncounted: _Optional[int] = ..., dropped_rows: _Optional[int] = ..., dropped_messages: _Optional[int] = ..., kept_from_ms: _Optional[int] = ..., recounts: _Optional[int] = ..., rows: _Optional[_Iterable[_Union[AuditRow, _Mapping[str, object]]]] = ..., missing: _Optional[int] = ...) -> None: ...

class AuditRow(_message.Message):
    __slots__ = ("tier", "bucket_start_ms", "bucket_end_ms", "tags", "is_rest", "host", "count", "doubtful_count", "control_count", "bytes", "min_index", "max_index", "missing", "missing_before", "missing_after", "out_of_order")
    TIER_FIELD_NUMBER: _ClassVar[int]
    BUCKET_START_MS_FIELD_NUMBER: _ClassVar[int]
    BUCKET_END_MS_FIELD_NUMBER: _ClassVar[int]
    TAGS_FIELD_NUMBER: _ClassVar[int]
    IS_REST_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    DOUBTFUL_COUNT_FIELD_NUMBER: _ClassVar[int]
    CONTROL_COUNT_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    MIN_INDEX_FIELD_NUMBER: _ClassVar[int]
    MAX_INDEX_FIELD_NUMBER: _ClassVar[int]
    MISSING_FIELD_NUMBER: _ClassVar[int]
    MISSING_BEFORE_FIELD_NUMBER: _ClassVar[int]
    MISSING_AFTER_FIELD_NUMBER: _ClassVar[int]
    OUT_OF_ORDER_FIELD_NUMBER: _ClassVar[int]
    tier: str
    bucket_start_ms: int
    bucket_end_ms: int
    tags: _containers.RepeatedCompositeFieldContainer[AuditTag]
    is_rest: bool
    host: str
    count: int
    doubtful_count: int
    control_count: int
    bytes: int
    min_index: int
    max_index: int
    missing: int
    missing_before: int
    missing_after: int
    out_of_order: int
    def __init__(self, tier: _Optional[str] = ..., bucket_start_ms: _Optional[int] = ..., bucket_end_ms: _Optional[int] = ..., tags: _Optional[_Iterable[_Union[AuditTag, _Mapping[str, object]]]] = ..., is_rest: bool = ..., host: _Optional[str] = ..., count: _Optional[int] = ..., doubtful_count: _Optional[int] = ..., control_count: _Optional[int] = ..., bytes: _Optional[int] = ..., min_index: _Optional[int] = ..., max_index: _Optional[int] = ..., missing: _Optional[int] = ..., missing_before: _Optional[int] = ..., missing_after: _Optional[int] = ..., out_of_order: _Optional[int] = ...) -> None: ...

class AuditTag(_message.Message):
    __slots__ = ("name", "value")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    name: str
    value: str
    def __init__(self, name: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...

class Status(_message.Message):
    __slots__ = ("code", "message", "details")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    DETAILS_FIELD_NUMBER: _ClassVar[int]
    code: int
    message: str
    details: _containers.RepeatedCompositeFieldContainer[_any_pb2.Any]
    def __init__(self, code: _Optional[int] = ..., message: _Optional[str] = ..., details: _Optional[_Iterable[_Union[_any_pb2.Any, _Mapping[str, object]]]] = ...) -> None: ...

class ErrorDetail(_message.Message):
    __slots__ = ("invalid_field", "topic_not_found", "subscription_not_found", "index_out_of_range", "damaged_entry", "not_possible", "cursor_busy", "stale_epoch")
    class InvalidField(_message.Message):
        __slots__ = ("field", "reason")
        FIELD_FIELD_NUMBER: _ClassVar[int]
        REASON_FIELD_NUMBER: _ClassVar[int]
        field: str
        reason: str
        def __init__(self, field: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...
    class TopicNotFound(_message.Message):
        __slots__ = ("topic",)
        TOPIC_FIELD_NUMBER: _ClassVar[int]
        topic: str
        def __init__(self, topic: _Optional[str] = ...) -> None: ...
    class SubscriptionNotFound(_message.Message):
        __slots__ = ("topic", "subscription")
        TOPIC_FIELD_NUMBER: _ClassVar[int]
        SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
        topic: str
        subscription: str
        def __init__(self, topic: _Optional[str] = ..., subscription: _Optional[str] = ...) -> None: ...
    class IndexOutOfRange(_message.Message):
        __slots__ = ("index", "first_index", "next_index")
        INDEX_FIELD_NUMBER: _ClassVar[int]
        FIRST_INDEX_FIELD_NUMBER: _ClassVar[int]
        NEXT_INDEX_FIELD_NUMBER: _ClassVar[int]
        index: int
        first_index: int
        next_index: int
        def __init__(self, index: _Optional[int] = ..., first_index: _Optional[int] = ..., next_index: _Optional[int] = ...) -> None: ...
    class DamagedEntry(_message.Message):
        __slots__ = ("position", "next_position", "reason", "topic")
        POSITION_FIELD_NUMBER: _ClassVar[int]
        NEXT_POSITION_FIELD_NUMBER: _ClassVar[int]
        REASON_FIELD_NUMBER: _ClassVar[int]
        TOPIC_FIELD_NUMBER: _ClassVar[int]
        position: Position
        next_position: Position
        reason: str
        topic: str
        def __init__(self, position: _Optional[_Union[Position, _Mapping[str, object]]] = ..., next_position: _Optional[_Union[Position, _Mapping[str, object]]] = ..., reason: _Optional[str] = ..., topic: _Optional[str] = ...) -> None: ...
    class CursorBusy(_message.Message):
        __slots__ = ("topic", "subscription")
        TOPIC_FIELD_NUMBER: _ClassVar[int]
        SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
        topic: str
        subscription: str
        def __init__(self, topic: _Optional[str] = ..., subscription: _Optional[str] = ...) -> None: ...
    class NotPossible(_message.Message):
        __slots__ = ("reason",)
        REASON_FIELD_NUMBER: _ClassVar[int]
        reason: str
        def __init__(self, reason: _Optional[str] = ...) -> None: ...
    class StaleEpoch(_message.Message):
        __slots__ = ("topic", "epoch", "current")
        TOPIC_FIELD_NUMBER: _ClassVar[int]
        EPOCH_FIELD_NUMBER: _ClassVar[int]
        CURRENT_FIELD_NUMBER: _ClassVar[int]
        topic: str
        epoch: int
        current: int
        def __init__(self, topic: _Optional[str] = ..., epoch: _Optional[int] = ..., current: _Optional[int] = ...) -> None: ...
    INVALID_FIELD_FIELD_NUMBER: _ClassVar[int]
    TOPIC_NOT_FOUND_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTION_NOT_FOUND_FIELD_NUMBER: _ClassVar[int]
    INDEX_OUT_OF_RANGE_FIELD_NUMBER: _ClassVar[int]
    DAMAGED_ENTRY_FIELD_NUMBER: _ClassVar[int]
    NOT_POSSIBLE_FIELD_NUMBER: _ClassVar[int]
    CURSOR_BUSY_FIELD_NUMBER: _ClassVar[int]
    STALE_EPOCH_FIELD_NUMBER: _ClassVar[int]
    invalid_field: ErrorDetail.InvalidField
    topic_not_found: ErrorDetail.TopicNotFound
    subscription_not_found: ErrorDetail.SubscriptionNotFound
    index_out_of_range: ErrorDetail.IndexOutOfRange
    damaged_entry: ErrorDetail.DamagedEntry
    not_possible: ErrorDetail.NotPossible
    cursor_busy: ErrorDetail.CursorBusy
    stale_epoch: ErrorDetail.StaleEpoch
    def __init__(self, invalid_field: _Optional[_Union[ErrorDetail.InvalidField, _Mapping[str, object]]] = ..., topic_not_found: _Optional[_Union[ErrorDetail.TopicNotFound, _Mapping[str, object]]] = ..., subscription_not_found: _Optional[_Union[ErrorDetail.SubscriptionNotFound, _Mapping[str, object]]] = ..., index_out_of_range: _Optional[_Union[ErrorDetail.IndexOutOfRange, _Mapping[str, object]]] = ..., damaged_entry: _Optional[_Union[ErrorDetail.DamagedEntry, _Mapping[str, object]]] = ..., not_possible: _Optional[_Union[ErrorDetail.NotPossible, _Mapping[str, object]]] = ..., cursor_busy: _Optional[_Union[ErrorDetail.CursorBusy, _Mapping[str, object]]] = ..., stale_epoch: _Optional[_Union[ErrorDetail.StaleEpoch, _Mapping[str, object]]] = ...) -> None: ...
