"""A simple model of a store, with which the state machine compares backends.

It consists of lists and dicts with linear search. The backend assigns offsets within the rules of the mapping, since
the model has no clock. The model computes everything that follows from them.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from uuid import UUID

from attrs import define, field

from korvet.protocol.errors import KafkaError
from korvet.storage.interface import (
    LogOffsets,
    OffsetAndMetadata,
    OffsetAndTimestamp,
    OffsetMapping,
    Topic,
    TopicPartition,
)
from korvet.storage.producer_state import AppendedBatch, ProducerStates, next_sequence
from korvet.testing.records import Producer, Record, StoredRecord, stored

FOREVER_MS = 2**62


@define
class PartitionModel:
    """One partition: its records, its offsets and its producers."""

    mapping: OffsetMapping
    log_start_offset: int
    next_offset: int
    records: list[StoredRecord] = field(factory=list)
    batch_starts: list[int] = field(factory=list)  # offsets at which batches begin
    trimmed_before: int = 0  # reads below are out of range
    producers: ProducerStates = field(factory=lambda: ProducerStates(FOREVER_MS, complete_from=2**53))

    @property
    def bounds(self) -> LogOffsets:
        return LogOffsets(self.log_start_offset, self.next_offset, self.next_offset)

    @property
    def readable(self) -> list[StoredRecord]:
        return [record for record in self.records if record.offset >= self.log_start_offset]

    @property
    def earliest(self) -> OffsetAndTimestamp:
        time = next((record.timestamp for record in self.readable), -1)
        return OffsetAndTimestamp(self.log_start_offset, time)

    def expect(self, count: int, producer: Producer | None) -> AppendedBatch | KafkaError | None:
        """Return the expected outcome of a batch: an earlier append, an error, or None if it is appended."""
        if producer is None:
            return None
        last = last_sequence(producer.sequence, count)
        try:
            return self.producers.check(
                producer.producer_id, producer.epoch, producer.sequence, last, now_ms=0
            )
        except KafkaError as error:
            return error

    def may_begin_at(self, base_offset: int) -> bool:
        if self.mapping is OffsetMapping.DENSE:
            return base_offset == self.next_offset
        return base_offset >= self.next_offset

    def append(self, records: Sequence[Record], base_offset: int, producer: Producer | None) -> None:
        self.add(stored(records, base_offset))
        if producer is not None:
            last = last_sequence(producer.sequence, len(records))
            appended = AppendedBatch(producer.sequence, last, base_offset)
            self.producers.remember(producer.producer_id, producer.epoch, appended, now_ms=0)

    def add(self, records: list[StoredRecord]) -> None:
        self.batch_starts.append(records[0].offset)
        self.records += records
        self.next_offset = records[-1].offset + 1

    def drop_below(self, offset: int) -> None:
        self.records = [record for record in self.records if record.offset >= offset]

    def truncate_before(self, offset: int) -> None:
        if offset > self.log_start_offset:
            self.log_start_offset = self.trimmed_before = offset
        self.drop_below(offset)

    def trim_by_hand(self, offset: int) -> None:
        """Remove what lies below; the log then starts with the first record that is left."""
        before = len(self.records)
        self.drop_below(offset)
        if len(self.records) < before:
            first = self.records[0].offset if self.records else self.next_offset
            self.log_start_offset = max(self.log_start_offset, first)

    def seek_ts(self, timestamp: int) -> OffsetAndTimestamp | None:
        for record in self.readable:
            if record.timestamp >= timestamp:
                return OffsetAndTimestamp(record.offset, record.timestamp)
        return None

    def seek_max_ts(self) -> OffsetAndTimestamp | None:
        return self.seek_ts(max((record.timestamp for record in self.readable), default=0))


@define
class GroupModel:
    """A group's committed offsets, and its highest generation."""

    generation_id: int = -1
    offsets: dict[TopicPartition, OffsetAndMetadata] = field(factory=dict)


@define
class StoreModel:
    """The whole store."""

    topics: dict[str, Topic] = field(factory=dict)
    logs: dict[TopicPartition, PartitionModel] = field(factory=dict)
    groups: dict[str, GroupModel] = field(factory=dict)
    documents: dict[str, tuple[bytes, int]] = field(factory=dict)
    ids: set[UUID] = field(factory=set)

    def put_topic(self, topic: Topic, start: int) -> None:
        """Set the current state of a topic, and create models, which begin at `start`, for its new partitions."""
        self.topics[topic.name] = topic
        self.ids.add(topic.topic_id)
        for number in range(topic.partitions):
            tp = TopicPartition(topic.name, number)
            self.logs.setdefault(tp, PartitionModel(topic.config.mapping, start, start))

    def delete_topic(self, name: str) -> None:
        del self.topics[name]
        for tp in [tp for tp in self.logs if tp.topic == name]:
            del self.logs[tp]
            for group in self.groups.values():
                group.offsets.pop(tp, None)

    def commit(
        self, group_id: str, tp: TopicPartition, committed: OffsetAndMetadata, generation_id: int
    ) -> bool:
        """Commit an offset. Return False if the generation is fenced."""
        group = self.groups.setdefault(group_id, GroupModel())
        if 0 <= generation_id < group.generation_id:
            return False
        group.generation_id = max(group.generation_id, generation_id)
        group.offsets[tp] = committed
        return True

    def forget(self, group_id: str, tps: Collection[TopicPartition] | None) -> None:
        if tps is None:
            self.groups.pop(group_id, None)
        elif group_id in self.groups:
            for tp in tps:
                self.groups[group_id].offsets.pop(tp, None)


def last_sequence(first_sequence: int, count: int) -> int:
    """Return the sequence of a batch's last record, by counting."""
    sequence = first_sequence
    for _ in range(count - 1):
        sequence = next_sequence(sequence)
    return sequence
