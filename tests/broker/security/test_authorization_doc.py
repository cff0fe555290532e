"""docs/authorization.md says of every command and call what it needs, as the code has it."""

from __future__ import annotations

from pathlib import Path

from pulsemark.broker.grpc.seek_service import NEEDS
from pulsemark.broker.handlers import COMMANDS
from pulsemark.broker.handlers.authorizing import COMMAND_NEEDS
from pulsemark.broker.kafka.handlers import HANDLERS
from pulsemark.kafka.protocol import APIS
from pulsemark.proto.pulsar_api_pb2 import BaseCommand

PAGE = Path(__file__).parents[3] / "docs" / "authorization.md"
BEGIN = "<!-- made by tests/broker/security/test_authorization_doc.py -->"
END = "<!-- end -->"


def made() -> str:
    """The tables."""
    lines = ["### Commands", "", "| command | needs |", "|---|---|", "| SEND | own producer |"]
    for kind in sorted(COMMANDS):
        needs = "; ".join(map(str, COMMAND_NEEDS[kind].needs))
        lines.append(f"| {BaseCommand.Type.Name(kind)} | {needs} |")
    lines += ["", "### Routes", "", "[rest.md](rest.md) names the permission of each route."]
    lines += ["", "### gRPC calls", "", "| call | needs |", "|---|---|"]
    lines += [f"| {name} | {need} |" for name, need in sorted(NEEDS.items())]
    return "\n".join(lines)


def test_the_tables_are_those_of_the_code() -> None:
    """A new command or call is in the tables. Run this file to write them again."""
    page = PAGE.read_text()
    shown = page.partition(BEGIN)[2].partition(END)[0].strip()
    assert shown == made(), f"docs/authorization.md must have:\n{made()}"


def test_kafka_requests_are_all_named() -> None:
    """The table of Kafka's requests is written by hand, and complete."""
    part = PAGE.read_text().partition("### Kafka's requests")[2]
    for key in HANDLERS:
        if key in APIS:
            assert APIS[key].name in part


def write() -> None:
    """Write the tables into the page."""
    before, _, rest = PAGE.read_text().partition(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n\n{made()}\n\n{END}{rest.partition(END)[2]}")


if __name__ == "__main__":
    write()
