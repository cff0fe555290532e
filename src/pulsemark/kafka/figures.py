"""What the endpoint counts, for the broker's metrics page."""

from __future__ import annotations

from dataclasses import dataclass

from .records import Work

__all__ = ["Figures"]


@dataclass(slots=True)
class Figures:
    """Counts since the broker was started."""

    #: Record sets that were stored, and of these the ones whose records are the producer's bytes.
    sets_in: int = 0
    sets_in_place: int = 0
    #: Record sets that were sent as they are stored, and sets that were converted for old clients
    #: or from Pulsar's format.
    sets_out: int = 0
    sets_converted: int = 0
    compressions: int = 0
    decompressions: int = 0
    converted_records: int = 0

    def add(self, work: Work) -> None:
        """Count what one set cost."""
        self.compressions += work.compressions
        self.decompressions += work.decompressions
        self.converted_records += work.converted_records

    def rows(self) -> tuple[tuple[str, str, int], ...]:
        """Name and text of each metric, and its value."""
        return (
            ("pulsemark_kafka_sets_in", "Record sets stored", self.sets_in),
            (
                "pulsemark_kafka_sets_in_place",
                "Record sets stored with the bytes of their records as sent",
                self.sets_in_place,
            ),
            ("pulsemark_kafka_sets_out", "Record sets sent as stored", self.sets_out),
            (
                "pulsemark_kafka_sets_converted",
                "Record sets converted for a client",
                self.sets_converted,
            ),
            (
                "pulsemark_kafka_compressions",
                "Record sets compressed, on the way in or out",
                self.compressions,
            ),
            (
                "pulsemark_kafka_decompressions",
                "Record sets decompressed, to check or to convert them",
                self.decompressions,
            ),
            (
                "pulsemark_kafka_converted_records",
                "Records written again",
                self.converted_records,
            ),
        )
