r"""Run pulsar-perf and pulsar-client against this broker, and compare with Apache Pulsar.

    python compat/compare_pulsar_tools.py --pulsar-home ~/apache-pulsar-4.0.8 \
        [--peer-admin-url http://127.0.0.1:8080 --peer-service-url pulsar://127.0.0.1:6650]

Starts a broker and runs the commands of `differential/tool_commands.py` against it. Each must end
by itself. Of pulsar-perf its exit code, what it counted and the errors that it names are kept, of
pulsar-client what it prints. With a peer's addresses the same is done there, and each difference is
printed; without them everything is printed.

Exit code 1 if something differs, or is not as it must be.
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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pulsemark.broker import BrokerConfig, BrokerThread

sys.path.insert(0, str(Path(__file__).parent))
from differential.pulsar_shell import Outcome, difference, environment, is_different, run_shell
from differential.tool_commands import CLIENT, PERF

LIMIT_S = 600.0
COUNTED = re.compile(r"Aggregated throughput stats --- +(\d+) +records? (\w+)")
ERRORS = re.compile(r"\b(\w+Exception)\b")


def main() -> int:
    """Run the programs."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pulsar-home", type=Path, required=True)
    parser.add_argument("--peer-admin-url")
    parser.add_argument("--peer-service-url")
    parser.add_argument("--only", help="a regular expression: run only these commands")
    args = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        BrokerThread(BrokerConfig(data_dir=Path(folder), port=0, http_port=0)) as broker,
    ):
        ours = Side(args.pulsar_home, broker.http_url, broker.service_url).outcomes(args.only)
    if args.peer_admin_url is None or args.peer_service_url is None:
        for outcome in ours:
            print(outcome.command, *outcome.lines, sep="\n    ")
        print(f"{len(ours)} commands")
        return 0
    peer = Side(args.pulsar_home, args.peer_admin_url, args.peer_service_url)
    theirs = peer.outcomes(args.only)
    differing = [pair for pair in zip(ours, theirs, strict=True) if is_different(*pair)]
    for left, right in differing:
        print(left.command, *difference(left, right), sep="\n    ")
    print(f"{len(ours)} commands, {len(differing)} differ")
    return 1 if differing else 0


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two brokers."""

    home: Path
    admin_url: str
    service_url: str

    def outcomes(self, only: str | None) -> list[Outcome]:
        """What the commands did, in a tenant that is made for them and deleted afterwards."""
        tenant = f"pulsar-tools-{time.time_ns():x}"
        with tempfile.TemporaryDirectory() as folder:
            make_keys(Path(folder))
            names = {
                "tenant": tenant,
                "ns": f"{tenant}/ns",
                "service": self.service_url,
                "admin": self.admin_url,
                "keys": folder,
            }
            self._admin("PUT", f"tenants/{tenant}", {"allowedClusters": ["standalone"]})
            self._admin("PUT", f"namespaces/{tenant}/ns", {})
            try:
                client = [command for command in CLIENT if not only or re.search(only, command)]
                found = self._client(client, names) if client else []
                perf = [row for row in PERF if not only or re.search(only, " ".join(row))]
                return found + [self._perf(name, command, names) for name, command in perf]
            finally:
                self._clean_up(tenant)

    def _client(self, commands: list[str], names: dict[str, str]) -> list[Outcome]:
        given = [command.format(**names) for command in commands]
        found = run_shell(self.home, self.admin_url, self.service_url, given)
        for outcome, command in zip(found, commands, strict=True):
            outcome.command = command
            outcome.lines = [line.replace(names["tenant"], "TENANT") for line in outcome.lines]
        return found

    def _perf(self, name: str, command: str, names: dict[str, str]) -> Outcome:
        return run_perf(self.home, f"pulsar-perf: {name}", command.format(**names).split())

    def _clean_up(self, tenant: str) -> None:
        for domain in ("persistent", "non-persistent"):
            for kind in ("/partitioned", ""):
                for topic in self._admin("GET", f"{domain}/{tenant}/ns{kind}") or []:
                    end = "/partitions" if kind else ""
                    self._admin("DELETE", f"{topic.replace('://', '/')}{end}?force=true")
        self._admin("DELETE", f"namespaces/{tenant}/ns")
        self._admin("DELETE", f"tenants/{tenant}")

    def _admin(self, method: str, path: str, body: object = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        headers = {} if body is None else {"Content-Type": "application/json"}
        url = f"{self.admin_url}/admin/v2/{path}"
        request = urllib.request.Request(url, data=data, headers=headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=LIMIT_S) as answer:
                text = answer.read()
        except urllib.error.HTTPError as error:
            error.close()
            return None
        return json.loads(text) if text else None


def run_perf(home: Path, name: str, arguments: list[str]) -> Outcome:
    """Run pulsar-perf until it ends; its lines are exit code, counts and errors."""
    with tempfile.TemporaryDirectory() as folder:
        finished = subprocess.run(
            [home / "bin" / "pulsar-perf", *arguments],
            env=environment(folder),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=LIMIT_S,
            check=False,
        )
    text = finished.stdout.decode(errors="replace")
    lines = [f"exit code {finished.returncode}"]
    # A producer sends on until it notices that it is done, so how many it sent is no outcome.
    lines += [what if what == "sent" else f"{n} {what}" for n, what in COUNTED.findall(text)]
    lines += sorted(set(ERRORS.findall(text)))
    return Outcome(name, finished.returncode == 0, lines)


def make_keys(folder: Path) -> None:
    """A pair of keys for encrypted messages, made by the program openssl."""
    private, public = folder / "private.pem", folder / "public.pem"
    for arguments in (
        ["genpkey", "-algorithm", "RSA", "-pkeyopt", "rsa_keygen_bits:2048", "-out", str(private)],
        ["rsa", "-in", str(private), "-pubout", "-out", str(public)],
    ):
        subprocess.run(["openssl", *arguments], check=True, capture_output=True)


if __name__ == "__main__":
    sys.exit(main())
