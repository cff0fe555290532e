"""`pulsemark produce TOPIC` publishes messages, and `pulsemark consume TOPIC` receives them.

    pulsemark produce orders --message paid --key 42 --property shop=north
    tail -f app.log | pulsemark produce logs
    pulsemark consume orders --subscription billing --num-messages 10
    pulsemark consume orders --peek --from earliest

`produce` sends messages one by one, without a batch and without compression; each is acknowledged
before the next result is printed. Without --message every line of standard input is a message.

`consume` acknowledges each message of its subscription when it is printed. With --peek nothing is
subscribed to and acknowledged: the messages are read from where --from says.

Both speak Pulsar's protocol, with any broker of it.
"""

from __future__ import annotations

import argparse
import struct
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack

from .. import metadata
from ..client import RawConsumer, RawMessage, RawProducer, Service
from ..client.errors import ClientError, ServiceUrlError, WaitTimeoutError
from ..metadata.compression import CompressionUnavailableError, DecompressionError
from ..proto.pulsar_api_pb2 import CommandSubscribe
from ..wire import MessageId, pack_ack_set, unpack_ack_set
from .brokers import SERVICE, logs_of, service_of
from .options import JSON, TOPIC, declared, full_topic, not_negative, parse_time, show_time
from .output import counted, escaped, json_line
from .parsing import CliError, Command


def _produce(args: argparse.Namespace) -> int:
    """Publish, and print where the messages were stored."""
    topic, template = full_topic(args.topic), _template(args)
    count = 0
    with service_of(args) as service, ExitStack() as stack:
        logs = logs_of(service, topic, create=True)
        producers = [stack.enter_context(RawProducer(service, log)) for log in logs]
        for value in _values(args):
            producer = producers[_partition(args.key, count, len(producers))]
            producer.publish(_entry(template, value, producer.name, count))
            count += 1
            for receipt in producer.flush():
                if args.json:
                    place = f"{receipt.ledger_id}:{receipt.entry_id}"
                    print(json_line({"topic": producer.topic, "position": place}), flush=True)
    if not args.json:
        print(f"published {counted(count, 'message')} to {topic}")
    return 0


def _entry(template: metadata.MessageMetadata, value: bytes, name: str, number: int) -> bytes:
    message = metadata.MessageMetadata()
    message.CopyFrom(template)
    message.producer_name = name
    message.sequence_id = number
    message.publish_time = time.time_ns() // 1_000_000
    return metadata.pack_message(message, value)


def _partition(key: str | None, number: int, partitions: int) -> int:
    """The partition of a key by its Java hash; without a key, one after another."""
    if key is None:
        return number % partitions
    code = 0
    for unit in struct.unpack(f"<{len(key.encode('utf-16-le')) // 2}H", key.encode("utf-16-le")):
        code = (31 * code + unit) & 0xFFFFFFFF
    return (code & 0x7FFFFFFF) % partitions


def _template(args: argparse.Namespace) -> metadata.MessageMetadata:
    template = metadata.MessageMetadata()
    if args.key is not None:
        template.partition_key = args.key
    for pair in args.property or ():
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise CliError(f"--property {pair!r} is not of the form NAME=VALUE")
        template.properties.add(key=name, value=value)
    if args.event_time is not None:
        template.event_time = parse_time(args.event_time)
    if args.deliver_at is not None:
        template.deliver_at_time = parse_time(args.deliver_at)
    return template


def _values(args: argparse.Namespace) -> Iterator[bytes]:
    if args.message is not None:
        for _ in range(args.num_produce):
            yield from (text.encode(errors="surrogateescape") for text in args.message)
        return
    if args.num_produce != 1:
        raise CliError("--num-produce needs --message")
    for line in sys.stdin.buffer:
        yield line.rstrip(b"\n")


SUB_TYPES = {
    "exclusive": CommandSubscribe.Exclusive,
    "shared": CommandSubscribe.Shared,
    "failover": CommandSubscribe.Failover,
    "key_shared": CommandSubscribe.Key_Shared,
}
#: A reader's places before the first and after the last message.
FIRST, LAST = MessageId(-1, -1), MessageId(2**63 - 1, 2**63 - 1)
PERMITS = 100
POLL_S = 0.1


def _consume(args: argparse.Namespace) -> int:
    """Receive and print; 1 if fewer messages came than were asked for."""
    topic = full_topic(args.topic)
    if args.subscription is not None and not args.subscription.strip():
        raise CliError("--subscription must not be empty")
    wanted, printed = args.num_messages or sys.maxsize, 0
    with service_of(args) as service:
        logs = logs_of(service, topic, create=not args.peek)
        if args.start is None:
            what = "--peek begins" if args.peek else "a new subscription begins"
            note = f"pulsemark: {what} at the end and waits; --from earliest shows what is there"
            print(note, file=sys.stderr)
        consumers = [_subscribed(service, log, args) for log in logs]
        for consumer, received in _received(consumers, args.timeout):
            size = metadata.read_message_metadata(
                received.headers_and_payload
            ).num_messages_in_batch
            words = received.command.ack_set  # none: no message of the batch is acknowledged
            left = unpack_ack_set(words, size) if words else range(-1, size)
            messages = [
                message
                for message in metadata.messages_of(received.headers_and_payload)
                if message.batch_index in left
            ]
            shown = messages[: wanted - printed]
            for message in shown:
                _print(received, message, topic=consumer.topic, as_json=args.json)
            printed += len(shown)
            if not args.peek:
                rest = pack_ack_set(each.batch_index for each in messages[len(shown) :])
                consumer.ack(received.message_id._replace(ack_set=rest))
            consumer.flow(size)  # a batch uses up a permit for each of its messages
            if printed >= wanted:
                return 0
    if not args.num_messages:
        return 0
    print(f"pulsemark: {printed:,} of {counted(wanted, 'message')} came", file=sys.stderr)
    return 1


def _subscribed(service: Service, log: str, args: argparse.Namespace) -> RawConsumer:
    start = FIRST if args.start == "earliest" else LAST
    consumer = service.connection(log).subscribe(
        log,
        args.subscription or f"pulsemark-peek-{time.time_ns()}",
        sub_type=SUB_TYPES[args.subscription_type],
        earliest=args.start == "earliest",
        durable=not args.peek,
        start_message_id=start if args.peek else None,
    )
    consumer.flow(PERMITS)
    return consumer


def _received(
    consumers: list[RawConsumer], timeout_s: float | None
) -> Iterator[tuple[RawConsumer, RawMessage]]:
    """Messages as they come; ends when none has come for `timeout_s`."""
    last_s = time.monotonic()
    while timeout_s is None or time.monotonic() - last_s < timeout_s:
        for consumer in consumers:
            if consumer.is_closed:
                consumer.resubscribe()
                consumer.flow(PERMITS)
            try:
                received = consumer.receive(POLL_S / len(consumers))
            except WaitTimeoutError:
                continue
            yield consumer, received
            last_s = time.monotonic()


def _print(received: RawMessage, message: metadata.Message, *, topic: str, as_json: bool) -> None:
    place = received.message_id
    position = f"{place.ledger_id}:{place.entry_id}"
    if message.batch_index >= 0:
        position += f":{message.batch_index}"
    value = None if message.value is None else message.value.decode(errors="backslashreplace")
    if as_json:
        fields = {
            "topic": topic, "position": position, "publish_time_ms": message.publish_time_ms,
            "event_time_ms": message.event_time_ms, "key": message.key,
            "properties": message.properties, "value": value,
            "redeliveries": received.command.redelivery_count,
        }  # fmt: skip
        print(json_line(fields), flush=True)
        return
    parts = [f"{position:>12}", show_time(message.publish_time_ms)]
    if message.key is not None:
        parts.append(f"key={escaped(message.key)}")
    parts += [escaped(f"{name}={text}") for name, text in message.properties.items()]
    print("  ".join([*parts, "null" if value is None else escaped(value)]), flush=True)


ERRORS = (ClientError, ServiceUrlError, OSError)
_PRODUCE = declared(f"""{TOPIC}
-m, --message TEXT...  a message; may be given several times (default: the lines of standard input)
-k, --key KEY  partition key of all messages
-p, --property NAME=VALUE...  a property of all messages; may be given several times
--event-time TIME  event time of all messages
--deliver-at TIME  delivered not before this time
-n, --num-produce N [1]  publish all messages so many times (default: 1)
{SERVICE}{JSON}""")
_CONSUME = declared(
    f"""{TOPIC}
exactly one of:
-s, --subscription NAME
--peek  without a subscription of one's own
and:
-t, --subscription-type TYPE [exclusive]  one of {", ".join(SUB_TYPES)} (default: exclusive)
--from=start {{earliest,latest}}  where a new subscription, or --peek, begins (default: latest)
-n, --num-messages N [1]  end after so many messages; 0: never (default: 1)
--timeout SECONDS  end if none comes for so long
{SERVICE}{JSON}""",
    subscription_type=SUB_TYPES,
    num_messages=not_negative,
)
COMMANDS = {
    "produce": Command(ERRORS, _PRODUCE, _produce),
    "consume": Command(
        (*ERRORS, metadata.MessageFormatError, DecompressionError, CompressionUnavailableError),
        _CONSUME,
        _consume,
    ),
}
