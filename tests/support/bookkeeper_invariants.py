"""What must hold after every step of a history, whatever the network and the bookies do.

Source: the invariants of BookKeeperProtocol.tla and LedgerChaining.tla, in this client's words.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from pulsemark.ledger.bookkeeper.client.entries import HEADER
from pulsemark.ledger.bookkeeper.client.metadata import LedgerMetadata, decode_metadata
from pulsemark.proto.bookkeeper_wire_pb2 import Request
from tests.support.fake_bookie import FakeBookie

#: Header and CRC32C digest, before the payload.
_BEFORE_PAYLOAD = HEADER.size + 4


@dataclass(slots=True)
class LedgerHistory:
    """What was appended to a ledger, what was acknowledged, and its metadata as last written."""

    appended: list[bytes] = field(default_factory=list)
    acked: int = 0
    told: int = 0
    """How many of them the caller was told of."""
    metadata: LedgerMetadata | None = None


class Invariants:
    """Looks at every acknowledgement and every change; `broken` says what was wrong, in order."""

    def __init__(self, bookies: dict[str, FakeBookie]) -> None:
        self._bookies = bookies
        self.ledgers: dict[int, LedgerHistory] = {}
        self.chain: list[int] = []
        self.broken: list[str] = []
        self.steps = 0

    def _expect(self, holds: bool, what: str) -> None:
        self.steps += 1
        if not holds:
            self.broken.append(what)

    def of(self, ledger_id: int) -> LedgerHistory:
        """A ledger's history."""
        return self.ledgers.setdefault(ledger_id, LedgerHistory())

    def copies(self, metadata: LedgerMetadata, entry_id: int, payload: bytes) -> int:
        """How many of an entry's own bookies hold it."""
        held = 0
        for name in metadata.bookies_of(entry_id):
            ledger = self._bookies[name].ledgers.get(metadata.ledger_id)
            body = ledger.entries.get(entry_id) if ledger is not None else None
            held += body is not None and body[_BEFORE_PAYLOAD:] == payload
        return held

    def acknowledged(self, metadata: LedgerMetadata, entry_id: int) -> None:
        """A writer, which knows this metadata, confirmed an entry, whether it told so or not."""
        ledger = self.of(metadata.ledger_id)
        name = f"ledger {metadata.ledger_id}, entry {entry_id}"
        self._expect(entry_id == ledger.acked, f"{name}: acknowledged after {ledger.acked - 1}")
        self._expect(metadata.ledger_id in self.chain, f"{name}: its ledger is not in the list")
        ledger.acked = max(ledger.acked, entry_id + 1)
        seen = ledger.metadata
        if seen is not None and seen.is_closed:
            holds = entry_id <= seen.last_entry_id
            self._expect(holds, f"{name}: acknowledged, but closed after {seen.last_entry_id}")
        copies = self.copies(metadata, entry_id, ledger.appended[entry_id])
        self._expect(copies >= metadata.ack_quorum_size, f"{name}: {copies} copies")

    def told(self, ledger_id: int, count: int, last: int) -> None:
        """A writer's caller was told that entries, up to `last`, are confirmed."""
        ledger = self.of(ledger_id)
        what = f"ledger {ledger_id}: {count} entries up to {last} told after {ledger.told}"
        self._expect(last + 1 == ledger.told + count, what)
        ledger.told = max(ledger.told, last + 1)

    def metadata_written(self, ledger_id: int, data: bytes) -> None:
        """A ledger's node has new data."""
        ledger, new = self.of(ledger_id), decode_metadata(ledger_id, data)
        old, ledger.metadata = ledger.metadata, new
        if old is not None and old != new:
            self._expect(not old.is_closed, f"ledger {ledger_id}: closed, and changed again")
            self._expect(new.state >= old.state, f"ledger {ledger_id}: {new.state} after {old}")
            kept = len(old.segments) - 1
            holds = new.segments[:kept] == old.segments[:kept]
            self._expect(holds, f"ledger {ledger_id}: {old.segments} became {new.segments}")
        if new.is_closed:
            self._closed(ledger, new)

    def _closed(self, ledger: LedgerHistory, metadata: LedgerMetadata) -> None:
        """A ledger was closed: everything acknowledged is in it, and it can be read."""
        name, count = f"ledger {metadata.ledger_id}", metadata.last_entry_id + 1
        self._expect(count >= ledger.acked, f"{name}: {ledger.acked} acknowledged, {count} kept")
        self._expect(count <= len(ledger.appended), f"{name}: {count} kept, fewer were written")
        length = sum(map(len, ledger.appended[:count]))
        self._expect(metadata.length == length, f"{name}: length {metadata.length}, not {length}")
        for entry_id, payload in enumerate(ledger.appended[:count]):
            copies = self.copies(metadata, entry_id, payload)
            holds = copies >= metadata.ack_quorum_size
            self._expect(holds, f"{name}, entry {entry_id}: {copies} copies when it was closed")

    def chain_written(self, chain: list[int]) -> None:
        """The topic's list of ledgers has new data."""
        self._expect(chain[: len(self.chain)] == self.chain, f"list {self.chain} became {chain}")
        self.chain = chain
        for ledger_id in chain[:-1]:
            metadata = self.of(ledger_id).metadata
            holds = metadata is not None and metadata.is_closed
            self._expect(holds, f"ledger {ledger_id} is not closed, and not the last of {chain}")

    def frame_sent(self, frame: bytes) -> None:
        """A request is under way: recovery writes nothing again that is confirmed anyway."""
        request = Request.FromString(frame)
        add = request.addRequest
        if not request.HasField("addRequest") or add.flag != 1:
            return
        metadata = self.of(add.ledgerId).metadata
        if metadata is not None and not metadata.is_closed:
            first = metadata.last_segment.first_entry_id
            what = f"ledger {add.ledgerId}, entry {add.entryId}: written again, before {first}"
            self._expect(add.entryId >= first, what)

    def last_confirmed_read(self, metadata: LedgerMetadata, last_confirmed: int) -> None:
        """A reader takes an open ledger's entries up to this one for confirmed."""
        ledger = self.of(metadata.ledger_id)
        holds = metadata.is_closed or last_confirmed < ledger.acked
        name = f"ledger {metadata.ledger_id}"
        self._expect(holds, f"{name}: {last_confirmed} read, {ledger.acked} acknowledged")

    def entry_read(self, ledger_id: int, entry_id: int, payload: bytes) -> None:
        """A reader got an entry."""
        appended = self.of(ledger_id).appended
        holds = entry_id < len(appended) and appended[entry_id] == payload
        self._expect(holds, f"ledger {ledger_id}, entry {entry_id}: other bytes were read")
