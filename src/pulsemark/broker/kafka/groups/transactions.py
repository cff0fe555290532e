"""The transactions of Kafka's clients: which producer has one, and how it ends (KIP-98).

A producer with a transactional id gets a producer id and an epoch (`init`). It names the partitions
and groups of a transaction before it uses them, and then ends it. A later producer with the same
transactional id gets the next epoch, and fences earlier ones: their transaction is aborted, and
what they send is refused. A transaction that takes longer than its producer said is aborted, too.

**The end of a transaction** takes three steps:

1. A record in the groups' log (`offsets`): `PrepareCommit` or `PrepareAbort`. Once it is durable
   the end is decided. The same record commits the group offsets of the transaction, or drops them.
2. A control entry in each partition that has entries of it (`ledger.transactions`).
3. A record: `CompleteCommit` or `CompleteAbort`. Then the producer may begin the next one.

After a crash the steps from 2 on are done again; a partition where the transaction is no longer
open gets no second control entry.

Brokers that share topics have one coordinator, the owner of the groups' log; the next owner goes
on. What a former owner still says is without effect: it can store nothing, and each transaction has
an id of its own, so a control entry that it sends late ends no other one.

A partition takes a batch of a transaction only if the coordinator has that transaction open, for
this producer id and epoch, with this partition in it (KIP-890): a batch that comes late, after its
transaction has ended, cannot begin another one. The broker of a partition asks the coordinator.

Clients of Kafka 4 (`transaction.version` 2) need not name partitions and groups before: the first
batch and the first offsets add them. Then a late batch would begin a transaction. So each end gives
the producer its next epoch, and after the last epoch another id.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from ....kafka.errors import Code, KafkaError
from ....kafka.records import NO_PRODUCER, Producer
from ....ledger import LedgerError
from ...configuration.config import BrokerConfig
from .offsets import Committed, Offsets, Partition, State, Transaction

if TYPE_CHECKING:
    from ..partitions import ProducerIds
    from ..topics import KafkaTopics

log = logging.getLogger(__name__)

MAX_EPOCH = 2**15 - 1
"""The producer with this epoch is fenced and gets no other; the next one has another id."""
EXPIRES_MS = 7 * 24 * 60 * 60 * 1000
"""A transactional id that is not used for so long is forgotten (transactional.id.expiration.ms)."""
SHORT_NAME = 250
"""A group's name counts once more for each so many characters."""
RETRY_S, RETRY_MAX_S = 0.1, 5.0
WAIT_S = 5.0
"""So long the answer to an EndTxn waits for the control entries. The end is decided before."""


class TransactionCoordinator:
    """The transactions of all producers with a transactional id."""

    def __init__(
        self,
        offsets: Offsets,
        topics: KafkaTopics,
        producer_ids: ProducerIds,
        config: BrokerConfig,
    ) -> None:
        self._offsets = offsets
        self.known: Mapping[str, Transaction] = offsets.transactions
        """The last transaction of each transactional id."""
        self._topics = topics
        self._producer_ids = producer_ids
        self._config = config
        self._now_ms = config.clock.now_ms
        self._storing: dict[str, State] = {}
        """The transactional ids whose next state is not durable yet, with that state."""
        self._ending: dict[str, asyncio.Task[None]] = {}
        self._is_over = False
        for name, known in self.known.items():
            if known.state.is_decided:
                self._finish(name)

    # -- what clients ask -----------------------------------------------------------------------

    async def init(self, name: str, timeout_ms: int, claimed: Producer = NO_PRODUCER) -> Producer:
        """The producer id and the next epoch of a transactional id. Raises KafkaError.

        ``claimed``: what the client had before, if it only wants its next epoch (KIP-360).
        """
        if not name:
            raise KafkaError(Code.INVALID_REQUEST, "the transactional id is empty")
        if not 0 < timeout_ms <= self._config.max_kafka_transaction_timeout_ms:
            raise KafkaError(
                Code.INVALID_TRANSACTION_TIMEOUT,
                f"transaction.timeout.ms is {timeout_ms}; the limit is "
                f"{self._config.max_kafka_transaction_timeout_ms}",
            )
        known = self.known.get(name)
        if name in self._storing or (known is not None and known.state.is_decided):
            raise _busy(name)
        if known is None:
            known = await self._new(name, timeout_ms)
            return known.producer
        before = known.ended, known.producer._replace(epoch=known.last_epoch)
        is_repeated = claimed != NO_PRODUCER and claimed in before
        if not is_repeated and claimed not in (NO_PRODUCER, known.producer):
            raise _fenced(known, claimed)
        last_epoch = -1 if claimed == NO_PRODUCER else claimed.epoch
        if known.state is State.ONGOING:
            await self._abort(known, last_epoch)
            raise _busy(name)
        new = replace(known, timeout_ms=timeout_ms, state=State.EMPTY)
        if not is_repeated:
            producer = await self._next(known)
            if producer.producer_id != known.producer.producer_id:
                last_epoch = -1
            new = replace(new, producer=producer, last_epoch=last_epoch, ended=NO_PRODUCER)
        await self._store(new, known)
        return new.producer

    async def _next(self, known: Transaction) -> Producer:
        """The producer with its next epoch, or with a new id after the last epoch."""
        producer = known.producer._replace(epoch=known.producer.epoch + 1)
        if producer.epoch < MAX_EPOCH:
            return producer
        return Producer(await self._take_id(known.name), 0)

    async def _take_id(self, name: str) -> int:
        """A new producer id. The state of its transactional id does not change meanwhile."""
        self._storing[name] = State.EMPTY
        try:
            return await self._producer_ids.take()
        finally:
            del self._storing[name]

    async def _new(self, name: str, timeout_ms: int) -> Transaction:
        if len(self.known) + len(self._storing) >= self._config.max_kafka_transactional_ids:
            log.warning(
                "transactional id %r was refused: there are %d (pulsemarkMaxKafkaTransactionalIds)",
                name[:100],
                len(self.known),
            )
            raise KafkaError(Code.COORDINATOR_NOT_AVAILABLE, "there are too many transactional ids")
        new = Transaction(name, Producer(await self._take_id(name), 0), timeout_ms)
        await self._store(new, None)
        return new

    async def add(
        self,
        name: str,
        producer: Producer,
        partitions: Collection[Partition] = (),
        groups: Collection[str] = (),
    ) -> None:
        """Add partitions, or groups' offsets, to the transaction; begin it if none is open. Durable
        on return. Raises KafkaError.
        """
        known = self._of(name, producer)
        is_open = known.state is State.ONGOING
        if is_open and known.partitions.issuperset(partitions) and known.groups.issuperset(groups):
            return
        now_ms = self._now_ms()
        new = replace(
            known,
            state=State.ONGOING,
            partitions=frozenset(partitions) | (known.partitions if is_open else frozenset()),
            groups=frozenset(groups) | (known.groups if is_open else frozenset()),
            started_ms=known.started_ms if is_open else now_ms,
            marked=producer,
            number=known.number + (not is_open),
        )
        most = self._config.max_kafka_transaction_partitions
        # Topics' names are short; a group's may be as long as a request.
        names = sum(len(group) // SHORT_NAME + 1 for group in new.groups)
        if len(new.partitions) + names > most:
            raise KafkaError(
                Code.POLICY_VIOLATION,
                f"a transaction with more than {most} partitions and groups "
                "(pulsemarkMaxKafkaTransactionPartitions)",
            )
        await self._store(new, known)

    async def commit_offsets(
        self,
        name: str,
        producer: Producer,
        group: str,
        kind: str,
        offsets: Mapping[Partition, Committed],
    ) -> None:
        """Commit a group's offsets with the transaction. Durable on return. Raises KafkaError."""
        # A partition may be being added: librdkafka sends both at once, and does not wait for it.
        known = self._of(name, producer, also_storing=State.ONGOING)
        if known.state is not State.ONGOING or group not in known.groups:
            if name in self._storing:
                raise _busy(name)  # perhaps the group is being added
            raise KafkaError(Code.INVALID_TXN_STATE, f"group {group!r} is not in the transaction")
        await self._offsets.commit(group, kind, offsets, transaction=name)

    async def end(
        self, name: str, producer: Producer, *, commits: bool, bumps: bool = False
    ) -> Producer:
        """End the transaction durably. Return the producer that may begin the next one.

        ``bumps``: its producer gets the next epoch (KIP-890). Raises KafkaError.
        """
        wanted = State.PREPARE_COMMIT if commits else State.PREPARE_ABORT
        known = self._of(name, producer, ending=True, bumps=bumps)
        is_repeated = not bumps or known.producer != producer
        if known.state is State.ONGOING:
            pass
        elif is_repeated and known.state is wanted.completed:
            return known.producer  # the answer was lost
        elif known.state is wanted or (bumps and known.state.is_decided and not is_repeated):
            raise _busy(name)
        elif is_repeated or commits:
            raise KafkaError(
                Code.INVALID_TXN_STATE, f"the transaction of {name!r} is {known.state.value}"
            )
        new = replace(known, state=wanted, ended=NO_PRODUCER)
        if bumps:
            new = replace(new, producer=await self._next(known), last_epoch=-1, ended=producer)
        await self._decide(new, known)
        ending = self._ending.get(name)
        if ending is not None:
            await asyncio.wait([ending], timeout=WAIT_S)
        return new.producer

    def has(self, name: str, partition: Partition) -> bool:
        """Whether a partition is in the open transaction of a transactional id."""
        known = self.known.get(name)
        if known is None or known.state is not State.ONGOING:
            return False
        return partition in known.partitions

    def check_write(self, name: str, producer: Producer, partition: Partition) -> str:
        """The transaction's id for stamps. Raises KafkaError unless it is open with the partition.

        Called in the same turn of the loop in which the batch is appended.
        """
        known = self.known.get(name)
        if known is None or known.producer.producer_id != producer.producer_id:
            raise KafkaError(Code.INVALID_PRODUCER_ID_MAPPING, f"{producer} is not {name!r}")
        if known.producer != producer:
            raise _fenced(known, producer)
        if known.state.is_decided:
            raise _busy(name)
        if known.state is not State.ONGOING or partition not in known.partitions:
            raise KafkaError(
                Code.INVALID_TXN_STATE, f"{partition} is in no open transaction of {name!r}"
            )
        return known.id

    def has_ended(self, transaction: str) -> bool:
        """Whether a transaction, by its id, is neither open nor being ended."""
        return not any(
            (each.state is State.ONGOING or each.state.is_decided) and each.id == transaction
            for each in self.known.values()
        )

    # -- states ---------------------------------------------------------------------------------

    def _of(
        self,
        name: str,
        producer: Producer,
        *,
        ending: bool = False,
        bumps: bool = False,
        also_storing: State | None = None,
    ) -> Transaction:
        """The transaction of a producer's request. Raises KafkaError.

        ``bumps``: accept a repeated end, too, which has already raised the epoch. ``also_storing``:
        accept it while its next state is being stored.
        """
        known = self.known.get(name)
        if known is not None and bumps and name in self._storing:
            raise _busy(name)  # perhaps its id changes
        is_over = known is not None and known.state not in (State.EMPTY, State.ONGOING)
        if known is not None and bumps and is_over and known.ended == producer:
            return known
        if known is None or known.producer.producer_id != producer.producer_id:
            raise KafkaError(Code.INVALID_PRODUCER_ID_MAPPING, f"{producer} is not {name!r}")
        if known.producer != producer:
            raise _fenced(known, producer)
        is_storing = name in self._storing and self._storing[name] is not also_storing
        if is_storing or (known.state.is_decided and not ending):
            raise _busy(name)
        return known

    async def _store(self, new: Transaction, old: Transaction | None) -> None:
        """Store the state that follows ``old``; it counts once durable. Raises KafkaError."""
        name = new.name
        if name in self._storing or self.known.get(name) is not old:
            raise _busy(name)
        self._storing[name] = new.state
        stored = self._offsets.store_transaction(replace(new, updated_ms=self._now_ms()))
        # Also if the caller is cancelled.
        stored.add_done_callback(lambda _: self._storing.pop(name, None))
        try:
            await asyncio.shield(stored)
        except LedgerError as error:
            log.warning("the transaction of %r was not stored: %s", name[:100], error)
            raise KafkaError(Code.COORDINATOR_NOT_AVAILABLE, str(error)) from error

    async def _abort(self, known: Transaction, last_epoch: int) -> None:
        """Abort a transaction and fence its producer until it asks for its next epoch,
        if it may (``last_epoch``). As `_decide`.
        """
        epoch = min(known.producer.epoch + 1, MAX_EPOCH)
        producer = known.producer._replace(epoch=epoch)
        new = replace(known, state=State.PREPARE_ABORT, producer=producer)
        await self._decide(replace(new, last_epoch=last_epoch, ended=NO_PRODUCER), known)

    async def _decide(self, new: Transaction, old: Transaction) -> None:
        """Decide how a transaction ends, durably, and begin to end it. Raises KafkaError."""

        async def deciding() -> None:
            await self._store(new, old)
            self._finish(new.name)

        # Also if the client goes away meanwhile: what is decided is carried out.
        await asyncio.shield(asyncio.ensure_future(deciding()))

    def _finish(self, name: str) -> None:
        if self._is_over:
            return
        task = asyncio.get_running_loop().create_task(self._end(name))
        self._ending[name] = task
        task.add_done_callback(lambda _: self._ending.pop(name, None))

    async def _end(self, name: str) -> None:
        """Write the control entries, then the completed state; retry until it is done."""
        retry_s = RETRY_S
        while (known := self.known.get(name)) is not None and known.state.is_decided:
            new = replace(known, partitions=frozenset(), groups=frozenset())
            try:
                await self.write_ends(known)
                await self._store(replace(new, state=known.state.completed), known)
            except Exception as error:
                # Catch everything: nobody else would end the transaction.
                is_known = isinstance(error, (KafkaError, LedgerError, OSError))
                text = "the transaction of %r has not ended yet: %s"
                log.warning(text, name[:100], error, exc_info=not is_known)
                await asyncio.sleep(retry_s)
                retry_s = min(2 * retry_s, RETRY_MAX_S)

    async def write_ends(self, known: Transaction) -> None:
        """Write the missing control entries; durable on return. Raises KafkaError."""
        commits = known.state is State.PREPARE_COMMIT
        end = partial(self._topics.end_transaction, transaction=known.id, commits=commits)
        await asyncio.gather(*map(end, sorted(known.partitions)))

    # -- time -----------------------------------------------------------------------------------

    def check_time(self) -> None:
        """Called about once a second: abort late transactions, forget unused ids."""
        now_ms = self._now_ms()
        for known in tuple(self.known.values()):
            if known.name in self._storing:
                continue
            if known.state is State.ONGOING:
                if known.started_ms > now_ms:  # a clock that steps back must not hold it open
                    self._offsets.transactions[known.name] = replace(known, started_ms=now_ms)
                elif now_ms - known.started_ms >= known.timeout_ms:
                    log.info(
                        "the transaction of %r is aborted: it has lasted for %d ms",
                        known.name[:100],
                        now_ms - known.started_ms,
                    )
                    aborting = asyncio.ensure_future(self._abort(known, known.producer.epoch))
                    aborting.add_done_callback(lambda done: done.cancelled() or done.exception())
            elif not known.state.is_decided and now_ms - known.updated_ms > EXPIRES_MS:
                forgetting = self._offsets.forget_transaction(known.name)
                forgetting.add_done_callback(lambda done: done.cancelled() or done.exception())

    def close(self) -> None:
        """Stop ending transactions: the next owner of the log does that."""
        self._is_over = True
        for task in tuple(self._ending.values()):
            task.cancel()


def _busy(name: str) -> KafkaError:
    return KafkaError(
        Code.CONCURRENT_TRANSACTIONS, f"the last transaction of {name!r} is being ended"
    )


def _fenced(known: Transaction, producer: Producer) -> KafkaError:
    return KafkaError(
        Code.PRODUCER_FENCED, f"{known.name!r} has {known.producer} now, not {producer}"
    )
