"""The commands of a fuzzing client: valid, mutated and hostile, chosen with a seed.

Names and ids come from small pools, so that clients often use the same topic, producer name,
subscription or id.
"""

from __future__ import annotations

import struct
from random import Random

from fuzz_shapes import TOPICS as OTHER_TOPICS
from fuzz_shapes import any_command, any_request

from pulsemark.proto import pulsar_api_pb2 as pb
from pulsemark.testing.raw_messages import batched_message, unbatched_message
from pulsemark.wire import MessageId, commands

TOPICS = [f"persistent://public/default/f{number}" for number in range(4)]
SUBSCRIPTIONS = ["s0", "s1", "s2"]
PRODUCERS = ["p0", "p1", None]
TYPES = [
    pb.CommandSubscribe.Exclusive,
    pb.CommandSubscribe.Shared,
    pb.CommandSubscribe.Failover,
    pb.CommandSubscribe.Key_Shared,
]
POSITIONS = [pb.CommandSubscribe.Latest, pb.CommandSubscribe.Earliest]
MODES = [pb.Shared, pb.Exclusive, pb.WaitForExclusive, pb.ExclusiveWithFencing]
#: Patterns of topics: of some, of all, invalid, too slow.
PATTERNS = ["persistent://public/default/f[01].*", ".*", "[", "(a+)+b"]
TRANSACTIONS = [pb.CommandNewTxn, pb.CommandEndTxn]
HUGE = [0, 1, 2**31 - 1, 2**63 - 1, 2**64 - 1]


class Sender:
    """The commands of one connection."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.request_id = 0
        #: Ids that the broker sent, newest last.
        self.known: list[MessageId] = []
        #: Ids that this client opened: most commands use them.
        self.producers: list[int] = []
        self.consumers: list[int] = []

    def next_bytes(self) -> bytes:
        """One command, sometimes broken, or several."""
        data = self.command()
        chance = self.random.random()
        if chance < 0.02:
            data = self.mutated(data)
        elif chance < 0.025:
            data = data[: self.random.randrange(len(data))]
        elif chance < 0.03:
            data = self.random.randbytes(self.random.randrange(1, 200))
        elif chance < 0.035:
            size = self.random.choice([0, 4, 5, 1 << 20, 6 << 20, 2**32 - 1])
            data = struct.pack(">II", size, self.random.choice([0, 1, size])) + data
        return data

    def mutated(self, data: bytes) -> bytes:
        """The command with some bytes changed."""
        changed = bytearray(data)
        for _ in range(self.random.randint(1, 4)):
            changed[self.random.randrange(len(changed))] = self.random.randrange(256)
        return bytes(changed)

    def command(self) -> bytes:
        """A command of any kind."""
        if not self.producers:
            return self.producer()
        kinds = [
            self.producer,
            self.subscribe,
            self.send,
            self.flow,
            self.ack,
            self.small,
            self.any,
        ]
        return self.random.choices(kinds, weights=[3, 3, 6, 4, 4, 6, 3])[0]()

    def any(self) -> bytes:
        """A command of any type, with random fields; ends most connections."""
        return any_command(self.random)

    def _request(self) -> int:
        self.request_id += 1
        return self.request_id

    def _id(self) -> int:
        return self.random.randrange(4)

    def _one_of(self, ids: list[int]) -> int:
        return self.random.choice(ids) if ids and self.random.random() < 0.98 else self._id()

    def _topic(self) -> str:
        if self.random.random() < 0.03:
            return self.random.choice(
                ["", "persistent://a/b", TOPICS[0] + "-partition-1", "x" * 999]
            )
        return self.random.choice(TOPICS if self.random.random() < 0.8 else OTHER_TOPICS)

    def _position(self) -> MessageId:
        random = self.random
        if self.known and random.random() < 0.7:
            return random.choice(self.known[-50:])
        return MessageId(random.choice([0, 1, 5, *HUGE]), random.choice([0, 3, *HUGE]))

    def producer(self) -> bytes:
        """PRODUCER in any access mode."""
        random = self.random
        epoch = random.choice([None, 0, 1])
        if random.random() < 0.02:
            epoch = 2**64 - 1
        number = self._id()
        self.producers.append(number)
        return commands.producer(
            self._topic(),
            number,
            self._request(),
            producer_name=random.choice(PRODUCERS),
            epoch=random.choice([0, 0, 1, 5]),
            access_mode=random.choice(MODES),
            topic_epoch=epoch,
            initial_subscription_name=random.choice([None, None, "s0"]),
            schema=self._schema(),
        )

    def _schema(self) -> pb.Schema | None:
        if self.random.random() < 0.9:
            return None
        data = b'{"type":"string"}' + self.random.randbytes(2)
        return pb.Schema(
            name="s", schema_data=data, type=self.random.choice([pb.Schema.Json, pb.Schema.String])
        )

    def subscribe(self) -> bytes:
        """SUBSCRIBE of any type."""
        random = self.random
        durable = random.random() < 0.8
        kind = random.choice(TYPES)
        meta = None
        if kind == pb.CommandSubscribe.Key_Shared and random.random() < 0.5:
            start = random.choice([0, 100, 65_535, 70_000])
            meta = pb.KeySharedMeta(
                keySharedMode=random.choice([pb.KeySharedMode.AUTO_SPLIT, pb.KeySharedMode.STICKY]),
                hashRanges=[pb.IntRange(start=start, end=random.choice([start, 65_535, 10]))],
            )
        number = self._id()
        self.consumers.append(number)
        return commands.subscribe(
            self._topic(),
            random.choice(SUBSCRIPTIONS),
            number,
            self._request(),
            kind,
            consumer_name=random.choice([None, "a", "b", "a\0b"]),
            consumer_epoch=random.choice([None, 0, 2**63]),
            durable=durable,
            priority_level=random.choice([None, 0, 1]),
            start_message_id=None if durable else self._position(),
            initial_position=random.choice(POSITIONS),
            keySharedMeta=meta,
            schema=self._schema(),
            subscription_properties=random.choice([None, {"a": "b"}]),
        )

    def send(self) -> bytes:
        """SEND of a message, a batch, or random bytes."""
        random = self.random
        number, count = random.randrange(2**20), random.choice([1, 1, 1, 0, -1, 3, 2**31 - 1])
        body = random.randbytes(random.choice([0, 10, 1000, 20_000]))
        chance = random.random()
        if chance < 0.6:
            entry = unbatched_message(
                body,
                publish_time_ms=random.choice([1, 1_700_000_000_000, 2**63]),
                key=random.choice([None, "a", "b", "c"]),
                deliver_at_time=2**40 if random.random() < 0.1 else None,
            )
            count = 1 if chance < 0.5 else count
        elif chance < 0.85:
            count = 3
            entry = batched_message([b"a", b"b", body], publish_time_ms=1)
        else:
            entry = body
        parts = commands.send(self._one_of(self.producers), number, entry, num_messages=count)
        return b"".join(bytes(part) for part in parts)

    def flow(self) -> bytes:
        """FLOW of some permits, or of the largest possible number."""
        return commands.flow(
            self._one_of(self.consumers), self.random.choice([1, 10, 1000, 2**31 - 1])
        )

    def ack(self) -> bytes:
        """ACK of received ids, and of others."""
        random = self.random
        ids = [self._position() for _ in range(random.choice([1, 1, 5, 50]))]
        if random.random() < 0.1:
            first = ids[0]
            ids = [MessageId(first.ledger_id, n) for n in range(0, 20_000, 2)]
        kind = random.choice([pb.CommandAck.Individual, pb.CommandAck.Cumulative])
        return commands.ack(
            self._one_of(self.consumers),
            ids,
            kind,
            request_id=random.choice([None, self._request()]),
        )

    def small(self) -> bytes:
        """One of the other requests."""
        random, number, topic = self.random, self._id(), self._topic()
        request = self._request()
        choices = [
            lambda: commands.close_producer(number, request),
            lambda: commands.close_consumer(number, request),
            lambda: commands.unsubscribe(number, request, force=random.random() < 0.5),
            lambda: commands.seek(number, request, message_id=self._position()),
            lambda: commands.seek(number, request, publish_time_ms=random.choice(HUGE)),
            lambda: commands.redeliver_unacknowledged_messages(number),
            lambda: commands.redeliver_unacknowledged_messages(number, [self._position()]),
            lambda: commands.get_last_message_id(number, request),
            lambda: commands.consumer_stats(number, request),
            lambda: commands.lookup(topic, request),
            lambda: commands.partitioned_metadata(topic, request),
            lambda: commands.get_topics_of_namespace("public/default", request),
            lambda: commands.watch_topic_list(
                "public/default", request, number, random.choice(PATTERNS)),
            lambda: commands.watch_topic_list_close(request, number),
            lambda: commands.frame(random.choice(TRANSACTIONS)(request_id=request)),
            lambda: commands.get_topics_of_namespace(
                "public/default", request, topics_pattern=random.choice(PATTERNS)),
            lambda: commands.get_schema(topic, request),
            lambda: commands.get_or_create_schema(topic, request, pb.Schema(
                name="s", schema_data=random.randbytes(20), type=pb.Schema.Json)),
            lambda: commands.PING,
            lambda: commands.PONG,
        ]  # fmt: skip
        return random.choice(choices)()


def http_request(random: Random) -> tuple[str, str, bytes]:
    """A request of the admin interface: method, path, body."""
    if random.random() < 0.5:
        return any_request(random)
    topic = "/admin/v2/" + random.choice(TOPICS).replace("://", "/")
    subscription = f"{topic}/subscription/{random.choice(SUBSCRIPTIONS)}"
    force = random.choice(["", "?force=true"])
    return random.choice(
        [
            ("PUT", topic, b""),
            ("DELETE", topic + force, b""),
            ("PUT", f"{topic}/unload", b""),
            ("PUT", f"{topic}/partitions", b"2"),
            ("DELETE", f"{topic}/partitions{force}", b""),
            ("GET", f"{topic}/stats", b""),
            ("GET", f"{topic}/internalStats", b""),
            ("PUT", subscription, b""),
            ("DELETE", subscription + force, b""),
            ("POST", f"{subscription}/skip_all", b""),
            ("POST", f"{subscription}/skip/{random.choice([1, 1000])}", b""),
            ("POST", f"{subscription}/resetcursor/{random.choice([0, 2**40])}", b""),
            ("POST", f"{subscription}/resetcursor", b'{"ledgerId":0,"entryId":-1}'),
            ("GET", "/metrics", b""),
            ("GET", f"/{random.randbytes(5).hex()}", b""),
            ("POST", topic, random.randbytes(50)),
        ]
    )
