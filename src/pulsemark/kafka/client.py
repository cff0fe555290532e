"""A client of Kafka's protocol that passes record sets on as bytes.

The codecs are those of `protocol`: kafka-python's, in the versions that the endpoint serves. A
`KafkaConnection` is a socket, with requests and answers in their order. A `KafkaCluster` finds each
partition's leader, and keeps one connection to each broker, in the highest version of each request
that both sides have. Use both from one thread only.

    with KafkaConnection("127.0.0.1", 9092) as connection:
        answer = connection.call(MetadataRequest, 4, topics=None)
"""

from __future__ import annotations

import socket
import ssl
import struct
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Self
from urllib.parse import urlsplit

from kafka.errors import for_code
from kafka.protocol.api_header import ResponseClassRegistry
from kafka.protocol.consumer import FetchRequest, ListOffsetsRequest
from kafka.protocol.producer import ProduceRequest

from ..client import (
    ClientError,
    ConnectionLostError,
    ServiceUrlError,
    UnreachableError,
    WaitTimeoutError,
)
from .protocol import (
    API_VERSIONS,
    APIS,
    DECODE_ERRORS,
    LIST_OFFSETS,
    METADATA,
    PRODUCE,
    SASL_AUTHENTICATE,
    SASL_HANDSHAKE,
)
from .sasl import OAUTHBEARER, PLAIN, SEPARATOR

FETCH = 1
UNKNOWN_TOPIC = 3
READ_COMMITTED = 1
EARLIEST_TIME, LATEST_TIME = -2, -1
DEFAULT_PORT = 9092
_LEAST = {FETCH: 4, PRODUCE: 3, LIST_OFFSETS: 2, METADATA: 4}
"""The versions with which Kafka 0.11 began: batches of magic 2, transactions."""
_SIZE = struct.Struct(">i")
_READ_BYTES = 256 * 1024
MAX_ANSWER_BYTES = 128 * 1024 * 1024
"""A Kafka takes requests of 100 MiB, so there may be a set of nearly that size."""
_SCHEMES = ("kafka", "kafka+ssl")


class KafkaRefusedError(ClientError):
    """A Kafka broker answered ``what`` with an error: its ``code`` and name."""

    def __init__(self, what: str, code: int) -> None:
        super().__init__(f"{what}: {_name(code)} ({code})")
        self.what = what
        self.code = code


def check(code: int, what: str) -> None:
    """Raise ConnectionLostError for a transient error, KafkaRefusedError for another one."""
    if code:
        if for_code(code).retriable:
            raise ConnectionLostError(f"{what}: {_name(code)} ({code})")
        raise KafkaRefusedError(what, code)


def _name(code: int) -> str:
    return str(for_code(code).__name__.removesuffix("Error"))


class KafkaConnection:
    """A connection to a Kafka broker. Raises OSError if none listens."""

    def __init__(
        self,
        host: str,
        port: int,
        *,
        timeout_s: float = 30.0,
        ssl_context: ssl.SSLContext | None = None,
    ) -> None:
        self._timeout_s = timeout_s
        self._socket = socket.create_connection((host, port), timeout_s)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if ssl_context is not None:
            self._socket = ssl_context.wrap_socket(self._socket, server_hostname=host)
        self._input = bytearray()
        self._correlation_id = 0
        self._versions: dict[int, tuple[int, int]] = {}
        self._asked: deque[tuple[int, Any, int]] = deque()
        """Of each request without an answer: its correlation id, its kind, its version."""
        self._answers: dict[int, Any] = {}
        self._dropped: set[int] = set()
        self.is_closed = False

    def close(self) -> None:
        """End the connection."""
        self.is_closed = True
        self._socket.close()

    def fileno(self) -> int:
        """The socket's descriptor."""
        return self._socket.fileno()

    def detach(self) -> socket.socket:
        """The socket. The caller must close it."""
        return self._socket

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def send_bytes(self, data: bytes) -> None:
        """Send bytes as they are."""
        self._socket.sendall(data)

    def receive_frame(self) -> bytes:
        """The next answer, without its size. Raises ConnectionLostError, TimeoutError."""
        while (frame := self._frame()) is None:
            self._receive()
        return frame

    def _frame(self) -> bytes | None:
        if len(self._input) < _SIZE.size:
            return None
        (size_bytes,) = _SIZE.unpack_from(self._input)
        if not 0 <= size_bytes <= MAX_ANSWER_BYTES:
            raise ConnectionError(f"an answer of {size_bytes} bytes")
        end = _SIZE.size + size_bytes
        if len(self._input) < end:
            return None
        frame = bytes(memoryview(self._input)[_SIZE.size : end])
        del self._input[:end]
        return frame

    def _receive(self) -> None:
        received = self._socket.recv(_READ_BYTES)
        if not received:
            raise ConnectionLostError("an answer")
        self._input += received

    def send(self, request: Any, version: int, **fields: Any) -> int:
        """Send a request of kafka-python's. Return its correlation id."""
        self._correlation_id += 1
        made = request(version=version, **fields)
        made.with_header(self._correlation_id, "pulsemark")
        self.send_bytes(made.encode(header=True, framed=True))
        return self._correlation_id

    def receive(self, request: Any, version: int) -> tuple[int, Any]:
        """The next answer, decoded for this request: correlation id and body."""
        return _decoded(self.receive_frame(), request, version)

    def call(self, request: Any, version: int, **fields: Any) -> Any:
        """Send a request and return its answer. Raises ConnectionError if the broker closes."""
        sent = self.send(request, version, **fields)
        correlation_id, answer = self.receive(request, version)
        if correlation_id != sent:
            raise ConnectionError(f"answer {correlation_id} for request {sent}")
        return answer

    def learn_versions(self) -> None:
        """Ask for the broker's versions. Raises ConnectionLostError, TimeoutError."""
        answer = self.call(APIS[API_VERSIONS].request, 0)
        self._versions = {
            each.api_key: (each.min_version, each.max_version) for each in answer.api_keys
        }

    def ask(self, key: int, **fields: Any) -> int:
        """Send a request. Return its correlation id. Raises KafkaRefusedError: no version."""
        api = APIS[key]
        lowest, highest = self._versions.get(key, (0, -1))
        version = min(highest, api.highest)
        if version < max(lowest, _LEAST.get(key, 0)):
            raise KafkaRefusedError(f"{api.name} in versions {lowest} to {highest}", 35)
        try:
            sent = self.send(api.request, version, **fields)
        except OSError as error:
            raise self._lost(error) from error
        self._asked.append((sent, api.request, version))
        return sent

    def answer(self, correlation_id: int) -> Any | None:
        """The answer to a request; None until it arrives. Raises ConnectionLostError."""
        try:
            self._read_answers(0, lambda: not self._asked)
        except (BlockingIOError, ssl.SSLWantReadError):
            self._socket.settimeout(self._timeout_s)
        except OSError as error:
            raise self._lost(error) from error
        return self._answers.pop(correlation_id, None)

    def wait(self, correlation_id: int, timeout_s: float | None = None) -> Any:
        """Wait for the answer to a request. Raises ConnectionLostError, WaitTimeoutError."""
        timeout_s = self._timeout_s if timeout_s is None else timeout_s
        try:
            self._read_answers(timeout_s, lambda: correlation_id in self._answers)
        except TimeoutError as error:
            self.close()
            raise WaitTimeoutError("answer of a Kafka", timeout_s) from error
        except OSError as error:
            raise self._lost(error) from error
        return self._answers.pop(correlation_id)

    def drop(self, correlation_id: int) -> None:
        """Drop the answer to a request when it comes."""
        if self._answers.pop(correlation_id, None) is None:
            self._dropped.add(correlation_id)

    def _read_answers(self, timeout_s: float, is_enough: Callable[[], bool]) -> None:
        """Read answers until `is_enough()`. Raises OSError."""
        self._socket.settimeout(timeout_s)
        while not is_enough():
            self._receive()
            self._take_answers()
        self._socket.settimeout(self._timeout_s)

    def _take_answers(self) -> None:
        while (frame := self._frame()) is not None:
            if not self._asked:
                raise ConnectionError("an answer to no request")
            sent, request, version = self._asked.popleft()
            correlation_id, answer = _decoded(frame, request, version)
            if correlation_id != sent:
                raise ConnectionError(f"answer {correlation_id} for request {sent}")
            if sent in self._dropped:
                self._dropped.remove(sent)
            else:
                self._answers[sent] = answer

    def _lost(self, error: OSError) -> ConnectionLostError:
        self.close()
        if isinstance(error, ConnectionLostError):
            return error
        return ConnectionLostError(f"an answer: {error}")


def _decoded(frame: bytes, request: Any, version: int) -> tuple[int, Any]:
    """An answer's correlation id and body. Raises ConnectionError for malformed bytes."""
    response = ResponseClassRegistry._response_class_registry[request.API_KEY]
    try:
        (correlation_id,) = _SIZE.unpack_from(frame)
        return correlation_id, response.decode(frame, version=version, header=True)
    except DECODE_ERRORS as error:
        raise ConnectionError(f"{response.__name__} cannot be decoded: {error}") from error


def only(topics: Any, of_topic: str = "partitions") -> Any:
    """The single partition of an answer. Raises ConnectionLostError if it has none or several."""
    try:
        ((partition,),) = (getattr(topic, of_topic) for topic in topics)
    except (TypeError, ValueError) as error:
        raise ConnectionLostError("an answer about one partition") from error
    return partition


class KafkaCluster:
    """The brokers behind `kafka://[USER@]HOST:PORT[,HOST:PORT...]`, or `kafka+ssl://...`.

    Args:
        url: of one or several brokers; the first that answers names the others.
        ssl_context: for `kafka+ssl`; None trusts what the machine trusts.
        token: a secret for SASL: the user's password (PLAIN) if the URL names a user, else the
            token of OAUTHBEARER. None: no SASL.

    Raises ServiceUrlError. Nothing is connected yet.
    """

    def __init__(
        self, url: str, *, ssl_context: ssl.SSLContext | None = None, token: str | None = None
    ) -> None:
        self.url = url
        self._user, self._hosts, is_tls = _parsed(url)
        self._ssl_context = (ssl_context or ssl.create_default_context()) if is_tls else None
        self._token = token
        self._open: dict[tuple[str, int], KafkaConnection] = {}

    def topics(self) -> dict[str, int]:
        """The number of partitions of each topic, without internal topics."""
        found = self._metadata(None).topics
        return {each.name: len(each.partitions) for each in found if not each.is_internal}

    def partitions(self, topic: str) -> int:
        """The number of a topic's partitions; 0: there is no such topic."""
        return len(self._described(topic)[0])

    def leader(self, topic: str, partition: int) -> KafkaConnection | None:
        """The connection to a partition's leader; None: there is no such partition.

        Raises UnreachableError or ConnectionLostError if there is no leader now.
        """
        partitions, brokers = self._described(topic)
        for each in partitions:
            if each.partition_index == partition:
                check(each.error_code, f"the leader of {topic}-{partition}")
                return self._connected(
                    [(b.host, b.port) for b in brokers if b.node_id == each.leader_id]
                )
        return None

    def _described(self, topic: str) -> tuple[Any, Any]:
        """A topic's partitions (none for an unknown topic), and the brokers."""
        answer = self._metadata([topic])
        if len(answer.topics) != 1:
            raise ConnectionLostError(f"an answer about {topic}")
        (found,) = answer.topics
        if found.error_code != UNKNOWN_TOPIC:
            check(found.error_code, f"topic {topic}")
        return found.partitions, answer.brokers

    def open_connections(self) -> Iterator[KafkaConnection]:
        """The connections that are open now."""
        return (each for each in tuple(self._open.values()) if not each.is_closed)

    def ping(self, timeout_s: float) -> None:
        """Check that each broker answers. Raises WaitTimeoutError, ConnectionLostError."""
        for connection in self.open_connections():
            connection.wait(connection.ask(METADATA, **_metadata_fields([])), timeout_s)

    def close(self) -> None:
        """Close all connections. A later call connects again."""
        for connection in self._open.values():
            connection.close()
        self._open.clear()

    def _metadata(self, topics: list[str] | None) -> Any:
        connection = self._connected(self._hosts)
        return connection.wait(connection.ask(METADATA, **_metadata_fields(topics)))

    def _connected(self, addresses: list[tuple[str, int]]) -> KafkaConnection:
        """Connect to the first of these brokers that answers."""
        for address in addresses:
            if (known := self._open.get(address)) is not None and not known.is_closed:
                return known
        reason = "no broker"
        for host, port in addresses:
            try:
                self._open[host, port] = made = self._made(host, port)
            except (OSError, UnicodeError) as error:  # also a host that cannot be asked for
                reason = getattr(error, "strerror", None) or str(error)
            else:
                return made
        names = ",".join(f"{host}:{port}" for host, port in addresses)
        raise UnreachableError(f"{self.url.partition('://')[0]}://{names}", reason)

    def _made(self, host: str, port: int) -> KafkaConnection:
        connection = KafkaConnection(host, port, ssl_context=self._ssl_context)
        try:
            connection.learn_versions()
            if self._token is not None:
                self._log_in(connection, self._token)
        except BaseException:
            connection.close()
            raise
        return connection

    def _log_in(self, connection: KafkaConnection, token: str) -> None:
        mechanism = OAUTHBEARER if self._user is None else PLAIN
        text = f"\0{self._user}\0{token}"
        if self._user is None:
            text = f"n,,{SEPARATOR}auth=Bearer {token}{SEPARATOR}{SEPARATOR}"
        answer = connection.wait(connection.ask(SASL_HANDSHAKE, mechanism=mechanism))
        check(answer.error_code, f"SASL {mechanism}")
        answer = connection.wait(connection.ask(SASL_AUTHENTICATE, auth_bytes=text.encode()))
        check(answer.error_code, f"SASL {mechanism}")


def _parsed(url: str) -> tuple[str | None, list[tuple[str, int]], bool]:
    """Parse a URL: user, brokers, and whether TLS is used. Raises ServiceUrlError."""
    scheme, _, rest = url.partition("://")
    if scheme not in _SCHEMES:
        raise ServiceUrlError(url, f"it must begin with {' or '.join(_SCHEMES)}")
    user, _, addresses = rest.rstrip("/").rpartition("@")
    hosts = []
    for address in addresses.split(","):
        try:
            split = urlsplit(f"//{address}")
            port = DEFAULT_PORT if split.port is None else split.port
        except ValueError as error:
            raise ServiceUrlError(url, str(error)) from error
        if not split.hostname or split.path or split.query:
            raise ServiceUrlError(url, f"{address!r} is not HOST:PORT")
        hosts.append((split.hostname, port))
    return user or None, hosts, scheme == "kafka+ssl"


def _metadata_fields(topics: list[str] | None) -> dict[str, Any]:
    named = None
    if topics is not None:
        named = [APIS[METADATA].request.MetadataRequestTopic(name=each) for each in topics]
    return {"topics": named, "allow_auto_topic_creation": False}


def produce_fields(sets: Sequence[tuple[str, int, bytes | None]], acks: int) -> dict[str, Any]:
    """The fields of a Produce request with these sets: topic, partition, records."""
    made = ProduceRequest.TopicProduceData
    topics = [
        made(name=topic, partition_data=[made.PartitionProduceData(index=index, records=records)])
        for topic, index, records in sets
    ]
    return {"transactional_id": None, "acks": acks, "timeout_ms": 30_000, "topic_data": topics}


def fetch_fields(
    asked: Sequence[tuple[str, int, int, int, int]],
    max_wait_ms: int,
    min_bytes: int,
    max_bytes: int,
    isolation_level: int = 0,
) -> dict[str, Any]:
    """The fields of a Fetch request: topic, partition, offset, most bytes, leader epoch."""
    made = FetchRequest.FetchTopic
    part = made.FetchPartition
    topics = [
        made(
            topic=topic,
            partitions=[
                part(
                    partition=index,
                    current_leader_epoch=epoch,
                    fetch_offset=offset,
                    partition_max_bytes=most,
                )
            ],
        )
        for topic, index, offset, most, epoch in asked
    ]
    return {
        "max_wait_ms": max_wait_ms,
        "min_bytes": min_bytes,
        "max_bytes": max_bytes,
        "isolation_level": isolation_level,
        "topics": topics,
        "forgotten_topics_data": [],
    }


def list_offsets_fields(
    topic: str, partition: int, time_ms: int, isolation_level: int = 0
) -> dict[str, Any]:
    """The fields of a ListOffsets request for one partition."""
    made = ListOffsetsRequest.ListOffsetsTopic
    wanted = made.ListOffsetsPartition(
        partition_index=partition, current_leader_epoch=-1, timestamp=time_ms
    )
    topics = [made(name=topic, partitions=[wanted])]
    return {"replica_id": -1, "isolation_level": isolation_level, "topics": topics}
