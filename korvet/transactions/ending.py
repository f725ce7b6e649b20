"""The end of a transaction: its markers in partitions, and the offsets that it staged in groups.

A transaction ends in rounds. Each round writes the markers, and settles the groups, that earlier rounds could not.
Both are idempotent by the number of the transaction, so another process may have begun, or may do the same.

A partition whose topic was deleted is done. Retriable errors are tried again without end, after a pause that doubles.
After other errors, which are logged once, the pause is longer: a transaction that is prepared never goes back.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from uuid import UUID

import trio
from attrs import define, evolve, field

from korvet.concurrency.tasks import in_parallel
from korvet.protocol.errors import KafkaError, TransactionCoordinatorFenced, UnknownTopicOrPartition
from korvet.protocol.text import quoted
from korvet.storage.interface import Marker, Storage, TopicPartition, TransactionBehind, TransactionResult
from korvet.transactions.document import Partition, State, Transaction

logger = logging.getLogger(__name__)

# Markers of one call of the storage.
MARKERS_AT_ONCE = 500
FIRST_PAUSE_MS = 100
LONGEST_PAUSE_MS = 2000
# Time for which markers wait for replicas.
TIMEOUT_S = 10.0
# After an error that is not retriable.
ERROR_PAUSE_MS = 5000


class Fenced(Exception):  # noqa: N818  an outcome that the caller plans for
    """Another coordinator has written markers: it ends the transaction."""


@define(eq=False)
class Ending:
    """A prepared transaction, and what is left to be done before it is complete."""

    transactional_id: str
    transaction: Transaction
    partitions: set[Partition] = field(init=False)
    groups: set[str] = field(init=False)
    pause_ms: int = 0  # until the next round
    began_s: float = field(factory=trio.current_time)
    done: trio.Event = field(
        factory=trio.Event
    )  # set when the transaction is complete, or another process ends it
    _logged: set[type[KafkaError]] = field(factory=set)
    _has_failed: bool = False

    def __attrs_post_init__(self) -> None:
        self.partitions, self.groups = set(self.transaction.partitions), set(self.transaction.groups)

    @property
    def result(self) -> TransactionResult:
        """The result that the transaction was prepared for."""
        is_commit = self.transaction.state is State.PREPARE_COMMIT
        return TransactionResult.COMMIT if is_commit else TransactionResult.ABORT

    @property
    def marker(self) -> Marker:
        """The marker that ends the transaction in a partition."""
        transaction = self.transaction
        return Marker(
            transaction.producer_id,
            transaction.producer_epoch,
            transaction.coordinator_epoch,
            self.result,
            transaction.number,
            transaction.version,
        )

    async def run_round(self, storage: Storage) -> bool:
        """Write the markers and settle the groups that are left. Return True if nothing is left. Raises Fenced."""
        self._has_failed = False
        fenced: list[Fenced] = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(in_parallel, lambda group: self._settle(storage, group), sorted(self.groups))
            nursery.start_soon(self._end_partitions, storage, fenced)
        if fenced:
            raise fenced[0]
        if not self.partitions and not self.groups:
            return True
        self.pause_ms = (
            ERROR_PAUSE_MS if self._has_failed else min(2 * self.pause_ms or FIRST_PAUSE_MS, LONGEST_PAUSE_MS)
        )
        return False

    # --- Partitions -------------------------------------------------------------------------------------

    async def _end_partitions(self, storage: Storage, fenced: list[Fenced]) -> None:
        try:
            await self._drop_deleted(storage)
            left = sorted(self.partitions)
            for start in range(0, len(left), MARKERS_AT_ONCE):
                await self._write_markers(storage, left[start : start + MARKERS_AT_ONCE])
        except Fenced as error:
            fenced.append(error)
        except KafkaError as error:
            self._note(error, "its topics")

    async def _drop_deleted(self, storage: Storage) -> None:
        """Remove the partitions of deleted topics. A topic of the same name with another id is another one."""
        gone: set[UUID] = set()
        for topic_id in {each.topic_id for each in self.partitions}:
            if await storage.topic_by_id(topic_id) is None:
                gone.add(topic_id)
        if gone:
            self.partitions = {each for each in self.partitions if each.topic_id not in gone}

    async def _write_markers(self, storage: Storage, partitions: Sequence[Partition]) -> None:
        by_name = {TopicPartition(each.topic, each.partition): each for each in partitions}
        behind: list[TopicPartition] = []
        for tp, result in (
            await storage.write_markers(dict.fromkeys(by_name, self.marker), timeout_s=TIMEOUT_S)
        ).items():
            match result:
                case TransactionBehind():
                    behind.append(tp)
                case TransactionCoordinatorFenced():
                    raise Fenced
                case UnknownTopicOrPartition():
                    pass  # the next round drops the topic if it is gone
                case KafkaError():
                    self._note(result, f"partition {tp.topic}-{tp.partition}")
                case _:
                    self.partitions.discard(by_name[tp])
        if behind:
            await self._abort_earlier(storage, behind)

    async def _abort_earlier(self, storage: Storage, tps: Sequence[TopicPartition]) -> None:
        """Abort an earlier transaction of the producer that is still open. The next round ends this one.

        The document of the earlier one says that it has ended: the partition's server has lost the end, and the store
        has no other copy.
        """
        for tp in tps:
            fields = {
                "_id": quoted(self.transactional_id),
                "_tp": f"{tp.topic}-{tp.partition}",
                "topic": tp.topic,
                "partition": tp.partition,
            }
            logger.error(
                "transactional id %(_id)s: an earlier transaction is open in %(_tp)s, although it has ended."
                " It is aborted: the store has lost its end",
                fields,
            )
        marker = evolve(self.marker, result=TransactionResult.ABORT, number=-1, version=1)
        for tp, result in (
            await storage.write_markers(dict.fromkeys(tps, marker), timeout_s=TIMEOUT_S)
        ).items():
            if isinstance(result, KafkaError):
                self._note(result, f"partition {tp.topic}-{tp.partition}")

    # --- Groups -----------------------------------------------------------------------------------------

    async def _settle(self, storage: Storage, group: str) -> None:
        transaction = self.transaction
        try:
            await storage.settle(
                group, producer_id=transaction.producer_id, number=transaction.number, result=self.result
            )
        except KafkaError as error:
            self._note(error, f"group {quoted(group)}")
        else:
            self.groups.discard(group)

    def _note(self, error: KafkaError, place: str) -> None:
        """Log an error that is not retriable once, and let the next round wait longer."""
        if error.retriable:
            return
        self._has_failed = True
        if type(error) in self._logged:
            return
        self._logged.add(type(error))
        fields = {
            "_id": quoted(self.transactional_id),
            "_place": place,
            "transactional_id": self.transactional_id,
            "error": error.message,
        }
        logger.error(
            "transactional id %(_id)s: its transaction cannot end in %(_place)s: %(error)s."
            " It is tried again every 5 s",
            fields,
        )
