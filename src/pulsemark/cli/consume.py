"""`pulsemark consume TOPIC`: receive messages, or look at them without a subscription.

    pulsemark consume orders --subscription billing --num-messages 10
    pulsemark consume orders --peek --from earliest

With a subscription each message is acknowledged when it is printed. With --peek nothing is
subscribed to and acknowledged: the messages are read from where --from says.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator

from ..client import RawConsumer, RawMessage, Service
from ..client.errors import ClientError, ServiceUrlError, WaitTimeoutError
from ..metadata import Message, MessageFormatError, messages_of
from ..metadata.compression import CompressionUnavailableError, DecompressionError
from ..proto.pulsar_api_pb2 import CommandSubscribe
from ..wire import MessageId
from .brokers import add_service, logs_of, service_of
from .errors import CliError
from .options import add_json, counted, escaped, full_topic, json_line, not_negative
from .times import show_time

ERRORS = (
    ClientError, ServiceUrlError, MessageFormatError, DecompressionError,
    CompressionUnavailableError, OSError,
)  # fmt: skip
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


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("topic", metavar="TOPIC", help="short or full name")
    who = parser.add_mutually_exclusive_group(required=True)
    who.add_argument("-s", "--subscription", metavar="NAME")
    who.add_argument("--peek", action="store_true", help="without a subscription of one's own")
    parser.add_argument(
        "-t", "--subscription-type", choices=SUB_TYPES, default="exclusive", metavar="TYPE",
        help=f"one of {', '.join(SUB_TYPES)} (default: exclusive)",
    )  # fmt: skip
    parser.add_argument(
        "--from", choices=("earliest", "latest"), dest="start",
        help="where a new subscription, or --peek, begins (default: latest)",
    )  # fmt: skip
    parser.add_argument(
        "-n", "--num-messages", type=not_negative, default=1, metavar="N",
        help="end after so many messages; 0: never (default: 1)",
    )  # fmt: skip
    parser.add_argument(
        "--timeout", type=float, metavar="SECONDS", help="end if none comes for so long"
    )
    add_service(parser)
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Receive and print; 1 if fewer messages came than were asked for."""
    topic = full_topic(args.topic)
    if args.subscription is not None and not args.subscription.strip():
        raise CliError("--subscription must not be empty")
    if args.timeout is not None and not args.timeout > 0:
        raise CliError(f"--timeout {args.timeout:g} is not a number above 0")
    wanted, printed = args.num_messages or sys.maxsize, 0
    with service_of(args) as service:
        logs = logs_of(service, topic, create=not args.peek)
        if args.start is None:
            what = "--peek begins" if args.peek else "a new subscription begins"
            note = f"pulsemark: {what} at the end and waits; --from earliest shows what is there"
            print(note, file=sys.stderr)
        consumers = [_subscribed(service, log, args) for log in logs]
        for consumer, received in _received(consumers, args.timeout):
            for message in messages_of(received.headers_and_payload):
                _print(received, message, topic=consumer.topic, as_json=args.json)
                printed += 1
            if not args.peek:
                consumer.ack(received.message_id)
            consumer.flow(1)
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


def _print(received: RawMessage, message: Message, *, topic: str, as_json: bool) -> None:
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
