"""Offsets that transactions have staged, in the hash of their group.

    HGETALL korvet:$group:billing
    staged:2377900603473920
        {"transaction":7,"epoch":3,"offsets":{"orders:0":"1264197008485889 0 1763666000123 0f7c4a3e-… metadata"}}
    open     2377900603473920
    ended    2377900603473920:6:1763666000100

A staged offset has the format of a committed one (`korvet.storage.redis.groups`), and is empty once a plain commit has
superseded it. `open` lists the producers that have staged offsets, and `ended` the last transactions with their numbers
and times of their ends, so that the scripts refuse offsets that arrive late.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import cast

from attrs import define

from korvet.protocol.errors import (
    ConcurrentTransactions,
    InvalidProducerEpoch,
    InvalidTxnState,
    KafkaError,
    KafkaStorageError,
    UnknownTopicOrPartition,
)
from korvet.protocol.text import quoted
from korvet.storage.interface import OffsetAndMetadata, ProducerTransaction, TopicPartition, TransactionResult
from korvet.storage.redis.client.connection import Script
from korvet.storage.redis.groups import Groups, arguments_of, name_of, parse_position
from korvet.storage.redis.partition import Partition
from korvet.storage.redis.scripts import source
from korvet.storage.transaction_state import ENDED_KEPT, ENDED_KEPT_MS

STAGE = Script(source("stage_offsets"))
SETTLE = Script(source("settle_offsets"))

SCRIPTS = (STAGE, SETTLE)


@define(eq=False)
class StagedOffsets:
    """Implements `Storage.stage`, `settle` and `unstable`."""

    groups: Groups

    async def stage(
        self,
        group_id: str,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        transaction: ProducerTransaction,
        *,
        generation_id: int = -1,
        coordinator_epoch: int = -1,
    ) -> dict[TopicPartition, KafkaError | None]:
        """See `Storage.stage`."""
        found, results = await self.groups.find_each(offsets)
        if not found:
            return results
        producer_id, number = transaction.producer_id, transaction.number
        fences = (generation_id, coordinator_epoch, producer_id, transaction.producer_epoch, number)
        arguments = (*fences, *arguments_of(found, name_of))
        try:
            status, *details = await self.groups.run_fenced(group_id, STAGE, arguments, generation_id)
            if status == b"ended":
                raise InvalidTxnState(f"transaction {number} of producer {producer_id} has ended")
            if status == b"behind":
                raise ConcurrentTransactions(
                    f"transaction {int(details[0])} of producer {producer_id} has not ended"
                )
            if status == b"stale":
                raise InvalidProducerEpoch(f"producer {producer_id} has epoch {int(details[0])} by now")
        except KafkaError as error:
            return results | dict.fromkeys((partition.tp for partition in found), error)
        return results

    async def settle(
        self, group_id: str, *, producer_id: int, number: int, result: TransactionResult
    ) -> None:
        """See `Storage.settle`. Let the Redis consumer groups follow."""
        key = self.groups.keyspace.group(group_id)
        run_id = self.groups.redis.run_id(key)
        is_committed = int(result is TransactionResult.COMMIT)
        arguments = (producer_id, number, is_committed, ENDED_KEPT_MS, ENDED_KEPT)
        reply = await self.groups.redis.run(SETTLE, [key], arguments, repeatable=True)
        await self.groups.wait_replicated(key, run_id)
        committed = await self._parsed(cast(Sequence[bytes], reply))
        errors: dict[TopicPartition, KafkaError | None] = {}
        await self.groups.follow(group_id, committed, errors)
        for error in errors.values():
            if error is not None and not isinstance(error, UnknownTopicOrPartition):
                raise error

    async def unstable(
        self, group_id: str, tps: Collection[TopicPartition] | None = None
    ) -> Collection[TopicPartition]:
        """See `Storage.unstable`."""
        redis, key = self.groups.redis, self.groups.keyspace.group(group_id)
        producers = cast(bytes | None, await redis.execute(b"HGET", key, b"open", repeatable=True))
        if not producers:
            return ()
        fields = [b"staged:%b" % producer for producer in producers.split()]
        values = cast(Sequence[bytes | None], await redis.execute(b"HMGET", key, *fields, repeatable=True))
        try:
            found = {
                tp_of(name) for value in values if value is not None for name in json.loads(value)["offsets"]
            }
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise KafkaStorageError(
                f"staged offsets of group {quoted(group_id)} are damaged: {error!r:.100}"
            ) from None
        return found if tps is None else found.intersection(tps)

    async def _parsed(self, reply: Sequence[bytes]) -> dict[Partition, OffsetAndMetadata]:
        """Return the offsets in the script's answer, without those of partitions that are gone."""
        committed = {}
        for name, value in zip(reply[::2], reply[1::2], strict=True):
            with suppress(UnknownTopicOrPartition):
                tp = tp_of(name.decode())
                partitions = self.groups.partitions
                partition = partitions.known(tp) or await partitions.find(tp)
                if (offset := parse_position(value, partition.topic_id)) is not None:
                    committed[partition] = offset
        return committed


def tp_of(name: str) -> TopicPartition:
    """Return the partition of a name among staged offsets."""
    topic, _, partition = name.rpartition(":")
    return TopicPartition(topic, int(partition))
