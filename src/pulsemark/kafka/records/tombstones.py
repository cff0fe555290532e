"""The tombstone flag of KIP-87: deleting a key and still saying something about it.

In magic 0 and 1 a null value deletes its key. KIP-87 gives magic 2 a flag for that, bit 5 of a
record's attributes, so that a tombstone may have a value. Kafka never shipped it: its clients
neither set nor show the flag, and delete with a null value. So a topic is in one of two stages:

======================================  =========================  ========================
record                                  stage 1, the default       stage 2
======================================  =========================  ========================
magic 0, 1: null value                  deletes its key            deletes its key
magic 2: flag, any value                deletes its key            deletes its key
magic 2: null value without flag        deletes its key            refused when produced
======================================  =========================  ========================

Between the formats: up to magic 2 a null value sets the flag. Down to magic 0 or 1 the flag makes
the value null, for an old consumer knows no other tombstone.
"""

from __future__ import annotations

from enum import IntEnum

from .record import TOMBSTONE_FLAG, Headers, Record

TOMBSTONE_VALUE = "true"
"""The value of the property that makes a message of Pulsar's a tombstone."""


class TombstoneStage(IntEnum):
    """What deletes a key in magic 2."""

    FLAG_OR_NULL = 1
    FLAG_ONLY = 2


def deletes(record: Record, magic: int, stage: TombstoneStage) -> bool:
    """Whether a record of a set of this magic deletes its key."""
    if magic < 2:
        return record.value is None
    if record.attributes & TOMBSTONE_FLAG:
        return True
    return record.value is None and stage is TombstoneStage.FLAG_OR_NULL


def says_tombstone(headers: Headers, property_name: str) -> bool:
    """Whether a message with these properties is a tombstone; the last value counts."""
    name, found = property_name.encode(), None
    for each, value in headers:
        if each == name:
            found = value
    return found == TOMBSTONE_VALUE.encode()


def to_old(record: Record) -> Record:
    """The record as magic 0 and 1 can say it: without headers, the flag as a null value."""
    if not record.attributes and not record.headers:
        return record
    value = None if record.attributes & TOMBSTONE_FLAG else record.value
    return record._replace(value=value, headers=(), attributes=0)


def to_new(record: Record) -> Record:
    """A record of magic 0 or 1 as one of magic 2: a null value with the flag."""
    return record if record.value is not None else record._replace(attributes=TOMBSTONE_FLAG)
