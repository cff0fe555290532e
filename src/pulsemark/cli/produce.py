"""`pulsemark produce TOPIC`: publish messages, each acknowledged before the next result is printed.

    pulsemark produce orders --message paid --key 42 --property shop=north
    tail -f app.log | pulsemark produce logs

Without --message every line of standard input is a message. Messages are sent one by one, without a
batch and without compression, by any broker of Pulsar's protocol.
"""

from __future__ import annotations

import argparse
import struct
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack

from ..client import RawProducer
from ..client.errors import ClientError, ServiceUrlError
from ..metadata import MessageMetadata, pack_message
from .brokers import add_service, logs_of, service_of
from .errors import CliError
from .options import add_json, counted, full_topic, json_line, positive
from .times import parse_time

ERRORS = (ClientError, ServiceUrlError, OSError)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("topic", metavar="TOPIC", help="short or full name")
    parser.add_argument(
        "-m", "--message", action="append", metavar="TEXT",
        help="a message; may be given several times (default: the lines of standard input)",
    )  # fmt: skip
    parser.add_argument("-k", "--key", metavar="KEY", help="partition key of all messages")
    parser.add_argument(
        "-p", "--property", action="append", default=[], metavar="NAME=VALUE",
        help="a property of all messages; may be given several times",
    )  # fmt: skip
    parser.add_argument("--event-time", metavar="TIME", help="event time of all messages")
    parser.add_argument("--deliver-at", metavar="TIME", help="delivered not before this time")
    parser.add_argument(
        "-n", "--num-produce", type=positive, default=1, metavar="N",
        help="publish all messages so many times (default: 1)",
    )  # fmt: skip
    add_service(parser)
    add_json(parser)


def run(args: argparse.Namespace) -> int:
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


def _entry(template: MessageMetadata, value: bytes, name: str, number: int) -> bytes:
    message = MessageMetadata()
    message.CopyFrom(template)
    message.producer_name = name
    message.sequence_id = number
    message.publish_time = time.time_ns() // 1_000_000
    return pack_message(message, value)


def _partition(key: str | None, number: int, partitions: int) -> int:
    """By the key's hash as Java's clients compute it by default, otherwise one after another."""
    if key is None:
        return number % partitions
    code = 0
    for unit in struct.unpack(f"<{len(key.encode('utf-16-le')) // 2}H", key.encode("utf-16-le")):
        code = (31 * code + unit) & 0xFFFFFFFF
    return (code & 0x7FFFFFFF) % partitions


def _template(args: argparse.Namespace) -> MessageMetadata:
    template = MessageMetadata()
    if args.key is not None:
        template.partition_key = args.key
    for pair in args.property:
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
