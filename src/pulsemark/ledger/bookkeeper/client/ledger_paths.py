"""The path of a ledger's node below the root. Source: BookKeeper's HierarchicalLedgerManager."""

from __future__ import annotations

from .errors import InvalidRequestError

#: From here on, an id has the long form of the path, and comes from the long generator.
LONG_IDS = (1 << 31) - 1
_MAX_ID = (1 << 63) - 1


def check_ledger_id(ledger_id: int) -> None:
    """Raises InvalidRequestError for a number that cannot be a ledger's id."""
    if not 0 <= ledger_id <= _MAX_ID:
        raise InvalidRequestError(f"a ledger's id is from 0 to {_MAX_ID}, not {ledger_id}")


def ledger_path(root: str, ledger_id: int) -> str:
    """The path of a ledger's node."""
    check_ledger_id(ledger_id)
    if ledger_id < LONG_IDS:
        digits, first = f"{ledger_id:010d}", 2
    else:
        digits, first = f"{ledger_id:019d}", 3
    folders = [digits[:first], *(digits[at : at + 4] for at in range(first, len(digits) - 4, 4))]
    return "/".join((root, *folders, f"L{digits[-4:]}"))
