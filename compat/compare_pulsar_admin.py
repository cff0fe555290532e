r"""Compare this broker with Apache Pulsar through Pulsar's own pulsar-admin and pulsar-client.

    python compat/compare_pulsar_admin.py --pulsar-home ~/apache-pulsar-4.0.8 \
        --peer-admin-url http://127.0.0.1:8080 --peer-service-url pulsar://127.0.0.1:6650

Starts a broker and has `pulsar-shell` run the commands of `differential/admin_commands.py`
against both brokers, each in one Java process. Prints each command with another outcome or output.
What differs by nature (times, ids, addresses, sizes on disk) is replaced before. pulsar-shell does
not tell exit codes, so some commands also run as `pulsar-admin`, each in a process of its own.
Exit code 1 if something differs that `KNOWN` has no reason for. Commands change nothing of the peer
but a tenant of their own, which they delete.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from contextlib import closing
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pulsar
from _pulsar import LoggerLevel

from pulsemark.broker import BrokerConfig, BrokerThread

sys.path.insert(0, str(Path(__file__).parent))
from differential.admin_commands import COMMANDS
from differential.known import (
    ABSENT_PARTS,
    CATALOG,
    CURSOR,
    LATER,
    LEDGER,
    METADATA,
    MISTAKE,
    OFFLOAD,
    ONE_TEXT,
    ORDER,
    PEER,
    SERVLET,
    SETTINGS,
    UNSET,
    VERSION,
)
from differential.pulsar_shell import Outcome, difference, is_different, run_shell

LIMIT_S = 900.0
EXIT_CODES = (
    "clusters get standalone",
    "tenants get absent-{tenant}",
    "namespaces list absent-{tenant}",
    "topics stats {topic}",
    "brokers healthcheck",
    "topics no-such-command",
)
#: What standalone.conf of Pulsar says, apart from its retention, which a peer may have set.
LIKE_IT: dict[str, Any] = {
    "backlog_quota_default_limit_bytes": 10 << 30,
    "default_retention_time_minutes": -1,
    "default_retention_size_mb": -1,
}
#: Schemas that commands upload.
USER = {"type": "record", "name": "User", "fields": [{"name": "name", "type": "string"}]}
AGE = {"name": "age", "type": "int", "default": 0}
SCHEMAS = {
    "user.json": {"type": "AVRO", "schema": json.dumps(USER), "properties": {"a": "b"}},
    "user2.json": {
        "type": "AVRO",
        "schema": json.dumps({**USER, "fields": [*USER["fields"], AGE]}),
        "properties": {},
    },
    "other.json": {"type": "STRING", "schema": "", "properties": {}},
    "broken.json": {"type": "AVRO", "schema": "{", "properties": {}},
}

#: The differences that are meant to be: commands (with wildcards) and why.
KNOWN: dict[str, str] = {
    "admin brokers list-dynamic-config": SETTINGS,
    "admin brokers get-internal-config": METADATA,
    "admin brokers version": VERSION,
    "admin proxy-stats *": SERVLET,
    "admin schemas upload *": SERVLET,
    "admin namespaces update-migration-state *": ABSENT_PARTS,
    "admin topics *-shadow-topics *": ABSENT_PARTS,
    "admin topics *stats-internal *": CURSOR,
    "admin topics info-internal *": CURSOR,
    "admin topics offload*": OFFLOAD,
    # The peer's offload began a new ledger, so what follows finds no messages there.
    "admin topics expire-messages*": LEDGER,
    "admin topics stats *": LEDGER,
    "admin topics terminate *": LEDGER,
    "admin schemas metadata *": CATALOG,
    "admin topicPolicies *et-retention *": PEER,
    "admin namespaces *et-retention *": PEER,
    "admin namespaces *et-backlog-quota*": PEER,
    "admin namespaces policies *": PEER,
    "admin topicPolicies get-subscription-types-enabled *": UNSET,
    "admin namespaces get-subscription-types-enabled *": ORDER,
    "admin namespaces permissions *": ORDER,
    "admin topicPolicies get-message-ttl * --applied": LATER,
}
UNEXPECTED = "--- An unexpected error occurred in the server ---"


def main() -> int:
    """Run the comparison."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pulsar-home", type=Path, required=True)
    parser.add_argument("--peer-admin-url", required=True)
    parser.add_argument("--peer-service-url", required=True)
    parser.add_argument("--only", help="a regular expression: run only these commands")
    args = parser.parse_args()
    tenant = f"pulsar-admin-{time.time_ns():x}"
    with (
        tempfile.TemporaryDirectory() as folder,
        BrokerThread(BrokerConfig(data_dir=Path(folder), port=0, http_port=0, **LIKE_IT)) as broker,
    ):
        here = Side(args.pulsar_home, broker.http_url, broker.service_url, tenant)
        ours = here.outcomes(args.only)
    there = Side(args.pulsar_home, args.peer_admin_url, args.peer_service_url, tenant)
    theirs = there.outcomes(args.only)
    differing = [pair for pair in zip(ours, theirs, strict=True) if is_different(*pair)]
    unknown = 0
    for left, right in differing:
        why = reason(left, right)
        unknown += why is None
        print(left.command.replace(tenant, "TENANT") + (f" (known: {why})" if why else ""))
        for line in difference(left, right):
            print(f"    {line.replace(tenant, 'TENANT')}")
    succeeded = sum(outcome.succeeded for outcome in ours)
    print(
        f"{len(ours)} commands ({succeeded} succeeded here), {len(differing)} differ, "
        f"{unknown} without a reason"
    )
    return 1 if unknown else 0


def reason(ours: Outcome, theirs: Outcome) -> str | None:
    """Why two outcomes of a command may differ; None: they must not."""
    if not ours.succeeded and any(UNEXPECTED in line for line in theirs.lines):
        return MISTAKE
    refused = [any(line.startswith("Reason: ") for line in one.lines) for one in (ours, theirs)]
    if all(refused):
        return ONE_TEXT
    return next((why for known, why in KNOWN.items() if fnmatchcase(ours.command, known)), None)


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two brokers, and the tenant that the run uses in it."""

    home: Path
    admin_url: str
    service_url: str
    tenant: str

    def outcomes(self, only: str | None) -> list[Outcome]:
        """What the commands did that match `only`, and the processes of their own."""
        commands = [command for command in COMMANDS if not only or re.search(only, command)]
        with tempfile.TemporaryDirectory() as folder:
            for name, definition in SCHEMAS.items():
                Path(folder, name).write_text(json.dumps(definition))
            names = self._prepare() | {"schemas": folder}
            try:
                given = [command.format(**names) for command in commands]
                found = run_shell(self.home, self.admin_url, self.service_url, given)
            finally:
                for topic in self._topics_of_ready():
                    self._admin("DELETE", f"{topic.replace('://', '/')}?force=true")
                self._admin("DELETE", f"namespaces/{self.tenant}-ready/ns")
                self._admin("DELETE", f"tenants/{self.tenant}-ready")
        for outcome, command in zip(found, commands, strict=True):
            outcome.command = command
        return found + ([] if only else self._exit_codes(names))

    def _prepare(self) -> dict[str, str]:
        """Publish five messages, three of them in a batch. What stands for each name."""
        tenant, topic = self.tenant, f"persistent://{self.tenant}-ready/ns/t"
        body = {"adminRoles": [], "allowedClusters": ["standalone"]}
        self._admin("PUT", f"tenants/{tenant}-ready", body)
        self._admin("PUT", f"namespaces/{tenant}-ready/ns", {})
        client = pulsar.Client(self.service_url, logger=pulsar.ConsoleLogger(LoggerLevel.Error))
        client.subscribe(topic, "s").close()
        with closing(client):
            batching = {"batching_enabled": True, "batching_max_publish_delay_ms": 1000}
            producer = client.create_producer(topic, producer_name="ready", **batching)
            for text in (b"one", b"two", b"three"):
                producer.send_async(text, None, partition_key="key")
            producer.flush()
            producer.send(b"four", properties={"a": "b"})
            ledger = str(producer.send(b"five").ledger_id())
        return {
            "tenant": tenant,
            "ns": f"{tenant}/ns",
            "topic": f"persistent://{tenant}/ns/t",
            "ns_absent": f"persistent://{tenant}/absent/t",
            "ready": topic,
            "ledger": ledger,
        }

    def _topics_of_ready(self) -> list[str]:
        with urllib.request.urlopen(
            f"{self.admin_url}/admin/v2/persistent/{self.tenant}-ready/ns", timeout=LIMIT_S
        ) as answer:
            return [str(name) for name in json.load(answer)]

    def _admin(self, method: str, path: str, body: object = None) -> None:
        data = None if body is None else json.dumps(body).encode()
        headers = {} if body is None else {"Content-Type": "application/json"}
        url = f"{self.admin_url}/admin/v2/{path}"
        request = urllib.request.Request(url, data=data, headers=headers, method=method)
        try:
            urllib.request.urlopen(request, timeout=LIMIT_S).close()
        except urllib.error.HTTPError as error:
            print(f"{method} {path}: {error}", file=sys.stderr)
            error.close()

    def _exit_codes(self, names: dict[str, str]) -> list[Outcome]:
        """Run some commands as processes of their own; their line is the exit code."""
        found = []
        start = [str(self.home / "bin" / "pulsar-admin"), "--admin-url", self.admin_url]
        for command in EXIT_CODES:
            program = [*start, *command.format(**names).split()]
            finished = subprocess.run(program, capture_output=True, timeout=LIMIT_S, check=False)
            code = finished.returncode
            found.append(Outcome(f"pulsar-admin {command}", code == 0, [f"exit code {code}"]))
        return found


if __name__ == "__main__":
    sys.exit(main())
