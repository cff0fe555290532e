"""The tools of Kafka's own releases: which classes each has, and how they are called."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from .sources import HERE, jars

VERSIONS = ["0.8.2.2", "0.9.0.1", "0.10.2.2", "0.11.0.3", "1.1.1", "2.8.2", "3.9.2", "4.3.1"]
MESSAGES = 50
TIMEOUT_S = 40
_OPTIONS = ["-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
_MOVED = "org.apache.kafka.tools"


class FailedError(Exception):
    """A tool did not do what it was asked for."""


@dataclass(frozen=True)
class JavaTools:
    """The tools of one version, and the broker they talk to."""

    version: str
    bootstrap: str

    @property
    def number(self) -> tuple[int, ...]:
        """The version, to compare."""
        return tuple(map(int, self.version.split(".")))

    @property
    def topic(self) -> str:
        """A topic of this version's own."""
        return f"java-{self.version}"

    def run(
        self,
        name: str,
        *args: str,
        sent: str = "",
        fails: bool = False,
        timeout_s: float = TIMEOUT_S,
    ) -> str:
        """Run a class. Its output, without lines of the log. Raises FailedError."""
        command = ["java", *_OPTIONS, "-cp", jars(self.version), name, *args]
        try:
            done = subprocess.run(
                command, input=sent, capture_output=True, text=True, check=False, timeout=timeout_s
            )
        except subprocess.TimeoutExpired as error:
            if '"offsets_committed"' in str(error.stdout):
                # VerifiableConsumer before 1.0 does not end when it has read and committed all.
                return str(error.stdout)
            raise FailedError(f"{name} did not end after {timeout_s} s") from error
        output = done.stdout + done.stderr
        shown = "\n".join(
            x for x in output.splitlines() if not re.match("SLF4J|log4j|ERROR Statu", x)
        )
        if (done.returncode or re.search(r"Exception|^Error", shown, re.MULTILINE)) and not fails:
            errors = [x for x in shown.splitlines() if re.search("Exception|Error", x)]
            raise FailedError(f"{name}: {(errors or [shown[-200:]])[0][:250]}")
        return shown

    def tool(self, name: str, since: tuple[int, ...], *, folder: str = "") -> str:
        """The class of a tool that moved to another package in a version."""
        old = "kafka.admin" if name.endswith("Command") else "kafka.tools"
        return f"{_MOVED}{folder}.{name}" if self.number >= since else f"{old}.{name}"

    # -- actions --------------------------------------------------------------------------------

    def console_producer(self) -> None:
        """Sends lines with keys."""
        name = self.tool("ConsoleProducer", (4,))
        flag = "--bootstrap-server" if self.number >= (2, 5) else "--broker-list"
        lines = "".join(f"k{n}:{self.version} {n}\n" for n in range(MESSAGES))
        args = [flag, self.bootstrap, "--topic", self.topic]
        properties = ["--property", "parse.key=true", "--property", "key.separator=:"]
        self.run(name, *args, *properties, sent=lines)

    def compressed(self) -> None:
        """Sends with each codec that the version has."""
        name = self.tool("ConsoleProducer", (4,))
        flag = "--bootstrap-server" if self.number >= (2, 5) else "--broker-list"
        codecs = ["gzip", "snappy", "lz4"] + (["zstd"] if self.number >= (2, 1) else [])
        for codec in codecs:
            lines = "".join(f"{codec} {n} {'x' * 100}\n" for n in range(MESSAGES))
            args = [flag, self.bootstrap, "--topic", f"{self.topic}-{codec}"]
            self.run(name, *args, "--compression-codec", codec, sent=lines)
            seen = self.read(f"{self.topic}-{codec}", MESSAGES)
            _expect(seen, sorted(lines.split("\n")[:-1]))

    def console_consumer(self) -> None:
        """Reads what the producer has sent."""
        _expect(
            self.read(self.topic, MESSAGES), sorted(f"{self.version} {n}" for n in range(MESSAGES))
        )

    def read(self, topic: str, count: int) -> list[str]:
        """The values of a topic with one partition."""
        if self.number < (0, 9):
            args = ["--broker-list", self.bootstrap, "--topic", topic, "--partition", "0"]
            shell = "kafka.tools.SimpleConsumerShell"
            text = self.run(shell, *args, "--offset", "-2", "--max-messages", str(count))
            return sorted(x for x in text.splitlines() if " " in x and "reached" not in x)[:count]
        name = self.tool("ConsoleConsumer", (3, 5), folder=".consumer")
        args = ["--bootstrap-server", self.bootstrap, "--topic", topic, "--from-beginning"]
        if self.number < (0, 11):
            args.append("--new-consumer")
        if self.number >= (0, 10):
            args += ["--timeout-ms", "20000"]
        text = self.run(name, *args, "--max-messages", str(count))
        return sorted(
            x
            for x in text.splitlines()
            if " " in x and "rocessed a" not in x and "KIP-848" not in x
        )

    def simple_consumer(self) -> None:
        """Scala's SimpleConsumer, which ended with 1.1."""
        if self.number >= (2,):
            raise NotImplementedError
        args = ["--broker-list", self.bootstrap, "--topic", self.topic, "--partition", "0"]
        options = ["--offset", "-2", "--max-messages", str(MESSAGES)]
        text = self.run("kafka.tools.SimpleConsumerShell", *args, *options)
        seen = {x for x in text.splitlines() if x.startswith(self.version)}
        _expect(sorted(seen), sorted(f"{self.version} {n}" for n in range(MESSAGES)))

    def offsets(self) -> None:
        """GetOffsetShell: the ends of the topic."""
        flag = "--bootstrap-server" if self.number >= (3,) else "--broker-list"
        name = self.tool("GetOffsetShell", (3, 5))
        for at, offset in (("-1", MESSAGES), ("-2", 0)):
            text = self.run(name, flag, self.bootstrap, "--topic", self.topic, "--time", at)
            if f"{self.topic}:0:{offset}" not in text:
                raise FailedError(f"time {at}: {text[-200:]}")

    def topics(self) -> None:
        """Creates, lists, describes, enlarges and deletes a topic."""
        if self.number < (2, 2):
            raise NotImplementedError
        name, topic = self.tool("TopicCommand", (3, 5)), f"{self.topic}-made"
        to = ["--bootstrap-server", self.bootstrap]
        settings = ["--config", "retention.ms=3600000", "--config", "segment.bytes=2000000"]
        size = ["--partitions", "2", "--replication-factor", "1"]
        self.run(name, *to, "--create", "--topic", topic, *size, *settings)
        self.run(name, *to, "--alter", "--topic", topic, "--partitions", "3")
        text = self.run(name, *to, "--describe", "--topic", topic)
        if not re.search(r"PartitionCount: ?3", text) or "retention.ms=3600000" not in text:
            raise FailedError(text[-300:])
        _contains(self.run(name, *to, "--list"), topic)
        self.run(name, *to, "--delete", "--topic", topic)

    def configs(self) -> None:
        """Sets and deletes settings; sets the entry format where the version has it."""
        if self.number < (2, 5):
            raise NotImplementedError
        to = ["--bootstrap-server", self.bootstrap, "--entity-type", "topics"]
        to += ["--entity-name", self.topic]
        command = "kafka.admin.ConfigCommand"
        settings = "message.format.version=0.10.2,retention.bytes=10000000"
        self.run(command, *to, "--alter", "--add-config", settings)
        text = self.run(command, *to, "--describe")
        _contains(text, "message.format.version=0.10.2", "retention.bytes=10000000")
        names = "message.format.version,retention.bytes"
        self.run(command, *to, "--alter", "--delete-config", names)
        self.run(command, *to, "--describe", "--all")

    def groups(self) -> None:
        """Reads in a group; then lists, describes, resets and deletes it."""
        if self.number < (0, 9):
            raise NotImplementedError
        group = f"group-{self.version}"
        self._read_in(group)
        name = self.tool("ConsumerGroupCommand", (3, 5), folder=".consumer.group")
        to = ["--bootstrap-server", self.bootstrap]
        if self.number < (0, 11):
            to.append("--new-consumer")
        if self.number >= (1,):
            to += ["--timeout", "30000"]  # 5 s are too short on a busy machine
        if self.number >= (0, 10):
            _contains(self.run(name, *to, "--list"), group)
            _contains(self.run(name, *to, "--describe", "--group", group), self.topic)
        if self.number >= (0, 11):
            reset = ["--group", group, "--reset-offsets", "--to-earliest", "--topic", self.topic]
            _contains(self.run(name, *to, *reset, "--execute"), self.topic)
        if self.number >= (2, 5):
            forget = ["--delete-offsets", "--group", group, "--topic", self.topic]
            _contains(self.run(name, *to, *forget), "uccess")
        elif self.number >= (1, 1):
            _contains(self.run(name, *to, "--delete", "--group", group), "success")

    def _read_in(self, group: str) -> None:
        with TemporaryDirectory() as folder:
            file = Path(folder) / "consumer.properties"
            file.write_text(f"group.id={group}\nsession.timeout.ms=10000\n")
            name = self.tool("ConsoleConsumer", (3, 5), folder=".consumer")
            args = ["--bootstrap-server", self.bootstrap, "--topic", self.topic]
            args.append("--from-beginning")
            if self.number < (0, 11):
                args.append("--new-consumer")
            self.run(
                name, *args, "--consumer.config", str(file), "--max-messages", str(MESSAGES),
            )  # fmt: skip

    def delete_records(self) -> None:
        """Removes what is before an offset."""
        if self.number < (0, 11):
            raise NotImplementedError
        name = self.tool("DeleteRecordsCommand", (3, 5))
        with TemporaryDirectory() as folder:
            file = Path(folder) / "offsets.json"
            at = f'{{"topic": "{self.topic}", "partition": 0, "offset": {MESSAGES}}}'
            file.write_text(f'{{"partitions": [{at}], "version": 1}}')
            args = ["--bootstrap-server", self.bootstrap, "--offset-json-file", str(file)]
            _contains(self.run(name, *args), f"low_watermark: {MESSAGES}")

    def cluster(self) -> None:
        """Asks for disks, the cluster's id and reassignments; elects a leader; lists no ACLs."""
        if self.number < (2, 8):
            raise NotImplementedError
        to = ["--bootstrap-server", self.bootstrap]
        disks = self.tool("LogDirsCommand", (3, 7))
        text = self.run(disks, *to, "--describe", "--topic-list", self.topic)
        _contains(text, f'"partition":"{self.topic}-0"', '"error":null')
        cluster = self.tool("ClusterTool", (3, 5))
        _contains(self.run(cluster, "cluster-id", *to), "Cluster ID: ")
        moves = self.tool("ReassignPartitionsCommand", (3, 7), folder=".reassign")
        _contains(self.run(moves, *to, "--list"), "No partition reassignments found.")
        elect = self.tool("LeaderElectionCommand", (3, 6))
        one = ["--election-type", "preferred", "--topic", self.topic, "--partition", "0"]
        _contains(self.run(elect, *to, *one), "Valid replica already elected")
        acls = self.tool("AclCommand", (4, 3))
        text = self.run(acls, *to, "--list", fails=True)
        _contains(text, "SecurityDisabledException")
        group = self.tool("ConsumerGroupCommand", (3, 5), folder=".consumer.group")
        _contains(self.run(group, *to, "--list", "--state"), "STATE")

    def verifiable(self) -> None:
        """VerifiableProducer and VerifiableConsumer."""
        if self.number < (0, 9):
            raise NotImplementedError
        topic = f"{self.topic}-verified"
        flag = "--bootstrap-server" if self.number >= (3,) else "--broker-list"
        args = [flag, self.bootstrap, "--topic", topic, "--max-messages", str(MESSAGES)]
        text = self.run(f"{_MOVED}.VerifiableProducer", *args)
        _contains(text, f'"acked":{MESSAGES}')
        args += ["--group-id", f"verified-{self.version}", "--reset-policy", "earliest"]
        text = self.run(f"{_MOVED}.VerifiableConsumer", *args)
        _contains(text, '"records_consumed"', f'"offset":{MESSAGES}}}')

    def performance(self) -> None:
        """ProducerPerformance and ConsumerPerformance."""
        topic = f"{self.topic}-fast"
        if self.number < (0, 9):
            name = "org.apache.kafka.clients.tools.ProducerPerformance"
            text = self.run(name, topic, "5000", "100", "-1", f"bootstrap.servers={self.bootstrap}")
        else:
            args = ["--topic", topic, "--num-records", "5000", "--record-size", "100"]
            to = ["--throughput", "-1", "--producer-props", f"bootstrap.servers={self.bootstrap}"]
            text = self.run(f"{_MOVED}.ProducerPerformance", *args, *to)
        _contains(text, "5000 records sent")
        if self.number < (0, 9):
            return
        name = self.tool("ConsumerPerformance", (3,))
        flag = "--bootstrap-server" if self.number >= (2, 5) else "--broker-list"
        args = [flag, self.bootstrap, "--topic", topic, "--messages", "5000"]
        if self.number < (0, 11):
            args.append("--new-consumer")
        if self.number >= (2,):
            args += ["--timeout", "20000"]
        _contains(self.run(name, *args), "5000")

    def transactions(self) -> None:
        """Commits, aborts, fences, is late, transforms in a group (`java/Transactions.java`)."""
        if self.number < (2, 5):
            raise NotImplementedError
        protocols = "classic,consumer" if self.number >= (4,) else "classic"
        program = str(HERE / "java" / "Transactions.java")
        args = [self.bootstrap, f"{self.topic}-txn-", protocols]
        _contains(self.run(program, *args, timeout_s=3 * TIMEOUT_S), "done")

    def api_versions(self) -> None:
        """What the broker says that it serves."""
        if self.number < (0, 10, 1):
            raise NotImplementedError
        name = self.tool("BrokerApiVersionsCommand", (4,))
        _contains(self.run(name, "--bootstrap-server", self.bootstrap), "Fetch(1)")

    def shared_write(self, topic: str) -> None:
        """Writes to the topic that all clients share."""
        name = self.tool("ConsoleProducer", (4,))
        flag = "--bootstrap-server" if self.number >= (2, 5) else "--broker-list"
        lines = "".join(f"{self.version} {n}\n" for n in range(10))
        codec = ["--compression-codec", "gzip"] if self.number[1] % 2 else []
        self.run(name, flag, self.bootstrap, "--topic", topic, *codec, sent=lines)


ACTIONS: dict[str, Callable[[JavaTools], None]] = {
    "produce": JavaTools.console_producer,
    "consume": JavaTools.console_consumer,
    "codecs": JavaTools.compressed,
    "simple": JavaTools.simple_consumer,
    "offsets": JavaTools.offsets,
    "groups": JavaTools.groups,
    "topics": JavaTools.topics,
    "configs": JavaTools.configs,
    "cluster": JavaTools.cluster,
    "verifiable": JavaTools.verifiable,
    "performance": JavaTools.performance,
    "transactions": JavaTools.transactions,
    "versions": JavaTools.api_versions,
    "deletion": JavaTools.delete_records,
}


def _expect(seen: list[str], expected: list[str]) -> None:
    if seen != expected:
        raise FailedError(f"{len(seen)} of {len(expected)} messages: {seen[:3]}")


def _contains(text: str, *parts: str) -> None:
    for part in parts:
        if part not in text:
            raise FailedError(f"no {part!r} in {text[-300:]!r}")
