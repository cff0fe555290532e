"""kcat, three clients in Go and one in JavaScript."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from functools import partial
from typing import Any

from kafka.protocol.consumer import ListOffsetsRequest

from pulsemark.testing.raw_kafka import RawKafka

from .java_tools import FailedError, JavaTools
from .sources import go_client, node_client, program

Actions = dict[str, Callable[[], None]]

MESSAGES = 50
TIMEOUT_S = 60
KCAT_VERSIONS = {
    "kcat": [],
    "kcat-as-0.8.2": ["-X", "api.version.request=false", "-X", "broker.version.fallback=0.8.2"],
    "kcat-as-0.9": ["-X", "api.version.request=false", "-X", "broker.version.fallback=0.9.0"],
    "kcat-as-0.10": ["-X", "api.version.request=false", "-X", "broker.version.fallback=0.10.0"],
}
GO_CLIENTS = ["franz-go", "kafka-go", "sarama"]
#: What the programs of `go` and `node` can do, each with a topic of its own.
PROGRAM_ACTIONS = [
    "produce",
    "consume",
    "codecs",
    "offsets",
    "groups",
    "topics",
    "configs",
    "deletion",
]


def clients(bootstrap: str, shared: str) -> dict[str, Actions]:
    """Every client with its actions."""
    found: dict[str, Actions] = {}
    for name, options in KCAT_VERSIONS.items():
        cat = partial(kcat, bootstrap, options)
        found[name] = {
            "produce": partial(_kcat_produces, cat, name),
            "consume": partial(_kcat_consumes, cat, name),
            "codecs": partial(_kcat_codecs, cat, name),
            "offsets": partial(_kcat_offsets, cat, name),
            "groups": partial(_kcat_groups, cat, name),
            "write": partial(_kcat_shared, cat, name, shared),
        }
    for name in [*GO_CLIENTS, "kafkajs"]:
        found[name] = {
            action: partial(_program, name, action, bootstrap, name) for action in PROGRAM_ACTIONS
        }
        found[name]["write"] = partial(_program, name, "write", bootstrap, shared)
    return found


def _run(command: list[str], sent: str = "") -> str:
    try:
        done = subprocess.run(
            command, input=sent, capture_output=True, text=True, check=False, timeout=TIMEOUT_S
        )
    except subprocess.TimeoutExpired as error:
        raise FailedError(f"{command[0]} did not end after {TIMEOUT_S} s") from error
    if done.returncode:
        raise FailedError(f"{' '.join(command[:3])}: {(done.stderr + done.stdout)[-400:]}")
    return done.stdout


# -- kcat ---------------------------------------------------------------------------------------


def kcat(bootstrap: str, options: list[str], *args: str, sent: str = "") -> str:
    """Run kcat. Raises FailedError, MissingError."""
    return _run([program("kcat"), "-b", bootstrap, *options, *args], sent)


def _lines(name: str) -> str:
    return "".join(f"k{n}:{name} {n} {'x' * 60}\n" for n in range(MESSAGES))


def _kcat_produces(cat: Callable[..., str], name: str) -> None:
    cat("-P", "-t", name, "-K", ":", sent=_lines(name))


def _kcat_consumes(cat: Callable[..., str], name: str) -> None:
    _same(cat("-C", "-t", name, "-o", "beginning", "-e", "-q", "-K", ":"), _lines(name))


def _kcat_codecs(cat: Callable[..., str], name: str) -> None:
    for codec in ("gzip", "snappy", "lz4"):
        topic = f"{name}-{codec}"
        cat("-P", "-t", topic, "-K", ":", "-z", codec, sent=_lines(name))
        _same(cat("-C", "-t", topic, "-o", "beginning", "-e", "-q", "-K", ":"), _lines(name))


def _kcat_offsets(cat: Callable[..., str], name: str) -> None:
    if name != "kcat-as-0.8.2":
        _same(cat("-Q", "-t", f"{name}:0:-1"), f"{name} [0] offset {MESSAGES}\n")
    if f'topic "{name}" with 1 partitions' not in cat("-L"):
        raise FailedError("the list has no such topic")


def _kcat_groups(cat: Callable[..., str], name: str) -> None:
    if name == "kcat-as-0.8.2":
        raise NotImplementedError
    first = ["-X", "auto.offset.reset=earliest", "-q", "-K", ":"]
    text = cat("-G", f"group-{name}", *first, "-c", "20", name)
    text += cat("-G", f"group-{name}", *first, "-c", str(MESSAGES - 20), name)
    _same(text, _lines(name))


def _kcat_shared(cat: Callable[..., str], name: str, topic: str) -> None:
    cat("-P", "-t", topic, sent="".join(f"{name} {n}\n" for n in range(10)))


def _same(seen: str, expected: str) -> None:
    if seen != expected:
        raise FailedError(f"{len(seen.splitlines())} lines: {seen[:200]!r}")


# -- programs of our own around libraries of others ---------------------------------------------


def _program(name: str, action: str, bootstrap: str, topic: str, *more: str) -> None:
    if name in GO_CLIENTS:
        command = [str(go_client()), name]
    else:
        node, script = node_client()
        command = [node, str(script)]
    text = _run([*command, action, bootstrap, topic, *more])
    if "not there" in text:
        raise NotImplementedError


# -- all of them on one topic -------------------------------------------------------------------


def written(bootstrap: str, topic: str) -> int:
    """How many messages a topic with one partition has."""
    part: Any = ListOffsetsRequest.ListOffsetsTopic.ListOffsetsPartition(
        partition_index=0, current_leader_epoch=-1, timestamp=-1
    )
    asked = ListOffsetsRequest.ListOffsetsTopic(name=topic, partitions=[part])
    with RawKafka.from_url(bootstrap) as client:
        answer = client.call(
            ListOffsetsRequest, 1, replica_id=-1, isolation_level=0, topics=[asked]
        )
    return int(answer.topics[0].partitions[0].offset)


def read_shared_with_java(version: str, bootstrap: str, topic: str) -> None:
    """Everything that all clients have written."""
    count = written(bootstrap, topic)
    seen = JavaTools(version, bootstrap).read(topic, count)
    if len(seen) != count:
        raise FailedError(f"{len(seen)} of {count} messages")


def shared_reader(name: str, bootstrap: str, topic: str) -> Callable[[], None]:
    """A function that reads everything that all clients have written."""

    def read() -> None:
        count = written(bootstrap, topic)
        if not name.startswith("kcat"):
            _program(name, "read", bootstrap, topic, str(count))
            return
        options = KCAT_VERSIONS[name]
        text = kcat(bootstrap, options, "-C", "-t", topic, "-o", "beginning", "-e", "-q")
        if len(text.splitlines()) != count:
            raise FailedError(f"{len(text.splitlines())} of {count} messages")

    return read
