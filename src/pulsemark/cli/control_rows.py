"""Control entries and epochs as text and JSON, for `dump --control` and `control`."""

from __future__ import annotations

from ..ledger import EpochHistory, Position
from ..metadata import Control, printable
from .options import json_line, tags_text
from .records import Damage, Row
from .times import show_time

__all__ = ["ControlPrinter", "control_fields", "control_line", "epoch_lines"]

HEADINGS = (
    f"{'position':>12} {'index':>10} {'append time':<24} {'epoch':>6} {'type':<14} name  tags"
)


class ControlPrinter:
    """A table of control entries for people."""

    def topic(self, topic: str) -> None:
        """Print the head of a topic's rows."""
        print(f"{topic}\n{HEADINGS}")

    def row(self, topic: str, row: Row) -> None:
        """Print a control entry."""
        print(control_line(row.position, row.index, row.append_time_ms, row.control))

    def damage(self, topic: str | None, damage: Damage) -> None:
        """Print a damaged record."""
        place = "-" if damage.position is None else str(damage.position)
        continuation = f"; continues at {damage.next_position}" if damage.next_position else ""
        print(f"{place:>12} DAMAGED {damage.reason}{continuation}")


def control_line(
    position: Position, index: int, append_time_ms: int, control: Control | None
) -> str:
    """One line of the table."""
    start = f"{position!s:>12} {index:>10} {show_time(append_time_ms):<24}"
    if control is None:  # written without a prefix
        return f"{start} {'-':>6} unspecified"
    tags = tags_text(_tags(control))
    said = f"{control.leader_epoch:>6} {control.type_name:<14} {control.name or '-'}  {tags}"
    return f"{start} {said}".rstrip()


def control_fields(control: Control | None) -> dict[str, object] | None:
    """What a control entry says, for JSON."""
    if control is None:
        return None
    return {
        "type": control.type_name,
        "name": control.name,
        "epoch": control.leader_epoch,
        "tags": _tags(control),
    }


def _tags(control: Control) -> dict[str, object]:
    """The tags; a value that is not UTF-8 as hexadecimal text."""
    return {name: _shown(value) for name, value in sorted(control.tags.items())}


def _shown(value: bytes) -> object:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return printable(value)


def epoch_lines(topic: str, history: EpochHistory, *, as_json: bool) -> list[str]:
    """A topic's epochs: a table, or one object for each epoch."""
    rows = [
        (start.epoch, start.first_index, history.end_of(number), start.position, start.leader)
        for number, start in enumerate(history.starts)
    ]
    if as_json:
        return [
            json_line(
                {
                    "topic": topic,
                    "epoch": epoch,
                    "first_index": first,
                    "end_index": end,
                    "ledger_id": position.ledger_id,
                    "entry_id": position.entry_id,
                    "leader": leader,
                }
            )
            for epoch, first, end, position, leader in rows
        ]
    head = f"{'epoch':>10} {'first index':>12} {'end index':>12} {'position':>12} leader"
    return [
        topic,
        head,
        *(
            f"{epoch:>10} {first:>12} {end:>12} {position!s:>12} {leader or '-'}"
            for epoch, first, end, position, leader in rows
        ),
    ]
