"""A connection's rules: who may say what when, and what happens to those who break them."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Sequence
from typing import Any

import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message as ProtobufMessage
from hypothesis import given, settings
from hypothesis import strategies as st

from pulsemark.proto import pulsar_api_pb2 as pb
from pulsemark.wire import (
    Command,
    Connection,
    Event,
    Message,
    MessageId,
    ProtocolError,
    Role,
    Send,
    Sends,
    Unsupported,
    commands,
)
from pulsemark.wire.connection import RUN_MAX

T = pb.BaseCommand.Type
HELLO = {
    Role.SERVER: commands.connect("test"),
    Role.CLIENT: commands.connected("test", 21, 5 * 1024 * 1024),
}
BODIES: dict[int, Any] = {
    field.number: field for field in pb.BaseCommand.DESCRIPTOR.fields if field.number > 1
}


def raw_frame(command: bytes, payload: bytes = b"") -> bytes:
    """A frame around any bytes."""
    return struct.pack(">II", 4 + len(command) + len(payload), len(command)) + command + payload


def long_frame(kind: Any, body: Any, payload: bytes = b"") -> bytes:
    """A frame whose command protobuf itself has encoded."""
    base = pb.BaseCommand(type=kind)
    getattr(base, BODIES[kind].name).CopyFrom(body)
    return raw_frame(base.SerializePartialToString(), payload)


def type_of(event: Event) -> int:
    """The type of a command's event."""
    assert isinstance(event, Command | Unsupported)
    return event.type


def consumer_of(event: Event) -> int:
    """The consumer that a command's event is about."""
    assert isinstance(event, Command)
    consumer_id: int = event.body.consumer_id
    return consumer_id


def open_connection(role: Role = Role.SERVER, **options: Any) -> Connection:
    """A connection after its handshake."""
    connection = Connection(role, **options)
    connection.receive_data(HELLO[role])
    assert len(list(connection.events())) == 1
    return connection


def events_of(data: bytes, role: Role = Role.SERVER, **options: Any) -> list[Any]:
    """All events of `data` on an open connection."""
    connection = open_connection(role, **options)
    connection.receive_data(data)
    return list(connection.events())


def violation_of(data: bytes, role: Role = Role.SERVER, **options: Any) -> str:
    """The text of the error that `data` is on an open connection."""
    with pytest.raises(ProtocolError) as caught:
        events_of(data, role, **options)
    return str(caught.value)


def plain(event: Any) -> tuple[Any, ...]:
    """An event as values that compare."""
    if isinstance(event, Command):
        return ("command", event.type, event.body.SerializeToString())
    if isinstance(event, Unsupported):
        return ("unsupported", event.type)
    return (
        type(event).__name__,
        event.command.SerializeToString(),
        bytes(event.headers_and_payload),
    )


# ---- any body, made from the descriptors ------------------------------------------------------

_VALUES: dict[int, st.SearchStrategy[Any]] = {
    FieldDescriptor.TYPE_STRING: st.text(max_size=8),
    FieldDescriptor.TYPE_BYTES: st.binary(max_size=8),
    FieldDescriptor.TYPE_BOOL: st.booleans(),
    FieldDescriptor.TYPE_UINT64: st.integers(0, 2**64 - 1),
    FieldDescriptor.TYPE_INT64: st.integers(-(2**63), 2**63 - 1),
    FieldDescriptor.TYPE_UINT32: st.integers(0, 2**32 - 1),
    FieldDescriptor.TYPE_INT32: st.integers(-(2**31), 2**31 - 1),
    FieldDescriptor.TYPE_DOUBLE: st.floats(),
}


def value_of(field: Any, depth: int) -> st.SearchStrategy[Any]:
    """Values of one field."""
    if field.message_type is not None:
        return message_of(getattr(pb, field.message_type.name), depth + 1)
    if field.enum_type is not None:
        return st.sampled_from([value.number for value in field.enum_type.values])
    return _VALUES[field.type]


@st.composite
def message_of(draw: Any, kind: type[ProtobufMessage], depth: int = 0) -> Any:
    """Any initialized message of a type."""
    message: Any = kind()
    required = set(message.FindInitializationErrors())
    for field in kind.DESCRIPTOR.fields:
        if field.name not in required and (depth > 2 or not draw(st.booleans())):
            continue
        attribute = getattr(message, field.name)
        if hasattr(attribute, "extend"):
            attribute.extend(draw(st.lists(value_of(field, depth), max_size=2)))
        elif field.message_type is not None:
            attribute.CopyFrom(draw(value_of(field, depth)))
        else:
            setattr(message, field.name, draw(value_of(field, depth)))
    if isinstance(message, pb.CommandFlow):
        message.messagePermits = draw(st.integers(1, 2**31 - 1))
    return message


TO_SERVER = [
    T.AUTH_RESPONSE, T.SUBSCRIBE, T.PRODUCER, T.ACK, T.FLOW, T.UNSUBSCRIBE, T.CLOSE_PRODUCER,
    T.CLOSE_CONSUMER, T.PING, T.PONG, T.REDELIVER_UNACKNOWLEDGED_MESSAGES, T.PARTITIONED_METADATA,
    T.LOOKUP, T.CONSUMER_STATS, T.SEEK, T.GET_LAST_MESSAGE_ID, T.GET_TOPICS_OF_NAMESPACE,
    T.GET_SCHEMA, T.GET_OR_CREATE_SCHEMA, T.NEW_TXN, T.ADD_PARTITION_TO_TXN,
    T.ADD_SUBSCRIPTION_TO_TXN, T.END_TXN, T.END_TXN_ON_PARTITION, T.END_TXN_ON_SUBSCRIPTION,
    T.TC_CLIENT_CONNECT_REQUEST, T.WATCH_TOPIC_LIST, T.WATCH_TOPIC_LIST_CLOSE, T.SEND,
]  # fmt: skip
TO_CLIENT = [
    T.SEND_RECEIPT, T.SEND_ERROR, T.MESSAGE, T.SUCCESS, T.ERROR, T.CLOSE_PRODUCER,
    T.CLOSE_CONSUMER, T.PRODUCER_SUCCESS, T.PING, T.PONG, T.PARTITIONED_METADATA_RESPONSE,
    T.LOOKUP_RESPONSE, T.CONSUMER_STATS_RESPONSE, T.REACHED_END_OF_TOPIC,
    T.GET_LAST_MESSAGE_ID_RESPONSE, T.ACTIVE_CONSUMER_CHANGE, T.GET_TOPICS_OF_NAMESPACE_RESPONSE,
    T.GET_SCHEMA_RESPONSE, T.AUTH_CHALLENGE, T.ACK_RESPONSE, T.GET_OR_CREATE_SCHEMA_RESPONSE,
    T.NEW_TXN_RESPONSE, T.ADD_PARTITION_TO_TXN_RESPONSE, T.ADD_SUBSCRIPTION_TO_TXN_RESPONSE,
    T.END_TXN_RESPONSE, T.END_TXN_ON_PARTITION_RESPONSE, T.END_TXN_ON_SUBSCRIPTION_RESPONSE,
    T.TC_CLIENT_CONNECT_RESPONSE, T.WATCH_TOPIC_LIST_SUCCESS, T.WATCH_TOPIC_UPDATE,
    T.TOPIC_MIGRATED,
]  # fmt: skip
ADMITTED = {Role.SERVER: TO_SERVER, Role.CLIENT: TO_CLIENT}
roles = st.sampled_from(list(Role))


@st.composite
def any_command(draw: Any, role: Role) -> tuple[bytes, tuple[Any, ...]]:
    """A frame for `role`, in one of the two encodings, and the event that it is."""
    kind = draw(st.sampled_from(ADMITTED[role]))
    body = draw(message_of(getattr(pb, BODIES[kind].message_type.name)))
    payload = draw(st.binary(max_size=20)) if kind in {T.SEND, T.MESSAGE} else b""
    encoded = long_frame(kind, body, payload)
    if not payload and draw(st.booleans()):
        assert commands.frame(body) == encoded
    if kind in {T.SEND, T.MESSAGE}:
        return encoded, ({T.SEND: "Send"}.get(kind, "Message"), body.SerializeToString(), payload)
    return encoded, ("command", kind, body.SerializeToString())


# ---- what passes -------------------------------------------------------------------------------


@given(st.data(), roles)
@settings(max_examples=200, deadline=None)
def test_every_command_passes_whole_whatever_is_in_it(data: st.DataObject, role: Role) -> None:
    """Any valid body of any command of either direction comes out as it went in."""
    frames = data.draw(st.lists(any_command(role), max_size=6))

    found = events_of(b"".join(frame for frame, _ in frames), role)

    assert [plain(event) for event in found] == [event for _, event in frames]


@given(
    st.data(),
    roles,
    st.lists(st.integers(1, 40), min_size=1, max_size=8),
    st.binary(max_size=30),
    st.booleans(),
)
@settings(max_examples=200, deadline=None)
def test_every_cut_gives_the_same_events_and_the_same_end(
    data: st.DataObject, role: Role, cuts: list[int], tail: bytes, handshake: bool
) -> None:
    """Cut anywhere, a stream gives the same events and ends in the same error, or in none."""
    frames = data.draw(st.lists(any_command(role), max_size=4))
    stream = (HELLO[role] if handshake else b"") + b"".join(f for f, _ in frames) + tail

    def outcome(pieces: Sequence[int]) -> tuple[list[Any], str]:
        connection = Connection(role)
        found: list[Any] = []
        at = turn = 0
        try:
            while at < len(stream):
                room = connection.get_buffer()
                size = min(len(room), pieces[turn % len(pieces)], len(stream) - at)
                turn += 1
                room[:size] = stream[at : at + size]
                connection.buffer_updated(size)
                at += size
                found += connection.events()
                found += connection.events()
        except ProtocolError as error:
            return [plain(event) for event in found], f"{type(error).__name__}: {error}"
        return [plain(event) for event in found], f"{connection.pending_bytes} bytes pending"

    assert outcome(cuts) == outcome([len(stream) or 1])


@given(st.binary(max_size=300), roles, st.booleans())
@settings(max_examples=300, deadline=None)
def test_garbage_gives_events_or_a_protocol_error_and_nothing_else(
    garbage: bytes, role: Role, handshake: bool
) -> None:
    """Whatever bytes come, no other exception leaves a connection."""
    connection = Connection(role)
    if handshake:
        connection.receive_data(HELLO[role])
    connection.receive_data(garbage)

    found: list[Any] = []
    with contextlib.suppress(ProtocolError):
        found.extend(connection.events())

    assert all(isinstance(event, Command | Send | Message | Unsupported) for event in found)
    assert connection.error is not None or connection.pending_bytes <= len(garbage)


@given(st.data(), roles)
@settings(max_examples=300, deadline=None)
def test_damaged_frames_give_events_or_a_protocol_error(data: st.DataObject, role: Role) -> None:
    """A good frame with some bytes changed is another good frame or a violation."""
    frame = bytearray(data.draw(any_command(role))[0])
    for _ in range(data.draw(st.integers(1, 3))):
        frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
    connection = open_connection(role)
    connection.receive_data(frame)

    found: list[Any] = []
    with contextlib.suppress(ProtocolError):
        found.extend(connection.events())

    assert len(found) * 9 + connection.pending_bytes <= len(frame) or connection.error is not None


@pytest.mark.parametrize(
    ("role", "frame"),
    [
        (Role.SERVER, b"".join(commands.send(1, 2, b"x"))),
        (Role.SERVER, commands.flow(1, 1)),
        (Role.CLIENT, b"".join(commands.message_frame(1, 2, 3, 0, (), (b"x",)))),
        (Role.CLIENT, commands.send_receipt(1, 2, 3, 4)),
    ],
)
def test_frequent_commands_have_a_fast_parser(role: Role, frame: bytes) -> None:
    """The general parser, which notes the size, takes twice the time."""
    connection = open_connection(role)
    before = connection.last_command_size_bytes
    connection.receive_data(frame)
    assert len(list(connection.events())) == 1
    assert connection.last_command_size_bytes == before


@given(st.binary(min_size=1, max_size=60))
@settings(deadline=None)
def test_the_fast_parser_agrees_with_the_general_one(body: bytes) -> None:
    """Any bytes as a body of SEND mean the same whether or not the fast parser takes them."""
    short = b"\x08\x06\x32" + bytes([len(body)]) + body
    # The same command with its two fields in the other order needs the general parser.
    long = b"\x32" + bytes([len(body)]) + body + b"\x08\x06"

    def outcome(command: bytes) -> Any:
        connection = open_connection()
        connection.receive_data(raw_frame(command, b"payload"))
        try:
            return [plain(event) for event in connection.events()]
        except ProtocolError as error:
            return f"{type(error).__name__}: {error}"

    assert outcome(short) == outcome(long)


def test_extra_bytes_after_a_simple_command_are_tolerated() -> None:
    """Bytes after a command that has no payload are dropped, as Pulsar does."""
    frame = raw_frame(pb.BaseCommand(type=T.PING, ping=pb.CommandPing()).SerializeToString(), b"x")

    found = events_of(frame + commands.PONG)

    assert [event.type for event in found] == [T.PING, T.PONG]


def test_unknown_fields_are_ignored() -> None:
    """A newer client's fields do no harm, in the envelope or in a body."""
    body = pb.CommandFlow(consumer_id=1, messagePermits=2).SerializeToString() + b"\xf8\x06\x01"
    command = b"\x08\x0b\x5a" + bytes([len(body)]) + body + b"\xf8\x06\x01"

    (event,) = events_of(raw_frame(command))

    assert (event.body.consumer_id, event.body.messagePermits) == (1, 2)


def test_a_payload_outlives_the_connection() -> None:
    """What SEND carried can be read after everything else is gone."""
    stream = b"".join(
        b"".join(commands.send(1, number, b"%d" % number * 2000)) for number in range(200)
    )
    connection = open_connection()
    held: list[memoryview] = []
    for at in range(0, len(stream), 10_000):
        connection.receive_data(stream[at : at + 10_000])
        for event in connection.events():
            assert isinstance(event, Send)
            held.append(event.headers_and_payload)
    del connection

    assert [bytes(view) for view in held] == [b"%d" % number * 2000 for number in range(200)]


def test_leaving_the_events_loses_none() -> None:
    """An iteration that was left is gone on with by the next one."""
    connection = open_connection()
    connection.receive_data(b"".join(commands.flow(number, 1) for number in range(5)))

    first = next(iter(connection.events()))
    assert connection.pending_bytes == 4 * len(commands.flow(0, 1))
    rest = list(connection.events())

    assert [consumer_of(event) for event in (first, *rest)] == [0, 1, 2, 3, 4]
    assert connection.pending_bytes == 0


# ---- runs --------------------------------------------------------------------------------------


def singles(event: Any) -> list[tuple[Any, ...]]:
    """An event of `runs` as values; those of a run one by one."""
    if not isinstance(event, Sends):
        return [plain(event)]
    assert len(event) == len(event.bodies) <= RUN_MAX
    found = []
    for number, body in enumerate(event.bodies):
        command = event.command(number)
        highest = command.highest_sequence_id if command.HasField("highest_sequence_id") else -1
        assert event.producer_id == command.producer_id
        assert event.sequence_ids[number] == command.sequence_id
        assert event.message_counts[number] == command.num_messages
        assert event.highest_sequence_ids[number] == highest
        # Written out, for not every SEND says how many messages it has.
        command.num_messages = command.num_messages
        found.append(("Send", command.SerializeToString(), bytes(body)))
    return found


_SENDS = st.builds(
    pb.CommandSend,
    producer_id=st.sampled_from([0, 1, 300, 2**63, 2**64 - 1]),
    sequence_id=st.sampled_from([0, 1, 127, 128, 16_383, 2**21, 2**62, 2**63, 2**64 - 1]),
    num_messages=st.sampled_from([None, 1, 0, -1, 127, 128, 2**27, 2**28, 2**31 - 1]),
    highest_sequence_id=st.sampled_from([None, 0, 5, 2**63 - 1, 2**63]),
    is_chunk=st.sampled_from([None, None, True]),
    txnid_most_bits=st.sampled_from([None, None, 0]),
)
_FRAMES = st.one_of(
    st.tuples(_SENDS, st.binary(max_size=9)).map(lambda x: long_frame(T.SEND, x[0], x[1])),
    st.just(commands.flow(1, 1)),
)


@given(st.lists(_FRAMES, max_size=12), st.binary(max_size=9), st.integers(1, 400))
@settings(max_examples=300, deadline=None)
def test_runs_are_the_events_and_nothing_else(frames: list[bytes], tail: bytes, cut: int) -> None:
    """SENDs by runs are the SENDs one by one, up to the same end, wherever the stream is cut."""
    stream = b"".join(frames) + tail

    def outcome(read: Any) -> tuple[list[Any], str]:
        connection = open_connection()
        found: list[Any] = []
        try:
            for at in range(0, len(stream), cut):
                connection.receive_data(stream[at : at + cut])
                found += [one for event in getattr(connection, read)() for one in singles(event)]
        except ProtocolError as error:
            return found, f"{type(error).__name__}: {error}"
        return found, f"{connection.pending_bytes} bytes pending"

    events, end = outcome("events")
    for number, (kind, *rest) in enumerate(events):
        if kind == "Send":
            command = pb.CommandSend.FromString(rest[0])
            command.num_messages = command.num_messages
            events[number] = (kind, command.SerializeToString(), rest[1])
    assert outcome("runs") == (events, end)


def test_the_sends_of_one_producer_in_a_read_are_one_event() -> None:
    """A run ends at another producer, at another command and after `RUN_MAX` SENDs."""
    frames = [(1, n) for n in range(RUN_MAX + 2)] + [(2, 5)] + [(1, 200), (1, 16_384)]
    stream = b"".join(b"".join(commands.send(who, n, b"body")) for who, n in frames)
    connection = open_connection()
    connection.receive_data(stream + commands.PING + b"".join(commands.send(1, 9, b"body")))

    found = [
        (event.producer_id, len(event)) if isinstance(event, Sends) else type(event)
        for event in connection.runs()
    ]

    assert found == [(1, RUN_MAX), (1, 2), (2, 1), (1, 2), Command, (1, 1)]


def test_leaving_the_runs_loses_none() -> None:
    """An iteration of runs that was left goes on with the first SEND after the run."""
    connection = open_connection()
    for who in (1, 2):
        for number in range(3):
            connection.receive_data(b"".join(commands.send(who, number, b"body")))

    first = next(iter(connection.runs()))
    (second,) = connection.runs()

    assert isinstance(first, Sends)
    assert isinstance(second, Sends)
    assert [(run.producer_id, run.sequence_ids) for run in (first, second)] == [
        (1, [0, 1, 2]),
        (2, [0, 1, 2]),
    ]


# ---- the handshake -----------------------------------------------------------------------------


@pytest.mark.parametrize("role", list(Role))
def test_pings_pass_before_the_handshake(role: Role) -> None:
    """PING and PONG are answered to strangers too."""
    connection = Connection(role)
    connection.receive_data(commands.PING + commands.PONG + HELLO[role])

    assert [type_of(event) for event in connection.events()][:2] == [T.PING, T.PONG]
    assert connection.established


def test_a_server_accepts_nothing_else_before_connect() -> None:
    """Every other command of a stranger is a violation."""
    for kind in set(TO_SERVER) - {T.PING, T.PONG}:
        body = getattr(pb, BODIES[kind].message_type.name)
        connection = Connection(Role.SERVER)
        connection.receive_data(long_frame(kind, body()))

        with pytest.raises(ProtocolError, match=f"^{T.Name(kind)} came before the handshake"):
            list(connection.events())


def test_a_client_may_be_refused_or_challenged_before_connected() -> None:
    """ERROR and AUTH_CHALLENGE pass before CONNECTED, responses do not."""
    connection = Connection(Role.CLIENT)
    connection.receive_data(commands.frame(pb.CommandAuthChallenge(protocol_version=21)))
    connection.receive_data(commands.error(2**64 - 1, pb.AuthenticationError, "no"))
    connection.receive_data(commands.success(1))

    types: list[int] = []
    with pytest.raises(ProtocolError, match="SUCCESS came before the handshake"):
        types.extend(map(type_of, connection.events()))

    assert types == [T.AUTH_CHALLENGE, T.ERROR]


@pytest.mark.parametrize("role", list(Role))
def test_a_second_handshake_is_a_violation(role: Role) -> None:
    """CONNECT and CONNECTED come once."""
    name = "CONNECT" if role is Role.SERVER else "CONNECTED"

    assert violation_of(HELLO[role], role) == f"{name} came a second time"


@pytest.mark.parametrize("role", list(Role))
def test_the_other_sides_commands_are_violations(role: Role) -> None:
    """Responses are not for a server, requests not for a client."""
    other = Role.CLIENT if role is Role.SERVER else Role.SERVER
    for kind in set(ADMITTED[other]) - set(ADMITTED[role]):
        body = getattr(pb, BODIES[kind].message_type.name)

        text = f"{T.Name(kind)} must not be sent to a {role.value}"
        assert violation_of(long_frame(kind, body()), role) == text


def test_every_type_is_for_one_side_at_least() -> None:
    """No type of Pulsar's enum was forgotten: each is admitted or unsupported somewhere."""
    served = set(TO_SERVER) | set(TO_CLIENT) | {T.CONNECT, T.CONNECTED}

    assert set(T.values()) - served == set(range(70, 82))


def test_strangers_cannot_reserve_memory() -> None:
    """Before the handshake a frame of 128 KiB is the largest."""
    connection = Connection(Role.SERVER)
    connection.receive_data(struct.pack(">II", 5 * 1024 * 1024, 20))

    with pytest.raises(ProtocolError, match=f"is above the limit of {128 * 1024}$"):
        list(connection.events())


def test_a_client_adopts_the_servers_limit() -> None:
    """CONNECTED names the largest message; frames may be 10 KiB larger."""
    connection = Connection(Role.CLIENT, max_message_size_bytes=100_000)
    connection.receive_data(commands.connected("s", 21, 300_000))
    list(connection.events())
    big = commands.message_frame(1, 2, 3, 0, (), [bytes(300_000 + 10 * 1024 - 100)])
    connection.receive_data(b"".join(big))

    (event,) = connection.events()

    assert isinstance(event, Message)
    assert len(event.headers_and_payload) == 300_000 + 10 * 1024 - 100


# ---- limits ------------------------------------------------------------------------------------


def test_a_message_above_the_limit_is_refused_by_its_size_alone() -> None:
    """The message limit and 10 KiB is what a frame may have; one byte more is a violation."""
    limit = 1000 + 10 * 1024
    largest = b"".join(commands.send(1, 1, bytes(limit - 16)))
    assert len(largest) == limit

    assert len(events_of(largest, max_message_size_bytes=1000)) == 1
    error = violation_of(
        b"".join(commands.send(1, 1, bytes(limit - 15)))[:4], max_message_size_bytes=1000
    )

    assert error == f"frame of {limit + 1} bytes is above the limit of {limit}"


def test_a_servers_commands_are_limited_and_a_clients_are_not() -> None:
    """A request above 1 MiB is refused at its eighth byte; a topic list may be longer."""
    many = commands.frame(
        pb.CommandGetTopicsOfNamespaceResponse(request_id=1, topics=["x" * 1000] * 1500)
    )
    request = struct.pack(">II", 2**20 + 5, 2**20 + 1)

    assert len(events_of(many, Role.CLIENT)) == 1
    text = "command of {} bytes is above the limit of {}"
    assert violation_of(request) == text.format(2**20 + 1, 2**20)


def test_an_empty_command_is_a_violation() -> None:
    """A size of 0 closes the connection."""
    text = "totalSize {} cannot be a frame's sizes"
    assert violation_of(struct.pack(">I", 0)) == text.format(0)
    assert violation_of(struct.pack(">II", 4, 0)) == text.format(4)


# ---- commands that are none --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "number"),
    [(b"\x08\x00", 0), (b"\x08\x01", 1), (b"\x08\x29", 41), (b"\x08\x45", 69), (b"\x08\x52", 82)],
)
def test_unknown_types_are_violations_with_their_number(command: bytes, number: int) -> None:
    """A number that Pulsar never gave out is no command; it is not taken for CONNECT."""
    assert violation_of(raw_frame(command)) == f"unknown command type {number}"


def test_a_command_without_type_is_a_violation() -> None:
    """A body alone is no command."""
    assert violation_of(raw_frame(b"\x92\x01\x00")) == "command without type"


@pytest.mark.parametrize("number", range(70, 82))
def test_known_types_without_words_here_can_be_refused_politely(number: int) -> None:
    """What Pulsar knows and this project does not serve is an event, for one of the sides."""
    frame = raw_frame(bytes([8, number]) + b"\xb2\x04\x02\x08\x01")
    found: list[Any] = []
    for role in Role:
        connection = open_connection(role)
        connection.receive_data(frame)
        try:
            found += connection.events()
        except ProtocolError as error:
            assert "must not be sent to" in str(error)

    assert found == [Unsupported(number)]


@pytest.mark.parametrize("command", [b"\x08", b"\xff" * 20, b"\x0b", b"\x08\x06\x32\x05\x08"])
def test_bytes_that_are_no_protobuf_are_violations(command: bytes) -> None:
    """What cannot be parsed says how long it was."""
    text = f"command of {len(command)} bytes cannot be parsed"
    assert violation_of(raw_frame(command)) == text


@pytest.mark.parametrize("kind", [*TO_SERVER, T.CONNECT])
def test_a_type_without_its_body_is_a_violation(kind: Any) -> None:
    """The type promises a body; without it there is nothing to act on."""
    connection = Connection(Role.SERVER) if kind == T.CONNECT else open_connection()
    connection.receive_data(raw_frame(pb.BaseCommand(type=kind).SerializeToString()))

    with pytest.raises(ProtocolError, match=f"^{T.Name(kind)} lacks {BODIES[kind].name}$"):
        list(connection.events())


@pytest.mark.parametrize("kind", [*TO_SERVER, *TO_CLIENT])
def test_missing_required_fields_are_named(kind: int) -> None:
    """An empty body is a violation that names every required field of it."""
    role = Role.SERVER if kind in TO_SERVER else Role.CLIENT
    empty = getattr(pb, BODIES[kind].message_type.name)()
    required = empty.FindInitializationErrors()
    frame = long_frame(kind, empty)

    if not required:
        assert len(events_of(frame, role)) == 1
        return
    names = ", ".join(f"{BODIES[kind].name}.{name}" for name in required)
    assert violation_of(frame, role) == f"{T.Name(kind)} lacks {names}"


def test_missing_fields_of_nested_messages_are_named() -> None:
    """Required fields are required at every depth."""
    body = pb.CommandAck(
        consumer_id=1, ack_type=pb.CommandAck.Individual, message_id=[pb.MessageIdData(ledgerId=1)]
    )

    assert violation_of(long_frame(T.ACK, body)) == "ACK lacks ack.message_id[0].entryId"


def test_an_unknown_value_of_a_required_enum_is_missing() -> None:
    """A subscription type that does not exist is no subscription type."""
    body = pb.CommandSubscribe(
        topic="t",
        subscription="s",
        subType=pb.CommandSubscribe.Exclusive,
        consumer_id=1,
        request_id=1,
    ).SerializeToString()
    assert body.count(b"\x18\x00") == 1

    error = violation_of(raw_frame(_with_body(T.SUBSCRIBE, body.replace(b"\x18\x00", b"\x18\x63"))))

    assert error == "SUBSCRIBE lacks subscribe.subType"


def _with_body(kind: int, body: bytes) -> bytes:
    return bytes([8, kind, kind << 3 | 2, len(body)]) + body


@pytest.mark.parametrize(
    ("kind", "body", "path"),
    [
        (T.LOOKUP, pb.CommandLookupTopic(topic="~~", request_id=1), "topic"),
        (
            T.PRODUCER,
            pb.CommandProducer(
                topic="t",
                producer_id=1,
                request_id=1,
                metadata=[pb.KeyValue(key="k", value="v"), pb.KeyValue(key="k", value="~~")],
            ),
            "metadata.value",
        ),
        (
            T.ACK,
            pb.CommandAck(
                consumer_id=1,
                ack_type=pb.CommandAck.Individual,
                properties=[pb.KeyLongValue(key="~~", value=1)],
            ),
            "properties.key",
        ),
        (
            T.ADD_PARTITION_TO_TXN,
            pb.CommandAddPartitionToTxn(request_id=1, partitions=["good", "~~"]),
            "partitions",
        ),
    ],
)
def test_text_that_is_not_utf8_is_a_violation(kind: int, body: Any, path: str) -> None:
    """Strings must be text at every depth; the error names the field."""
    frame = long_frame(kind, body).replace(b"~~", b"\xff\xfe")

    assert violation_of(frame) == f"{T.Name(kind)}.{path} is not UTF-8"


def test_bytes_fields_may_hold_anything() -> None:
    """Bytes are not text: they are not judged."""
    body = pb.CommandGetSchema(request_id=1, topic="t", schema_version=b"\xff\xfe")

    (event,) = events_of(long_frame(T.GET_SCHEMA, body))

    assert event.body.schema_version == b"\xff\xfe"


@pytest.mark.parametrize("permits", [0, 2**31, 2**32 - 1])
def test_a_flow_must_permit_something(permits: int) -> None:
    """FLOW with no permits, or with what other brokers read as a negative number, is refused."""
    text = f"FLOW.messagePermits must not be {permits}"
    assert violation_of(commands.flow(1, permits)) == text


def test_a_request_with_more_properties_than_any_may_have_is_not_read() -> None:
    """It is refused by their number; a client reads lists of topics of any length."""
    body = pb.CommandProducer(topic="t", producer_id=1, request_id=1)
    body.metadata.extend([pb.KeyValue(key="", value="")] * 16_385)

    text = "PRODUCER.metadata has 16385 values; at most 16384 are allowed"
    assert violation_of(long_frame(T.PRODUCER, body)) == text
    del body.metadata[0]
    (event,) = events_of(long_frame(T.PRODUCER, body))
    assert len(event.body.metadata) == 16_384
    names = pb.CommandGetTopicsOfNamespaceResponse(request_id=1, topics=["x"] * 20_000)
    (answer,) = events_of(long_frame(T.GET_TOPICS_OF_NAMESPACE_RESPONSE, names), Role.CLIENT)
    assert len(answer.body.topics) == 20_000


# ---- after a violation -------------------------------------------------------------------------


def test_the_events_before_a_violation_come_first() -> None:
    """A loop over the events handles what was said before the violation."""
    connection = open_connection()
    connection.receive_data(commands.flow(1, 1) + commands.flow(2, 2) + HELLO[Role.SERVER])

    seen: list[int] = []
    with pytest.raises(ProtocolError, match="CONNECT came a second time"):
        seen.extend(map(consumer_of, connection.events()))

    assert seen == [1, 2]


def test_a_dead_connection_stays_dead() -> None:
    """After a violation every door raises the same error."""
    connection = open_connection()
    connection.receive_data(struct.pack(">I", 0) + commands.PING)
    with pytest.raises(ProtocolError) as caught:
        list(connection.events())

    for door in (
        lambda: list(connection.events()),
        lambda: connection.receive_data(commands.PING),
        connection.get_buffer,
    ):
        with pytest.raises(ProtocolError) as again:
            door()
        assert again.value is caught.value


# ---- both sides together -----------------------------------------------------------------------


def test_two_connections_understand_each_other() -> None:
    """A publish and its receipt, a subscription and its message, over a pair of connections."""
    server, client = Connection(Role.SERVER), Connection(Role.CLIENT)
    body = bytes(range(256)) * 20

    def say(receiver: Connection, data: bytes) -> list[Any]:
        receiver.receive_data(data)
        return list(receiver.events())

    (connect,) = say(server, commands.connect("c", protocol_version=20))
    (connected,) = say(client, commands.connected("s", connect.body.protocol_version, 5242880))
    (send,) = say(server, b"".join(commands.send(3, 7, body, num_messages=2)))
    receipt_frame = commands.send_receipt(send.command.producer_id, send.command.sequence_id, 1, 0)
    (receipt,) = say(client, receipt_frame)
    parts = [b"prefix", send.headers_and_payload]
    (message,) = say(client, b"".join(commands.message_frame(5, 1, 0, 0, (), parts)))

    assert connected.body.protocol_version == 20
    assert (send.command.num_messages, bytes(send.headers_and_payload)) == (2, body)
    assert (receipt.body.producer_id, receipt.body.sequence_id) == (3, 7)
    assert MessageId.from_data(message.command.message_id) == MessageId(1, 0)
    assert bytes(message.headers_and_payload) == b"prefix" + body
