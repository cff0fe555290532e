"""Settings of a BookKeeper client."""

from __future__ import annotations

from dataclasses import dataclass, fields

from .errors import InvalidRequestError


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """Limits and times. Defaults are those of BookKeeper's Java client where it has the setting."""

    connect_timeout_ms: int = 10_000
    """How long a connection to a bookie may take to come up."""
    add_timeout_ms: int = 5_000
    """How long a bookie may take to answer an add; after that it counts as failed."""
    read_timeout_ms: int = 5_000
    """How long a bookie may take to answer a read."""
    speculative_read_ms: int = 2_000
    """After how long without an answer an entry is also asked of the next replica."""
    reconnect_delay_ms: int = 100
    """For how long after a failed connection requests to that bookie fail without another try."""
    quarantine_ms: int = 30_000
    """For how long a bookie that failed is chosen only where there is no other."""
    replace_delay_ms: int = 1_000
    """How often a writer with a failed bookie looks for another one, if there was none."""
    explicit_lac_ms: int = 200
    """After so long without a new entry bookies are told the last confirmed one, for readers."""
    max_frame_bytes: int = 5 * 1024 * 1024
    """The bookies' nettyMaxFrameSizeBytes: a larger frame would break the connection."""
    max_in_flight_bytes: int = 64 * 1024 * 1024
    """How many bytes of entries of one writer may be unconfirmed before `append` refuses."""
    max_bookie_bytes: int = 256 * 1024 * 1024
    """How many bytes may wait for one bookie's answers before it counts as failed."""
    read_batch_entries: int = 64
    """How many entries of one `read` are asked for at the same time."""
    recovery_batch_entries: int = 16
    """How many entries recovery reads and writes at the same time."""
    recovery_attempts: int = 10
    """How often recovery begins again after another client changed the ledger's metadata."""
    metadata_limit_ms: int = 30_000
    """For how long a metadata request is repeated after the connection was lost."""
    metadata_retry_ms: int = 100
    """How long to wait before the first repetition; twice as long before each further one..."""
    metadata_retry_max_ms: int = 1_000
    """...but never longer than this."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value < 1:
                raise InvalidRequestError(f"{field.name} must be 1 or more, not {value}")
