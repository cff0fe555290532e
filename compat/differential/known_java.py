"""Differences that the Java client sees between this broker and Pulsar, and that are intended."""

from __future__ import annotations

__all__ = ["KNOWN"]

#: A regular expression of "scenario | step: our outcome", and why the peer's outcome is different.
KNOWN: dict[str, str] = {
    r"^deduplication \| internal cursors": "sequence ids are kept in snapshots, not in a cursor",
    r"^acknowledgements \| internal stats": "cursors are in one ledger of the broker",
    r"^admin-stats \| internal": "cursors are in one ledger of the broker",
    r"^non-persistent \| last ids": "the same exception with another text",
    r"^reader-available \| (available|read) after truncation": (
        "truncate removes the open ledger's messages, too"
    ),
    r"^admin-topic-policies \| retention (set|is)": (
        "a Pulsar that was asked for an applied backlog quota has it in all namespaces"
    ),
    r"^failover \| (after a|b has)": (
        "what is on its way when the active consumer changes comes in any order"
    ),
    r"^schema-admin \| is it compatible": "a client's mistake is no error of the server (500)",
    r"^admin-messages \| (examine 99 from latest|by an id too far)": (
        "a client's mistake is no error of the server (500)"
    ),
    r"^admin-brokers \| (failure domains|isolation policies|resource (quotas|groups))": (
        "policies of what the broker does not have are absent"
    ),
    r"^admin-brokers \| (functions|sources|transactions|packages|worker|bookies)": (
        "a service that the broker does not have is absent (404)"
    ),
}
