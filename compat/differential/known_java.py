"""Differences that the Java client sees between this broker and Pulsar, and that are intended."""

from __future__ import annotations

__all__ = ["KNOWN"]

#: A regular expression of "scenario | step: our outcome", and why the peer's outcome is different.
KNOWN: dict[str, str] = {
    r"^deduplication \| internal cursors": "sequence ids are kept in snapshots, not in a cursor",
    r"^acknowledgements \| internal stats": "cursors are in one ledger of the broker",
    r"^admin-stats \| internal": "cursors are in one ledger of the broker",
    r"^non-persistent \| (last ids|terminate)": "the same exception with another text",
    r"^key-shared-sticky \| overlap": "the same exception with another text",
    r"^schema-\S+ \| .*Unable to read schema": (
        "a refusal shows both definitions of a schema as plain JSON"
    ),
    r"^reader-available \| (available|read) after truncation": (
        "truncate removes the open ledger's messages, too"
    ),
    r"^admin-topic-policies \| retention (set|is)": (
        "a Pulsar that was asked for an applied backlog quota has it in all namespaces"
    ),
    r"^failover \| (after a|b has)": (
        "what is on its way when the active consumer changes comes in any order"
    ),
    r"^(schema-admin \| no schema at all|admin-policies \| negative ttl)": (
        "the same exception with another text"
    ),
    r"^batch-acknowledgements \| .* true": (
        "a Pulsar with transactions keeps acknowledgements in batches, whatever its settings say"
    ),
    r"^transactions-off \| a client|^admin-brokers \| transactions": (
        "a Pulsar with transactions has some, and an object's name is another in each run"
    ),
    r"^schema-admin \| is it compatible": "a client's mistake is no error of the server (500)",
    r"^admin-messages \| (examine 99 from latest|by an id too far)": (
        "a client's mistake is no error of the server (500)"
    ),
    r"^admin-brokers \| (failure domains|isolation policies|resource (quotas|groups))": (
        "policies of what the broker does not have are absent"
    ),
    r"^admin-brokers \| (functions|sources|packages|worker|bookies)": (
        "a service that the broker does not have is absent (404)"
    ),
    r"^txn-send \| batch commit ended": "the peer counts a batch in a transaction as one message",
    r"^txn-cumulative-\S+ \| pending": (
        "what an open transaction has acknowledged cumulatively goes to nobody"
    ),
    r"^txn-(ack|cumulative)-\S+-batch \|": (
        "what a transaction acknowledges of a batch counts for good, whatever the settings"
    ),
    r"^txn-conflict \| batch": "the same",
    r"^txn-readers \| (\S+ last id over REST|from the latest, inclusive)": (
        "the last message is one that a reader may get"
    ),
    r"^txn-stats \| (abort|commit) ended|^txn-stats \| closed": (
        "messages of aborted transactions are no backlog; what comes last may not be delivered yet"
    ),
    r"^txn-admin \| an absent subscription": "a client's mistake is no error of the server (500)",
}
