"""The producers that a partition remembers, idempotent and transactional (DescribeProducers)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple, cast

from attrs import define

from korvet.concurrency.time_slices import TimeSlices
from korvet.storage.interface import ActiveProducer, TopicPartition
from korvet.storage.redis.client.caller import RedisCaller
from korvet.storage.redis.partition import Partition
from korvet.storage.redis.partitions import Partitions
from korvet.storage.redis.read.entries import Entry

PRODUCER_ID = re.compile(rb"[0-9]{1,18}")
ENTRY_ID = re.compile(rb"[0-9]{1,19}-[0-9]{1,19}")

# Fields of a hash that are requested at once.
SCANNED_AT_ONCE = 1000


class StoredProducer(NamedTuple):
    """A field of `$producers`, as the append script writes it: "epoch time", then " first:last:id:time" by batch."""

    epoch: int
    last_append_ms: int
    last_sequence: int

    @classmethod
    def parse(cls, text: bytes) -> StoredProducer:
        epoch, time_ms, *batches = text.split()
        last_sequence = -1
        if batches:
            _, last, *_ = batches[-1].split(b":")
            last_sequence = int(last)
        return cls(int(epoch), int(time_ms), last_sequence)


class StoredTransaction(NamedTuple):
    """A field of `$transactions`: "number epoch coordinator-epoch open|commit|abort first-ID time"."""

    number: int
    epoch: int
    coordinator_epoch: int
    result: bytes
    first_id: bytes
    changed_ms: int

    @classmethod
    def parse(cls, text: bytes) -> StoredTransaction:
        number, epoch, coordinator_epoch, result, first_id, time_ms = text.split()
        return cls(int(number), int(epoch), int(coordinator_epoch), result, first_id, int(time_ms))


class StoredAborted(NamedTuple):
    """An entry of `$aborted`."""

    marker_id: bytes
    producer_id: int
    first_id: bytes  # of the transaction's first record
    stable_id: bytes  # the first unstable ID after the abort

    @classmethod
    def parse(cls, entry: Entry) -> StoredAborted | None:
        """Return None for an entry that another client has written."""
        marker_id, fields = entry
        if fields[::2] != [b"producer", b"first", b"stable"]:
            return None
        producer_id, first_id, stable_id = fields[1::2]
        is_whole = (
            PRODUCER_ID.fullmatch(producer_id)
            and ENTRY_ID.fullmatch(first_id)
            and ENTRY_ID.fullmatch(stable_id)
        )
        return cls(marker_id, int(producer_id), first_id, stable_id) if is_whole else None


@define(eq=False)
class Producers:
    """Implements `Storage.active_producers`."""

    redis: RedisCaller
    partitions: Partitions

    async def active(self, tp: TopicPartition) -> Sequence[ActiveProducer]:
        """See `Storage.active_producers`."""
        partition = self.partitions.known(tp) or await self.partitions.find(tp)
        producers = await self._read(partition.keys.producers)
        transactions = await self._read(partition.keys.transactions)
        time_slices = TimeSlices()
        found = []
        for producer_id in sorted({*producers, *transactions}):
            try:
                found.append(
                    active_producer(
                        partition, producer_id, producers.get(producer_id), transactions.get(producer_id)
                    )
                )
            except ValueError:  # another client wrote it; the append script reports and forgets it
                continue
            await time_slices.next()
        return found

    async def _read(self, key: bytes) -> dict[int, bytes]:
        """Return the fields of a hash that are named by producer ids."""
        fields: dict[int, bytes] = {}
        cursor = b""
        while cursor != b"0":
            reply = await self.redis.execute(
                b"HSCAN", key, cursor or b"0", b"COUNT", SCANNED_AT_ONCE, repeatable=True
            )
            cursor, pairs = cast(tuple[bytes, Sequence[bytes]], reply)
            each = iter(pairs)
            pairs_of_each = zip(each, each, strict=True)
            fields |= {int(name): value for name, value in pairs_of_each if PRODUCER_ID.fullmatch(name)}
        return fields


def active_producer(
    partition: Partition, producer_id: int, stored: bytes | None, transaction: bytes | None
) -> ActiveProducer:
    """Return the state of a producer, of which the partition has batches, a transaction, or both.

    Raise ValueError for a field that another client has written.
    """
    producer = None if stored is None else StoredProducer.parse(stored)
    last = None if transaction is None else StoredTransaction.parse(transaction)
    is_open = last is not None and last.result == b"open"
    return ActiveProducer(
        producer_id,
        max(-1 if producer is None else producer.epoch, -1 if last is None else last.epoch),
        -1 if producer is None else producer.last_sequence,
        max(-1 if producer is None else producer.last_append_ms, -1 if last is None else last.changed_ms),
        -1 if last is None else last.coordinator_epoch,
        partition.bound(last.first_id) if last is not None and is_open else -1,
    )
